//! What a machine lacks for the demonstration, and how to get it.

use std::{env, fs, os::unix::ffi::OsStrExt, path::Path};

use devgate::executors::enforcer::{CgroupRoot, sys};
use rustix::{
    fs::{Access, access},
    process::geteuid,
    thread::{CapabilitySet, capabilities},
};

/// Programs, and the Debian packages that have them.
const PROGRAMS: [(&str, &str); 9] = [
    ("busybox", "busybox-static"),
    ("containerd", "containerd"),
    ("containerd-shim-runc-v2", "containerd"),
    ("ctr", "containerd"),
    ("ip", "iproute2"),
    ("nsenter", "util-linux"),
    ("runc", "runc"),
    ("udevadm", "udev"),
    ("unshare", "util-linux"),
];

/// Rights, with the names under which they are asked for.
const RIGHTS: [(CapabilitySet, &str); 5] = [
    (CapabilitySet::SYS_ADMIN, "CAP_SYS_ADMIN"),
    (CapabilitySet::NET_ADMIN, "CAP_NET_ADMIN"),
    (CapabilitySet::BPF, "CAP_BPF"),
    (CapabilitySet::MKNOD, "CAP_MKNOD"),
    (CapabilitySet::SYS_PTRACE, "CAP_SYS_PTRACE"),
];

/// Everything that is missing: what, and what to do about it.
pub(super) fn find() -> Vec<String> {
    if !geteuid().is_root() {
        return vec!["root: the kernel lets nobody else load the program; run `sudo cargo xtask demo`".to_owned()];
    }
    let mut missing = Vec::new();
    missing.extend(right());
    missing.extend(cgroups());
    missing.extend(bpf());
    missing.extend(programs());
    missing
}

fn right() -> Option<String> {
    let effective = capabilities(None).ok()?.effective;
    let lacking = RIGHTS.iter().filter(|(right, _)| !effective.contains(*right));
    let names: Vec<_> = lacking.map(|(_, name)| *name).collect();
    (!names.is_empty()).then(|| {
        format!("rights of root: {}; in a container, start it with `--privileged --cgroupns=host`", names.join(", "))
    })
}

fn cgroups() -> Option<String> {
    match CgroupRoot::find() {
        Ok(root) if access(root.path(), Access::WRITE_OK).is_ok() => None,
        Ok(root) => Some(format!(
            "cgroup v2, writable: {0} is mounted read-only; `mount -o remount,rw {0}`, or in a container, start it with \
             `--privileged --cgroupns=host`",
            root.path().display()
        )),
        Err(error) => Some(format!(
            "cgroup v2: {error}; on a host with cgroup v1: `mkdir -p /sys/fs/cgroup/unified && mount -t cgroup2 none \
             /sys/fs/cgroup/unified`, or boot with `systemd.unified_cgroup_hierarchy=1`"
        )),
    }
}

fn bpf() -> Option<String> {
    if let Err(error) = sys::load_overriding_program(&sys::return_constant(1), "") {
        return Some(format!(
            "BPF: a device program cannot be loaded: {error}; it needs Linux 6.1 or newer with CONFIG_CGROUP_BPF, and \
             no lockdown in the mode `confidentiality`"
        ));
    }
    let point = Path::new("/sys/fs/bpf");
    (!point.is_dir())
        .then(|| "a place for a bpf file system: /sys/fs/bpf is not there; `mount -t sysfs sysfs /sys`".into())
}

fn programs() -> Option<String> {
    let path = env::var_os("PATH").unwrap_or_default();
    let folders: Vec<_> = env::split_paths(&path).filter(|folder| !folder.as_os_str().as_bytes().is_empty()).collect();
    let is_there =
        |name: &str| folders.iter().any(|folder| fs::metadata(folder.join(name)).is_ok_and(|it| it.is_file()));
    let missing: Vec<_> = PROGRAMS.into_iter().filter(|(name, _)| !is_there(name)).collect();
    if missing.is_empty() {
        return None;
    }
    let names: Vec<_> = missing.iter().map(|(name, _)| *name).collect();
    let mut packages: Vec<_> = missing.iter().map(|(_, package)| *package).collect();
    packages.dedup();
    Some(format!(
        "programs: {}; `cargo xtask deps` installs them, or `apt-get install {}`",
        names.join(", "),
        packages.join(" ")
    ))
}
