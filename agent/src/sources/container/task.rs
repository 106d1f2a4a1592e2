//! From the process id that a runtime names to the cgroup that is the container's.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use devgate_core::{Cgroup, CgroupId, CgroupProblem, RuntimeId, Task};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::cgroup_path;
use crate::executors::enforcer::{CgroupError, CgroupRoot};

/// `/proc/PID/cgroup` has one line for each hierarchy; this holds any number of long ones.
const CGROUP_FILE_LIMIT: u64 = 1 << 16;

/// Finds where a container's first process is.
pub trait FindTask {
    /// The task of `container`, of which the runtime says that `pid` is the first process. `told` is the path that the
    /// runtime was told to use, if that is known.
    fn find(&self, container: &RuntimeId, pid: u32, told: Option<&str>) -> Result<Task, TaskProblem>;
}

/// Why a process is not taken for a container's.
#[derive(Debug, thiserror::Error)]
pub enum TaskProblem {
    /// It has ended, or there never was one.
    #[error("process {0} has ended")]
    Ended(u32),
    /// It cannot be looked at.
    #[error("cannot read the cgroup of process {pid}")]
    Read {
        /// Its number.
        pid: u32,
        /// Why not.
        source: io::Error,
    },
    /// It is in no cgroup of the second version.
    #[error("process {0} is in no cgroup of version 2")]
    NoCgroup(u32),
    /// It is somewhere else: most likely the number is another process's by now.
    #[error("process {pid} is not the container's")]
    Refused {
        /// Its number.
        pid: u32,
        /// What is wrong with its cgroup.
        source: CgroupProblem,
    },
    /// The cgroup cannot be opened.
    #[error("the cgroup of process {pid} is not there")]
    Cgroup {
        /// Its number.
        pid: u32,
        /// Why not.
        source: CgroupError,
    },
}

impl TaskProblem {
    /// Whether another look may bring another answer while nothing has happened to the container.
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Read { .. } | Self::Cgroup { .. } => true,
            Self::Ended(_) | Self::NoCgroup(_) | Self::Refused { .. } => false,
        }
    }
}

/// Looks in a procfs and in the hierarchy of cgroups.
#[derive(Debug)]
pub struct TaskFinder {
    proc_root: PathBuf,
    cgroups: CgroupRoot,
}

impl TaskFinder {
    /// `proc_root` is a procfs of the pid namespace that the runtime's numbers are of; `cgroup_root` is where the
    /// hierarchy is mounted, `None` to look where it usually is.
    pub fn open(proc_root: &Path, cgroup_root: Option<&Path>) -> Result<Self, CgroupError> {
        let cgroups = cgroup_root.map_or_else(CgroupRoot::find, CgroupRoot::open)?;
        Ok(Self { proc_root: proc_root.to_owned(), cgroups })
    }

    fn locate(&self, container: &RuntimeId, pid: u32, told: Option<&str>) -> Result<Task, TaskProblem> {
        let text = self.cgroup_file(pid).map_err(|error| unreadable(pid, error))?;
        let path = cgroup_path::unified(&text).ok_or(TaskProblem::NoCgroup(pid))?;
        let path = cgroup_path::own(path, container, told).map_err(|source| TaskProblem::Refused { pid, source })?;
        let cgroup = self.cgroups.cgroup(Path::new(&path)).map_err(|source| TaskProblem::Cgroup { pid, source })?;
        Ok(Task { pid, cgroup: Cgroup { id: CgroupId(cgroup.id()), path } })
    }

    fn cgroup_file(&self, pid: u32) -> io::Result<String> {
        let path = self.proc_root.join(pid.to_string()).join("cgroup");
        let file: OwnedFd = openat(rustix::fs::CWD, &path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let mut text = String::new();
        File::from(file).take(CGROUP_FILE_LIMIT).read_to_string(&mut text)?;
        Ok(text)
    }
}

impl FindTask for TaskFinder {
    /// The number may be stale already. So the process is held by a pidfd before anything is read of it: if it lives
    /// afterwards, all was read of it. That it is the container's follows from the name of its cgroup.
    fn find(&self, container: &RuntimeId, pid: u32, told: Option<&str>) -> Result<Task, TaskProblem> {
        let raw = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(TaskProblem::Ended(pid))?;
        let held = pidfd_open(raw, PidfdFlags::empty()).map_err(|error| unreadable(pid, error.into()))?;
        let task = self.locate(container, pid, told);
        if has_ended(&held).map_err(|error| unreadable(pid, error.into()))? {
            return Err(TaskProblem::Ended(pid));
        }
        task
    }
}

/// A pidfd can be read once its process has ended.
fn has_ended(process: &OwnedFd) -> rustix::io::Result<bool> {
    Ok(poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&Timespec::default()))? > 0)
}

fn unreadable(pid: u32, source: io::Error) -> TaskProblem {
    match Errno::from_io_error(&source) {
        Some(Errno::SRCH | Errno::NOENT) => TaskProblem::Ended(pid),
        _ => TaskProblem::Read { pid, source },
    }
}
