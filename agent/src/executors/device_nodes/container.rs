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
    #[error("process {pid} is in cgroup {path}, which is not one of container {container_id}")]
    Stranger {
        /// Its number.
        pid: u32,
        /// Its cgroup.
        path: String,
        /// The container that was looked for.
        container_id: String,
    },
}

impl ContainerRef {
    /// Looks up the container `container_id` by the number of its first process, as the runtime told it.
    ///
    /// The number may be stale. So the process is pinned by a pidfd first, then its cgroup must carry the container's id, and
    /// then the process must still be alive: all that was read in between was then read of it.
    /// The container's cgroup is the outermost one with the id; the process may be in one below (`…/libpod-ID.scope/container`).
    pub fn find(pid: u32, container_id: &str, proc_root: &Path, cgroup_root: &Path) -> Result<Self, ContainerError> {
        let cgroup_error = |source| ContainerError::Cgroup { pid, source };
        let raw = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(ContainerError::Gone(pid))?;
        let pidfd = pidfd_open(raw, PidfdFlags::empty()).map_err(|e| open_error(pid, e))?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let process =
            rustix::fs::open(proc_root.join(pid.to_string()), flags, Mode::empty()).map_err(|e| open_error(pid, e))?;
        let path = cgroup::path_of(&process).map_err(cgroup_error)?;
        let depth = path.split('/').skip(1).position(|component| carries(component, container_id));
        let Some(depth) = depth else {
            return Err(ContainerError::Stranger { pid, path, container_id: container_id.to_owned() });
        };
        let ids = cgroup::ids_upwards(cgroup_root, &path).map_err(cgroup_error)?;
        if has_exited(&pidfd).map_err(|e| open_error(pid, e))? {
            return Err(ContainerError::Gone(pid));
        }
        Ok(Self { pidfd, cgroup_id: ids[ids.len() - 1 - depth] })
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

/// Whether a cgroup is named after a container, as the runtimes do it: `ID`, `PREFIX-ID`, `PREFIX-ID.scope`.
fn carries(component: &str, container_id: &str) -> bool {
    let name = component.strip_suffix(".scope").unwrap_or(component);
    let prefix = if container_id.is_empty() { None } else { name.strip_suffix(container_id) };
    prefix.is_some_and(|prefix| prefix.is_empty() || prefix.ends_with('-'))
}

fn open_error(pid: u32, errno: rustix::io::Errno) -> ContainerError {
    if matches!(errno, rustix::io::Errno::SRCH | rustix::io::Errno::NOENT) {
        ContainerError::Gone(pid)
    } else {
        ContainerError::Open { pid, source: errno.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cgroup_is_named_after_its_container() {
        for (component, id) in [
            ("c1", "c1"),
            ("cri-containerd-4f2a.scope", "4f2a"),
            ("libpod-4f2a.scope", "4f2a"),
            ("docker-4f2a", "4f2a"),
        ] {
            assert!(carries(component, id), "{component} is {id}'s");
        }
        for (component, id) in
            [("default", "t"), ("c11", "c1"), ("xc1", "c1"), ("", ""), ("system.slice", ""), ("c1.slice", "c1")]
        {
            assert!(!carries(component, id), "{component} is not {id}'s");
        }
    }
}
