//! Cgroups and device nodes that are gone with their values.

use std::{
    fs,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use devgate_abi::DeviceNumber;
use rustix::{
    fs::{FileType, Mode, OFlags, makedev, mkdirat, mknodat, openat},
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

/// A tmpfs that is mounted nowhere.
pub(super) struct Nodes {
    root: OwnedFd,
    folders: Vec<OwnedFd>,
}

/// One folder of nodes; their names are the numbers from 0 on.
#[derive(Clone, Debug)]
pub(super) struct Folder {
    /// Leads to the folder while this process keeps it.
    pub(super) path: PathBuf,
    pub(super) count: usize,
}

impl Nodes {
    pub(super) fn new() -> Result<Self> {
        let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC).context("cannot open a tmpfs")?;
        fsconfig_create(context.as_fd()).context("cannot make a tmpfs")?;
        let root = fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())
            .context("cannot mount a tmpfs")?;
        Ok(Self { root, folders: Vec::new() })
    }

    /// Makes a folder with `count` nodes whose numbers are those of `devices`, again and again.
    pub(super) fn folder(&mut self, devices: &[DeviceNumber], count: usize) -> Result<Folder> {
        let name = self.folders.len().to_string();
        mkdirat(&self.root, &name, Mode::RWXU).context("cannot make a folder for device nodes")?;
        let folder = openat(&self.root, &name, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .context("cannot open the folder for device nodes")?;
        for (index, device) in devices.iter().cycle().take(count).enumerate() {
            let kind = if device.is_block() { FileType::BlockDevice } else { FileType::CharacterDevice };
            mknodat(&folder, index.to_string(), kind, Mode::RUSR, makedev(device.major(), device.minor()))
                .with_context(|| format!("cannot make a node for {device}"))?;
        }
        let path = PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), folder.as_raw_fd()));
        self.folders.push(folder);
        Ok(Folder { path, count })
    }
}
