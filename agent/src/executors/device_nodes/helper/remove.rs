//! Making a node vanish.

use std::ffi::OsStr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, openat2, unlinkat};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};

use super::look::{Found, find_ours, look, mount_id};
use super::mountinfo::Mount;
use super::visit::{Visit, refused};
use crate::executors::device_nodes::change::{DevPath, Outcome};
use crate::executors::device_nodes::refusal::Refusal;

impl Visit {
    /// Unmounts the node of ours with this mount id, wherever it stands now, and deletes the empty file at `path`.
    pub(super) fn remove(&mut self, path: &DevPath, mount_id: u64) -> Result<Outcome, Refusal> {
        let outcome = match find_ours(mount_id, &self.entered)? {
            Some(mount) => {
                self.unmount(&mount, path)?;
                Outcome::Removed
            }
            None => Outcome::Gone,
        };
        self.delete_placeholder(path)?;
        Ok(outcome)
    }

    fn unmount(&self, mount: &Mount, path: &DevPath) -> Result<(), Refusal> {
        let covered = || Refusal::Covered { path: String::from_utf8_lossy(&mount.point).into_owned() };
        let file = match open_mount(&self.root, mount) {
            Ok(file) => file,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Err(covered()),
            Err(errno) => return Err(refused("openat2", path)(errno)),
        };
        if mount_id(&file).map_err(refused("statx", path))? != mount.id {
            return Err(covered());
        }
        // The working directory is the helper's own in the host's procfs: this names the open file and no path of the container.
        unmount(format!("fd/{}", file.as_raw_fd()), UnmountFlags::DETACH).map_err(refused("umount", path))?;
        // If the container has mounted over it since, that mount has gone and ours has not.
        if find_ours(mount.id, &self.entered)?.is_some() { Err(covered()) } else { Ok(()) }
    }

    /// Deletes the file under a node of ours. Anything else at the path, and the directories, stay.
    fn delete_placeholder(&self, path: &DevPath) -> Result<(), Refusal> {
        let Ok(dev) = &self.dev else { return Ok(()) };
        // A directory that is now something else holds no file of ours.
        let Ok(Some((parent, name))) = dev.parent(path, false, &self.entered) else { return Ok(()) };
        if let Found::Placeholder(_) = look(&parent, name, path, dev, self.uid, &self.entered)? {
            match unlinkat(&parent, name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(refused("unlink", path)(errno)),
            }
        }
        Ok(())
    }
}

/// Opens what the mount point of a mount leads to: that mount, unless the container has covered it.
pub(super) fn open_mount(root: &OwnedFd, mount: &Mount) -> rustix::io::Result<OwnedFd> {
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let point = OsStr::from_bytes(&mount.point);
    openat2(root, point, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty(), resolve)
}
