//! The container's `/dev`: whether it is the container's own, and the directories in it.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags, ResolveFlags, mkdirat, openat2};
use rustix::io::Errno;

use super::look::{kind_at, mount_id};
use super::mountinfo;
use super::target::Entered;
use super::visit::{refused, system, unread};
use crate::executors::device_nodes::change::DevPath;
use crate::executors::device_nodes::refusal::{FileKind, Refusal};

const DEV: &str = "/dev";
pub(super) const DIRECTORY: OFlags =
    OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// No link leads anywhere, not those of procfs either.
pub(super) const NO_LINKS: ResolveFlags = ResolveFlags::NO_SYMLINKS.union(ResolveFlags::NO_MAGICLINKS);

/// A tmpfs of the container's own, on which files may be made.
pub(super) struct DevDir {
    directory: OwnedFd,
    pub mount_id: u64,
}

impl DevDir {
    /// Opens `/dev` without touching the file system that it is on: one that a container has mounted there may never answer.
    pub(super) fn open(root: &OwnedFd, entered: &Entered) -> Result<Self, Refusal> {
        let resolve = ResolveFlags::IN_ROOT | NO_LINKS;
        let opened = openat2(root, "dev", DIRECTORY, Mode::empty(), resolve);
        let directory = opened.map_err(|errno| match errno {
            Errno::NOENT => Refusal::DevMissing,
            Errno::LOOP => Refusal::DevIsSymlink,
            // With O_NOFOLLOW | O_DIRECTORY a link at the end is "not a directory" to some kernels, as a file is.
            Errno::NOTDIR => match kind_at(root, "dev") {
                Ok(FileKind::Symlink) => Refusal::DevIsSymlink,
                Ok(kind) => Refusal::Occupied { path: DEV.to_owned(), kind },
                Err(errno) => system("openat2", DEV, errno),
            },
            errno => system("openat2", DEV, errno),
        })?;
        let mount_id = own_mount(&directory, DEV, entered)?;
        Ok(Self { directory, mount_id })
    }

    /// The directory where `path` is, and the name in it. Missing directories are made if `make` is given, or else `None` returned.
    ///
    /// All of them are on the very mount at `/dev`: the container may have mounted a directory of the host below it.
    pub(super) fn parent<'p>(
        &self,
        path: &'p DevPath,
        make: bool,
        entered: &Entered,
    ) -> Result<Option<(OwnedFd, &'p str)>, Refusal> {
        let (directories, name) = path.split();
        let mut parent = self.directory.try_clone().map_err(|e| unread(&e))?;
        let mut so_far = DEV.to_owned();
        for component in directories {
            so_far = format!("{so_far}/{component}");
            let enter = || {
                let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_XDEV | NO_LINKS;
                openat2(&parent, component, DIRECTORY, Mode::empty(), resolve)
            };
            let mut next = enter();
            if matches!(next, Err(Errno::NOENT)) {
                if !make {
                    return Ok(None);
                }
                match mkdirat(&parent, component, Mode::from_raw_mode(0o755)) {
                    Ok(()) | Err(Errno::EXIST) => next = enter(),
                    Err(errno) => return Err(refused("mkdir", path)(errno)),
                }
            }
            parent = match next {
                Ok(directory) => directory,
                Err(Errno::XDEV) => return Err(foreign_mount(&parent, component, &so_far, entered)),
                Err(Errno::LOOP | Errno::NOTDIR) => {
                    let kind = kind_at(&parent, component).map_err(refused("stat", path))?;
                    return Err(Refusal::Occupied { path: so_far, kind });
                }
                Err(errno) => return Err(refused("openat2", path)(errno)),
            };
        }
        Ok(Some((parent, name)))
    }
}

/// The mount that a directory is on, if it is a tmpfs of the container's own.
pub(super) fn own_mount(directory: &OwnedFd, path: &str, entered: &Entered) -> Result<u64, Refusal> {
    let id = mount_id(directory).map_err(|e| system("statx", path, e))?;
    for mount in mountinfo::read(&entered.own_process).map_err(|e| unread(&e))? {
        let mount = mount.map_err(|e| unread(&e))?;
        if mount.id == id {
            return entered.host.objection(&mount, path).map_or(Ok(id), Err);
        }
    }
    Err(system("find the mount of", path, Errno::NOENT))
}

/// Why no directory on another mount is used: it is the host's, or the container's business.
fn foreign_mount(parent: impl AsFd, component: &str, path: &str, entered: &Entered) -> Refusal {
    let occupied = Refusal::Occupied { path: path.to_owned(), kind: FileKind::Mount };
    match openat2(parent, component, DIRECTORY, Mode::empty(), ResolveFlags::BENEATH | NO_LINKS) {
        Ok(directory) => match own_mount(&directory, path, entered) {
            Err(refusal @ (Refusal::HostDev { .. } | Refusal::SharedDev { .. })) => refusal,
            _ => occupied,
        },
        Err(_) => occupied,
    }
}
