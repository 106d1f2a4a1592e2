//! Telling the host's file systems from the container's own.

use std::fs::File;
use std::io::{self, Seek};
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, Mode, OFlags, openat, statat};

use super::mountinfo::{self, Mount};
use crate::executors::device_nodes::refusal::Refusal;

/// The mount tables of the helper's own namespace and of the first process's, opened before the container is entered.
///
/// They are two where the agent itself runs in a container. They are read only when a container is to be changed.
pub(super) struct HostMounts {
    tables: Vec<File>,
}

impl HostMounts {
    pub(super) fn open(own_process: &OwnedFd, proc: &OwnedFd) -> rustix::io::Result<Self> {
        let table = |directory: &OwnedFd, path: &str| {
            openat(directory, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map(File::from)
        };
        let mut tables = vec![table(own_process, "mountinfo")?];
        let own = statat(own_process, "ns/mnt", AtFlags::empty())?;
        let first = statat(proc, "1/ns/mnt", AtFlags::empty())?;
        if (own.st_dev, own.st_ino) != (first.st_dev, first.st_ino) {
            tables.push(table(proc, "1/mountinfo")?);
        }
        Ok(Self { tables })
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
        for table in &self.tables {
            let mut table = table.try_clone()?;
            table.rewind()?;
            for host in mountinfo::mounts(table) {
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
