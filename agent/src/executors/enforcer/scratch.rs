//! Places for the self-test that nobody else sees.

use std::{
    ffi::CString,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::PathBuf,
};

use devgate_abi::DeviceNumber;
use rustix::{
    fs::{CWD, FileType, Mode, mknodat},
    mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen},
};

use super::cgroup::{Cgroup, CgroupError, CgroupRoot};

/// A cgroup that is removed with the value.
pub(super) struct ScratchCgroup {
    cgroup: Cgroup,
    folder: PathBuf,
}

impl ScratchCgroup {
    /// Makes a cgroup below another.
    pub(super) fn new(root: &CgroupRoot, parent: &Cgroup, name: &str) -> Result<Self, CgroupError> {
        let path = parent.path().join(name);
        let folder = root.folder(&path);
        rustix::fs::mkdirat(CWD, &folder, Mode::from_raw_mode(0o700))
            .map_err(|error| CgroupError::Open(folder.clone(), error.into()))?;
        match root.cgroup(&path) {
            Ok(cgroup) => Ok(Self { cgroup, folder }),
            Err(error) => {
                let _ = std::fs::remove_dir(&folder);
                Err(error)
            }
        }
    }
}

impl std::ops::Deref for ScratchCgroup {
    type Target = Cgroup;

    fn deref(&self) -> &Cgroup {
        &self.cgroup
    }
}

impl Drop for ScratchCgroup {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir(&self.folder) {
            tracing::warn!(cgroup = %self.folder.display(), %error, "cannot remove a cgroup of the self-test");
        }
    }
}

/// A device node on a tmpfs that is mounted nowhere, so that nobody can find it and no `nodev` holds.
pub(super) struct ScratchNode {
    folder: OwnedFd,
    name: CString,
}

impl ScratchNode {
    /// Makes the node; its device need not exist. Needs `CAP_SYS_ADMIN` and `CAP_MKNOD` (Linux 5.2).
    pub(super) fn new(device: DeviceNumber) -> io::Result<Self> {
        let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_create(context.as_fd())?;
        let folder = fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
        let name = c"node".to_owned();
        let kind = if device.is_block() { FileType::BlockDevice } else { FileType::CharacterDevice };
        let number = rustix::fs::makedev(device.major(), device.minor());
        mknodat(&folder, &name, kind, Mode::from_raw_mode(0o600), number)?;
        Ok(Self { folder, name })
    }

    /// Where the node is.
    pub(super) fn folder(&self) -> BorrowedFd<'_> {
        self.folder.as_fd()
    }

    /// What it is called there.
    pub(super) fn name(&self) -> &std::ffi::CStr {
        &self.name
    }
}
