//! The one link between the device program and the ancestor.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

use super::{
    cgroup::Cgroup,
    error::EnforcerError,
    sys::{self, LinkInfo},
};

const CGROUP_LINK: u32 = 3;
const CGROUP_DEVICE: u32 = 6;

/// The pinned link. Dropping it changes nothing: the pin holds it.
#[derive(Debug)]
pub(super) struct PinnedLink {
    fd: OwnedFd,
    pin: PathBuf,
}

impl PinnedLink {
    /// Opens the link that is pinned; `None` if nothing is. What is pinned there but is not a device link of a cgroup
    /// is an error, since it is not ours to remove.
    pub(super) fn open(pin: &Path) -> Result<Option<Self>, EnforcerError> {
        let fd = match sys::pinned(pin) {
            Ok(fd) => fd,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(EnforcerError::Call("BPF_OBJ_GET", error)),
        };
        let link = Self { fd, pin: pin.to_owned() };
        match link.info() {
            Ok(info) if info.kind == CGROUP_LINK && matches!(info.attach_type, 0 | CGROUP_DEVICE) => Ok(Some(link)),
            _ => Err(EnforcerError::NotOurLink(pin.to_owned())),
        }
    }

    /// Links the program to the cgroup and pins the link, in the place of one that has lost its cgroup.
    pub(super) fn create(program: BorrowedFd<'_>, cgroup: &Cgroup, pin: &Path) -> Result<Self, EnforcerError> {
        let fd = sys::link_create(program, cgroup.as_fd()).map_err(EnforcerError::call("BPF_LINK_CREATE"))?;
        let link = Self { fd, pin: pin.to_owned() };
        link.verify(program, cgroup)?;
        // The new link is in force before the old pin goes: two of ours change no verdict.
        match std::fs::remove_file(pin) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(EnforcerError::Call("removing the old pin", error)),
        }
        link.pin_again()?;
        Ok(link)
    }

    /// Puts the program into the link, in one step.
    pub(super) fn update(&self, program: BorrowedFd<'_>, cgroup: &Cgroup) -> Result<(), EnforcerError> {
        sys::link_update(self.fd.as_fd(), program).map_err(EnforcerError::call("BPF_LINK_UPDATE"))?;
        self.verify(program, cgroup)
    }

    /// Pins the link once more.
    pub(super) fn pin_again(&self) -> Result<(), EnforcerError> {
        sys::pin(self.fd.as_fd(), &self.pin).map_err(EnforcerError::call("BPF_OBJ_PIN"))
    }

    /// What the kernel says of the link.
    pub(super) fn info(&self) -> Result<LinkInfo, EnforcerError> {
        sys::info(self.fd.as_fd()).map_err(EnforcerError::call("BPF_OBJ_GET_INFO_BY_FD"))
    }

    /// Whether what is pinned is this link.
    pub(super) fn is_pinned(&self) -> Result<bool, EnforcerError> {
        match sys::pinned(&self.pin) {
            Ok(other) => {
                let other: LinkInfo =
                    sys::info(other.as_fd()).map_err(EnforcerError::call("BPF_OBJ_GET_INFO_BY_FD"))?;
                Ok(other.id == self.info()?.id)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(EnforcerError::Call("BPF_OBJ_GET", error)),
        }
    }

    /// Looks whether the kernel did what it said: kernels have been seen to append where they were asked to replace.
    fn verify(&self, program: BorrowedFd<'_>, cgroup: &Cgroup) -> Result<(), EnforcerError> {
        let info: sys::ProgramInfo = sys::info(program).map_err(EnforcerError::call("BPF_OBJ_GET_INFO_BY_FD"))?;
        let attached = sys::attached_programs(cgroup.as_fd()).map_err(EnforcerError::call("BPF_PROG_QUERY"))?;
        let ours = attached.iter().filter(|&&id| id == info.id).count();
        if ours == 1 && self.info()?.program == info.id {
            return Ok(());
        }
        let text = format!("program {} is attached {ours} times after the link was made", info.id);
        Err(EnforcerError::Call("verifying the link", io::Error::other(text)))
    }
}

impl AsFd for PinnedLink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
