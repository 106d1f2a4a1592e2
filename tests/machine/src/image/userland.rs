//! Debian's packages, unpacked and configured by their own scripts.

use std::{fs, path::Path, process::Command};

use anyhow::Result;

use super::{Key, apt::Apt};
use crate::program;

/// The name of the tree.
pub(super) const TREE: &str = "tree";

/// What is installed besides what every Debian has.
const PACKAGES: &[&str] = &[
    "bpftool",
    "busybox-static",
    "containerd",
    "crun",
    "dbus",
    "iproute2",
    "kmod",
    "procps",
    "runc",
    "systemd",
    "systemd-sysv",
    "udev",
];

/// What no test reads.
const LEFT_OUT: &[&str] = &[
    "/usr/share/man/*",
    "/usr/share/doc/*",
    "/usr/share/locale/*",
    "/usr/share/info/*",
    "/usr/share/bash-completion/*",
];

pub(super) fn key(apt: &Apt, suite: &str) -> Key {
    Key::new(suite).add(apt.sources()).add(include_str!("userland.rs"))
}

/// Installs the packages below `folder`.
pub(super) fn build(apt: &Apt, suite: &str, folder: &Path) -> Result<()> {
    let sources = apt.write_sources(folder)?;
    let tree = folder.join(TREE);
    let mut mmdebstrap = Command::new("mmdebstrap");
    mmdebstrap
        .args(["--mode=root", "--variant=essential", "--format=directory"])
        .arg(format!("--include={}", PACKAGES.join(",")))
        .arg("--aptopt=APT::Install-Recommends \"false\"")
        .args(LEFT_OUT.iter().map(|path| format!("--dpkgopt=path-exclude={path}")))
        .arg(suite)
        .arg(&tree)
        .arg(sources);
    program::run(&mut mmdebstrap)?;
    let versions =
        program::run(Command::new("dpkg-query").arg("--admindir").arg(tree.join("var/lib/dpkg")).arg("--show"))?;
    fs::write(folder.join("versions"), versions)?;
    Ok(())
}
