//! Device nodes that nobody else can find.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use devgate_abi::DeviceNumber;
use rustix::{
    fs::{AtFlags, FileType, Mode, mknodat, unlinkat},
    io::Errno,
    mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen},
};

/// A folder of device nodes on a tmpfs that is mounted nowhere: no `nodev` holds there, and it is gone with its last
/// descriptor.
///
/// A plain tmpfs asks once for each open where an overlay asks twice.
#[derive(Debug)]
pub struct Nodes {
    folder: OwnedFd,
}

impl Nodes {
    /// An empty folder.
    pub fn new() -> io::Result<Self> {
        Self::mounted(MountAttrFlags::empty())
    }

    /// An empty folder whose nodes cannot be opened.
    pub fn nodev() -> io::Result<Self> {
        Self::mounted(MountAttrFlags::MOUNT_ATTR_NODEV)
    }

    fn mounted(attributes: MountAttrFlags) -> io::Result<Self> {
        let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_create(context.as_fd())?;
        let folder = fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
        Ok(Self { folder })
    }

    /// Makes the device's node anew: another inode, to which the kernel has not bound any driver yet.
    pub fn renew(&self, device: DeviceNumber) -> io::Result<()> {
        let name = device.to_string();
        unlinkat(&self.folder, &name, AtFlags::empty())?;
        Ok(make(self.as_fd(), &name, device)?)
    }

    /// Sees to it that there is a node for the device, whether or not the device exists. Returns what it is called.
    pub fn ensure(&self, device: DeviceNumber) -> io::Result<String> {
        ensure(self.as_fd(), device)
    }
}

impl AsFd for Nodes {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.folder.as_fd()
    }
}

/// Sees to it that there is a node for the device. Returns what it is called.
pub(crate) fn ensure(folder: BorrowedFd<'_>, device: DeviceNumber) -> io::Result<String> {
    let name = device.to_string();
    match make(folder, &name, device) {
        Ok(()) | Err(Errno::EXIST) => Ok(name),
        Err(error) => Err(error.into()),
    }
}

/// Makes a node.
pub(crate) fn make(folder: BorrowedFd<'_>, name: &str, device: DeviceNumber) -> Result<(), Errno> {
    let kind = if device.is_block() { FileType::BlockDevice } else { FileType::CharacterDevice };
    let number = rustix::fs::makedev(device.major(), device.minor());
    mknodat(folder, name, kind, Mode::from_raw_mode(0o600), number)
}
