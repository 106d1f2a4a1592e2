//! A BPF file system for tests and benchmarks, on machines where nothing has mounted one.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::command;
use crate::mounts;

/// Where everything expects it.
const MOUNT_POINT: &str = "/sys/fs/bpf";

/// A mount that ends with this value.
///
/// It is made in the mount namespace of the host: tests that tell containers from the host need to run in that one themselves.
#[derive(Debug)]
#[must_use]
pub(crate) struct Bpffs(());

/// Mounts the BPF file system if root runs this and it is not mounted. Does nothing where that cannot be done; who needs it says so.
pub(crate) fn ensure() -> Result<Option<Bpffs>> {
    let mounted = mounts::list().iter().any(|mount| mount.kind == "bpf" && mount.point == Path::new(MOUNT_POINT));
    if mounted || !command::is_root() || !Path::new(MOUNT_POINT).is_dir() {
        return Ok(None);
    }
    eprintln!("note: mounting a BPF file system at {MOUNT_POINT} until this run ends");
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("bpf", MOUNT_POINT, "bpf", flags, None).with_context(|| format!("cannot mount {MOUNT_POINT}"))?;
    Ok(Some(Bpffs(())))
}

impl Drop for Bpffs {
    fn drop(&mut self) {
        // With the mount would go what somebody else has pinned meanwhile. The kernel's own entries are all `*.debug`.
        let pinned = |path: &Path| path.extension().is_none_or(|extension| extension != "debug");
        let entries = fs::read_dir(MOUNT_POINT).into_iter().flatten().flatten();
        if entries.map(|entry| entry.path()).any(|path| pinned(&path)) {
            eprintln!("note: {MOUNT_POINT} has pins in it and stays mounted");
        } else if let Err(error) = unmount(MOUNT_POINT, UnmountFlags::empty()) {
            eprintln!("note: cannot unmount {MOUNT_POINT}: {error}");
        }
    }
}
