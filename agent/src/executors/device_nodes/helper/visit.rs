//! Carrying out a list of changes inside the container.

use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::dev_dir::DevDir;
use super::staging::Stage;
use super::target::Entered;
use crate::executors::device_nodes::change::{Change, DevPath, Outcome};
use crate::executors::device_nodes::refusal::{EntryError, Refusal};

/// A container that has been entered in order to change it.
pub(super) struct Visit {
    pub entered: Entered,
    /// The container's root directory.
    pub root: OwnedFd,
    /// The container's `/dev`, or why nothing may be made there.
    pub dev: Result<DevDir, Refusal>,
    /// Whose the files are that the helper makes, as the container numbers users.
    pub uid: u32,
}

impl Visit {
    pub(super) fn new(entered: Entered) -> Result<Self, EntryError> {
        let root = root_directory()?;
        let dev = DevDir::open(&root, &entered);
        Ok(Self { entered, root, dev, uid: geteuid().as_raw() })
    }

    /// One outcome for each change; a refused one does not stop the others.
    pub(super) fn apply(&mut self, changes: Vec<Change>, mut stage: Stage) -> Vec<Outcome> {
        let one = |change| match change {
            Change::Place(place) => {
                let node = stage.next();
                node.and_then(|node| self.place(&place, &node))
            }
            Change::Remove { path, mount_id } => self.remove(&path, mount_id),
        };
        changes.into_iter().map(one).map(|result| result.unwrap_or_else(Outcome::Refused)).collect()
    }
}

/// The root directory of the namespace that has been entered.
pub(super) fn root_directory() -> Result<OwnedFd, EntryError> {
    open("/", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).map_err(|errno| EntryError::System {
        operation: "open".to_owned(),
        path: "/".to_owned(),
        errno: errno.raw_os_error(),
    })
}

/// The refusal for a failed system call on a path in the container.
pub(super) fn refused<'a>(operation: &'static str, path: &'a DevPath) -> impl Fn(Errno) -> Refusal + 'a {
    move |errno| match errno {
        Errno::ROFS => Refusal::ReadOnly { path: path.to_string() },
        Errno::NOSPC | Errno::DQUOT => Refusal::NoSpace { path: path.to_string() },
        errno => system(operation, path.as_str(), errno),
    }
}

/// As [`refused`], for a failed read of the mount table.
pub(super) fn unread(error: &std::io::Error) -> Refusal {
    system("read", "/proc/self/mountinfo", Errno::from_io_error(error).unwrap_or(Errno::IO))
}

pub(super) fn system(operation: &str, path: &str, errno: Errno) -> Refusal {
    Refusal::System { operation: operation.to_owned(), path: path.to_owned(), errno: errno.raw_os_error() }
}
