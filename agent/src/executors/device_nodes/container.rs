//! A running container as the executor needs it: a process that is held by a pidfd, and the cgroup where it must be.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::cgroup::{self, CgroupError};

/// A running container. It goes on to mean the same process when that has exited and its number belongs to another.
#[derive(Debug)]
pub struct ContainerRef {
    pidfd: OwnedFd,
    cgroup_id: u64,
}

/// Why a process number does not lead to a container.
#[derive(Debug, thiserror::Error)]
pub enum ContainerError {
    /// There is no such process, or it has exited meanwhile.
    #[error("process {0} has exited")]
    Gone(u32),
    /// The process cannot be looked at.
    #[error("open process {pid}")]
    Open {
        /// Its number.
        pid: u32,
        /// Why not.
        source: io::Error,
    },
    /// Its cgroup cannot be told.
    #[error("cgroup of process {pid}")]
    Cgroup {
        /// Its number.
        pid: u32,
        /// Why not.
        source: CgroupError,
    },
    /// The process runs somewhere else: the number has been given to a stranger, or the process has moved.
    #[error("process {pid} is in cgroup {path}, which is not the container's, {expected}, nor below it")]
    Stranger {
        /// Its number.
        pid: u32,
        /// Its cgroup.
        path: String,
        /// The id of the cgroup where it should be.
        expected: u64,
    },
}

impl ContainerRef {
    /// Takes hold of a container's first process by its number and the container's cgroup, as the runtime told them.
    ///
    /// The number may be stale. So the process is pinned by a pidfd first, then it must be in that cgroup or in one below
    /// (`…/libpod-ID.scope/container`), and then still be alive: all that was read in between was then read of it. No name
    /// counts here: which cgroup is the container's was decided when it was found.
    pub fn find(pid: u32, cgroup_id: u64, proc_root: &Path, cgroup_root: &Path) -> Result<Self, ContainerError> {
        let cgroup_error = |source| ContainerError::Cgroup { pid, source };
        let raw = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(ContainerError::Gone(pid))?;
        let pidfd = pidfd_open(raw, PidfdFlags::empty()).map_err(|e| open_error(pid, e))?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let process =
            rustix::fs::open(proc_root.join(pid.to_string()), flags, Mode::empty()).map_err(|e| open_error(pid, e))?;
        let path = cgroup::path_of(&process).map_err(cgroup_error)?;
        let ids = cgroup::ids_upwards(cgroup_root, &path).map_err(cgroup_error)?;
        if has_exited(&pidfd).map_err(|e| open_error(pid, e))? {
            return Err(ContainerError::Gone(pid));
        }
        if !ids.contains(&cgroup_id) {
            return Err(ContainerError::Stranger { pid, path, expected: cgroup_id });
        }
        Ok(Self { pidfd, cgroup_id })
    }

    /// A container of which process and cgroup are known already.
    pub fn new(pidfd: OwnedFd, cgroup_id: u64) -> Self {
        Self { pidfd, cgroup_id }
    }

    /// Id of the container's cgroup.
    pub fn cgroup_id(&self) -> u64 {
        self.cgroup_id
    }
}

impl AsFd for ContainerRef {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

/// Whether the process behind a pidfd has exited.
pub(super) fn has_exited(pidfd: impl AsFd) -> rustix::io::Result<bool> {
    let mut polled = [PollFd::new(&pidfd, PollFlags::IN)];
    Ok(poll(&mut polled, Some(&Timespec::default()))? > 0)
}

fn open_error(pid: u32, errno: rustix::io::Errno) -> ContainerError {
    if matches!(errno, rustix::io::Errno::SRCH | rustix::io::Errno::NOENT) {
        ContainerError::Gone(pid)
    } else {
        ContainerError::Open { pid, source: errno.into() }
    }
}
