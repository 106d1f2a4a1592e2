//! Telling the host's file systems from the container's own.

use std::fs::File;
use std::io::{self, Seek};
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags, openat};

use super::mountinfo::{self, Mount};
use crate::executors::device_nodes::refusal::Refusal;

/// The mount tables of the helper's own namespace and, if that is another, of the first process's: the agent itself may run in a
/// container. They are opened before the container is entered and read when needed.
///
/// Namespaces are told apart by the ids of their mounts, since each mount is in one namespace, and a look at the namespace of the
/// first process itself takes more power than to read its table.
pub(super) struct HostMounts {
    own: File,
    first: Option<File>,
}

impl HostMounts {
    pub(super) fn open(own_process: &OwnedFd, proc: &OwnedFd) -> io::Result<Self> {
        let table = |directory: &OwnedFd, path: &str| -> io::Result<File> {
            Ok(openat(directory, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?.into())
        };
        let (own, first) = (table(own_process, "mountinfo")?, table(proc, "1/mountinfo")?);
        let id = |table: &File| Ok::<_, io::Error>(mountinfo::first(rewound(table)?)?.map(|mount| mount.id));
        let same = id(&own)? == id(&first)?;
        Ok(Self { own, first: (!same).then_some(first) })
    }

    /// Whether a process (its directory in procfs) is in the mount namespace of the first process, if that is not the helper's own.
    pub(super) fn first_is_shared_with(&self, process: &OwnedFd) -> io::Result<bool> {
        let Some(first) = &self.first else { return Ok(false) };
        // A process that sees no mount has a root directory below which none is; then nothing is known about its namespace.
        let Some(seen) = mountinfo::read(process)?.next().transpose()? else { return Ok(true) };
        for mount in mountinfo::mounts(rewound(first)?) {
            if mount?.id == seen.id {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Why nothing may be made on this mount of the container, which stands at `path`.
    ///
    /// A tmpfs that is not mounted on the host is the container's own. It may well be shared with namespaces that the container made itself.
    pub(super) fn objection(&self, mount: &Mount, path: &str) -> io::Result<Option<Refusal>> {
        if mount.fs_type == "devtmpfs" {
            return Ok(Some(Refusal::HostDev { path: path.to_owned() }));
        }
        if mount.fs_type != "tmpfs" {
            return Ok(Some(Refusal::DevNotTmpfs { fstype: mount.fs_type.clone() }));
        }
        for table in std::iter::once(&self.own).chain(&self.first) {
            for host in mountinfo::mounts(rewound(table)?) {
                let host = host?;
                if mount.shared.is_some() && host.shared == mount.shared {
                    return Ok(Some(Refusal::SharedDev { path: path.to_owned() }));
                }
                if host.superblock == mount.superblock {
                    return Ok(Some(Refusal::HostDev { path: path.to_owned() }));
                }
            }
        }
        Ok(None)
    }
}

fn rewound(table: &File) -> io::Result<File> {
    let mut table = table.try_clone()?;
    table.rewind()?;
    Ok(table)
}
