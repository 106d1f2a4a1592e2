//! The disk of a machine.

use std::{fs, os::unix::fs::symlink, path::Path, process::Command};

use anyhow::{Context as _, Result};

use crate::program;

/// Units that only take time, or that write to the disk when nothing else happens.
const MASKED: &[&str] = &[
    "apt-daily-upgrade.timer",
    "apt-daily.timer",
    "console-getty.service",
    "dpkg-db-backup.timer",
    "e2scrub_all.timer",
    "e2scrub_reap.service",
    "fstrim.timer",
    "getty-static.service",
    "getty.target",
    "getty@tty1.service",
    "ldconfig.service",
    "modprobe@drm.service",
    "serial-getty@ttyS0.service",
    "systemd-firstboot.service",
    "systemd-hwdb-update.service",
    "systemd-journal-flush.service",
    "systemd-logind.service",
    "systemd-machine-id-commit.service",
    "systemd-pstore.service",
    "systemd-random-seed.service",
    "systemd-tmpfiles-clean.timer",
    "systemd-update-utmp-runlevel.service",
    "systemd-update-utmp.service",
];

/// Runs the endpoint as early as it can be of use. What it starts in the background lives on when it is restarted.
const ENDPOINT_UNIT: &str = "[Unit]
Description=What a test tells this machine to do
DefaultDependencies=no
After=systemd-udevd.service

[Service]
ExecStart=/usr/local/sbin/devgate-endpoint
Restart=always
KillMode=process
";

const FILES: &[(&str, &str)] = &[
    ("etc/fstab", ""),
    ("etc/hostname", "machine\n"),
    ("etc/hosts", "127.0.0.1 localhost machine\n"),
    ("etc/machine-id", "0123456789abcdef0123456789abcdef\n"),
    ("etc/systemd/journald.conf.d/machine.conf", "[Journal]\nStorage=volatile\n"),
    // Filters of system calls are costly where the processor is emulated.
    (
        "etc/systemd/system.conf.d/machine.conf",
        "[Manager]\nDefaultEnvironment=SYSTEMD_SECCOMP=0\nShowStatus=no\nLogLevel=notice\n",
    ),
    ("etc/systemd/system/devgate-endpoint.service", ENDPOINT_UNIT),
];

const LINKS: &[(&str, &str)] = &[
    ("etc/systemd/system/sysinit.target.wants/devgate-endpoint.service", "../devgate-endpoint.service"),
    ("etc/systemd/system/default.target", "/lib/systemd/system/multi-user.target"),
];

/// Makes a disk of a tree of packages, the modules of a kernel and the endpoint.
pub(super) fn build(packages: &Path, modules: &Path, endpoint: &Path, disk: &Path) -> Result<()> {
    let tree = disk.with_extension("tree");
    // Nothing is kept of the copy, and most of it stays as it is: on some file systems it costs no space.
    program::run(Command::new("cp").args(["--archive", "--reflink=auto"]).arg(packages).arg(&tree))?;
    program::run(Command::new("cp").args(["--archive"]).arg(modules.join("lib/modules")).arg(tree.join("usr/lib/")))?;
    configure(&tree, endpoint)?;
    program::run(
        Command::new("mke2fs")
            .args(["-q", "-t", "ext4", "-m", "0", "-O", "^has_journal,^metadata_csum,^resize_inode"])
            .args(["-E", "lazy_itable_init=1", "-d"])
            .arg(&tree)
            .arg(disk)
            .arg("1G"),
    )?;
    fs::remove_dir_all(tree)?;
    Ok(())
}

fn configure(tree: &Path, endpoint: &Path) -> Result<()> {
    for (path, content) in FILES {
        let path = tree.join(path);
        fs::create_dir_all(path.parent().context("a file has no folder")?)?;
        fs::write(path, content)?;
    }
    let units = tree.join("etc/systemd/system");
    for unit in MASKED {
        link("/dev/null", &units.join(unit))?;
    }
    for (path, target) in LINKS {
        link(target, &tree.join(path))?;
    }
    // Tests start it when they have done with what must happen before.
    let started = units.join("multi-user.target.wants/containerd.service");
    if started.is_symlink() {
        fs::remove_file(started)?;
    }
    fs::copy(endpoint, tree.join("usr/local/sbin/devgate-endpoint")).context("cannot copy the endpoint")?;
    Ok(())
}

fn link(target: &str, path: &Path) -> Result<()> {
    fs::create_dir_all(path.parent().context("a link has no folder")?)?;
    if path.is_symlink() || path.exists() {
        fs::remove_file(path)?;
    }
    symlink(target, path).with_context(|| format!("cannot make {}", path.display()))
}
