//! Telling the host's file systems from the container's own.

use std::fs::File;
use std::io::{self, Seek};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::mountinfo::{self, Mount};
use crate::executors::device_nodes::refusal::Refusal;

/// What is mounted in the helper's own namespace and, if that is another, in the first process's: the agent itself may run in a
/// container.
///
/// Namespaces are told apart by the ids of their mounts, since each mount is in one namespace, and a look at the namespace of the
/// first process itself takes more power than to read its table.
pub(super) struct HostMounts {
    /// Of both namespaces.
    mounts: Vec<HostMount>,
    /// Those of the first process, if its namespace is not the helper's own.
    first: Vec<u64>,
}

/// What tells one mount of the host.
struct HostMount {
    superblock: String,
    shared: Option<u64>,
}

/// The mount tables of the host, kept by the server: they can be long, and change when containers start, not when they are visited.
pub(super) struct HostTables {
    proc_root: PathBuf,
    known: Option<Known>,
}

/// Tables as they were read.
struct Known {
    mounts: Rc<HostMounts>,
    /// They tell of every mount and unmount since they were opened (`proc_pid_mounts(5)`).
    files: [File; 2],
}

impl HostTables {
    /// `proc_root` is a procfs of the host's pid namespace.
    pub(super) fn new(proc_root: PathBuf) -> Self {
        Self { proc_root, known: None }
    }

    /// What is mounted now.
    ///
    /// The kernel does not tell that a mount has become shared. That loses nothing but the better of two reasons: mounts that
    /// share what is mounted on them are of one file system, so such a mount is objected to in any case.
    pub(super) fn now(&mut self) -> io::Result<Rc<HostMounts>> {
        if let Some(known) = &self.known
            && !known.have_changed()?
        {
            return Ok(known.mounts.clone());
        }
        self.known = None;
        Ok(self.known.insert(Known::read(&self.proc_root)?).mounts.clone())
    }
}

impl Known {
    fn read(proc_root: &Path) -> io::Result<Self> {
        let open = |path: &str| File::open(proc_root.join(path));
        let files = [open("self/mountinfo")?, open("1/mountinfo")?];
        let [own, first] = &files;
        let id = |table: &File| Ok::<_, io::Error>(mountinfo::first(rewound(table)?)?.map(|mount| mount.id));
        let mut host = HostMounts { mounts: Vec::new(), first: Vec::new() };
        if id(own)? != id(first)? {
            for mount in mountinfo::mounts(rewound(first)?) {
                let mount = mount?;
                host.first.push(mount.id);
                host.mounts.push(HostMount::from(mount));
            }
        }
        for mount in mountinfo::mounts(rewound(own)?) {
            host.mounts.push(HostMount::from(mount?));
        }
        Ok(Self { mounts: Rc::new(host), files })
    }

    fn have_changed(&self) -> rustix::io::Result<bool> {
        let [own, first] = &self.files;
        let mut polled = [own, first].map(|table| PollFd::new(table, PollFlags::PRI));
        Ok(poll(&mut polled, Some(&Timespec::default()))? > 0)
    }
}

impl HostMounts {
    /// Whether a process (its directory in procfs) is in the mount namespace of the first process, if that is not the helper's own.
    pub(super) fn first_is_shared_with(&self, process: &OwnedFd) -> io::Result<bool> {
        if self.first.is_empty() {
            return Ok(false);
        }
        // A process that sees no mount has a root directory below which none is; then nothing is known about its namespace.
        let Some(seen) = mountinfo::read(process.as_fd())?.next().transpose()? else { return Ok(true) };
        Ok(self.first.contains(&seen.id))
    }

    /// Why nothing may be made on this mount of the container, which stands at `path`.
    ///
    /// A tmpfs that is not mounted on the host is the container's own. It may well be shared with namespaces that the container made itself.
    pub(super) fn objection(&self, mount: &Mount, path: &str) -> Option<Refusal> {
        if mount.fs_type == "devtmpfs" {
            return Some(Refusal::HostDev { path: path.to_owned() });
        }
        if mount.fs_type != "tmpfs" {
            return Some(Refusal::DevNotTmpfs { fstype: mount.fs_type.clone() });
        }
        for host in &self.mounts {
            if mount.shared.is_some() && host.shared == mount.shared {
                return Some(Refusal::SharedDev { path: path.to_owned() });
            }
            if host.superblock == mount.superblock {
                return Some(Refusal::HostDev { path: path.to_owned() });
            }
        }
        None
    }
}

impl From<Mount> for HostMount {
    fn from(mount: Mount) -> Self {
        Self { superblock: mount.superblock, shared: mount.shared }
    }
}

fn rewound(table: &File) -> io::Result<File> {
    let mut table = table.try_clone()?;
    table.rewind()?;
    Ok(table)
}
