//! Cgroups and device nodes that are gone with their values.

use std::{
    fs,
    ops::Range,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use devgate_abi::DeviceNumber;
use rustix::{
    fs::{FileType, Mode, makedev, mknodat},
    mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen},
};

/// A tree of cgroups below a hierarchy's root.
pub(super) struct Tree {
    mount: PathBuf,
    made: Vec<PathBuf>,
}

impl Tree {
    pub(super) fn new(mount: &Path) -> Self {
        Self { mount: mount.to_owned(), made: Vec::new() }
    }

    /// Makes a cgroup below one that exists. Both paths start at the hierarchy's root.
    pub(super) fn make(&mut self, parent: &Path, name: &str) -> Result<PathBuf> {
        let path = parent.join(name);
        let folder = self.folder(&path);
        fs::create_dir(&folder).with_context(|| format!("cannot make the cgroup {}", folder.display()))?;
        self.made.push(folder);
        Ok(path)
    }

    /// Where a cgroup's files are.
    pub(super) fn folder(&self, path: &Path) -> PathBuf {
        self.mount.join(path.strip_prefix("/").unwrap_or(path))
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        for folder in self.made.iter().rev() {
            if let Err(error) = fs::remove_dir(folder) {
                eprintln!("cannot remove the cgroup {}: {error}", folder.display());
            }
        }
    }
}

/// Device nodes on a tmpfs that is mounted nowhere. Their names are their numbers, from 0 on.
pub(super) struct Nodes {
    folder: OwnedFd,
    count: usize,
}

impl Nodes {
    pub(super) fn new() -> Result<Self> {
        let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC).context("cannot open a tmpfs")?;
        fsconfig_create(context.as_fd()).context("cannot make a tmpfs")?;
        let folder = fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())
            .context("cannot mount a tmpfs")?;
        Ok(Self { folder, count: 0 })
    }

    /// Makes nodes for the devices. Returns their numbers.
    pub(super) fn make(&mut self, devices: &[DeviceNumber]) -> Result<Range<usize>> {
        let first = self.count;
        for device in devices {
            let kind = if device.is_block() { FileType::BlockDevice } else { FileType::CharacterDevice };
            let number = makedev(device.major(), device.minor());
            mknodat(&self.folder, self.count.to_string(), kind, Mode::RUSR, number)
                .with_context(|| format!("cannot make a node for {device}"))?;
            self.count += 1;
        }
        Ok(first..self.count)
    }

    /// Leads to the folder for other processes too, as long as this one keeps it.
    pub(super) fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), self.folder.as_raw_fd()))
    }
}
