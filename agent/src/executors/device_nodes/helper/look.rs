//! What stands at a path, seen without following, opening or waiting for it.

use std::os::fd::{AsFd, OwnedFd};

use devgate_abi::{DeviceKind, DeviceNumber};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Statx, StatxFlags, openat2, statx};
use rustix::io::Errno;

use super::dev_dir::DevDir;
use super::mountinfo::{self, Mount};
use super::target::Entered;
use super::visit::{refused, unread};
use crate::executors::device_nodes::change::{DevPath, NodeFacts};
use crate::executors::device_nodes::refusal::{FileKind, Refusal};

/// What stands at a path.
pub(super) enum Found {
    Nothing,
    /// The empty file that a mount of ours stands on, or stood until the container unmounted it.
    Placeholder(OwnedFd),
    /// A node of ours.
    Ours(Mount, NodeFacts),
    /// A node that somebody made on the tmpfs itself.
    Node(DeviceNumber),
    Other(FileKind),
}

/// Permission bits of the empty files that nodes are mounted on. By these bits, size and owner they are known again.
pub(super) const PLACEHOLDER_MODE: u32 = 0;

/// The id of the mount that an open file is on. Asks nothing of its file system.
pub(super) fn mount_id(file: impl AsFd) -> rustix::io::Result<u64> {
    stat(file, StatxFlags::MNT_ID).map(|stat| stat.stx_mnt_id)
}

/// What an open file is, from what the kernel knows already: a file system that never answers is not asked.
fn stat(file: impl AsFd, what: StatxFlags) -> rustix::io::Result<Statx> {
    statx(file, "", AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC, what)
}

/// Opens whatever stands at a name, a symbolic link itself, without doing anything with it.
pub(super) fn open_name(parent: impl AsFd, name: &str) -> rustix::io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    openat2(parent, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty(), resolve)
}

/// The kind of what stands at a name.
pub(super) fn kind_at(parent: impl AsFd, name: &str) -> rustix::io::Result<FileKind> {
    Ok(kind(&stat(open_name(parent, name)?, StatxFlags::TYPE)?))
}

/// Looks at `name` in `parent`, which is a directory on the mount of `dev`.
pub(super) fn look(
    parent: &OwnedFd,
    name: &str,
    path: &DevPath,
    dev: &DevDir,
    uid: u32,
    entered: &Entered,
) -> Result<Found, Refusal> {
    let file = match open_name(parent, name) {
        Ok(file) => file,
        Err(Errno::NOENT) => return Ok(Found::Nothing),
        Err(errno) => return Err(refused("openat2", path)(errno)),
    };
    let id = mount_id(&file).map_err(refused("statx", path))?;
    if id != dev.mount_id {
        let ours = find_ours(id, entered)?;
        // Only now is it known to be on a tmpfs, or to be looked at no further.
        return match ours {
            Some(mount) => Ok(node_facts(&file)
                .map_err(refused("statx", path))?
                .map_or(Found::Other(FileKind::Mount), |facts| Found::Ours(mount, facts))),
            None => Ok(Found::Other(FileKind::Mount)),
        };
    }
    let stat = stat(&file, StatxFlags::BASIC_STATS).map_err(refused("statx", path))?;
    if let Some(facts) = facts(&stat) {
        return Ok(Found::Node(facts.number));
    }
    if is_placeholder(&stat, uid) {
        return Ok(Found::Placeholder(file));
    }
    Ok(Found::Other(kind(&stat)))
}

/// The mount with this id, if it is in the container's namespace and looks like one of ours.
pub(super) fn find_ours(id: u64, entered: &Entered) -> Result<Option<Mount>, Refusal> {
    for mount in mountinfo::read(&entered.own_process).map_err(|e| unread(&e))? {
        let mount = mount.map_err(|e| unread(&e))?;
        if mount.id == id {
            return Ok(mount.tag().is_some().then_some(mount));
        }
    }
    Ok(None)
}

/// The facts about a device node; `None` if the file is something else.
pub(super) fn node_facts(file: impl AsFd) -> rustix::io::Result<Option<NodeFacts>> {
    stat(file, StatxFlags::BASIC_STATS).map(|stat| facts(&stat))
}

fn facts(stat: &Statx) -> Option<NodeFacts> {
    let kind = match FileType::from_raw_mode(stat.stx_mode.into()) {
        FileType::CharacterDevice => DeviceKind::Char,
        FileType::BlockDevice => DeviceKind::Block,
        _ => return None,
    };
    Some(NodeFacts {
        number: DeviceNumber::new(kind, stat.stx_rdev_major, stat.stx_rdev_minor)?,
        mode: u32::from(stat.stx_mode) & 0o7777,
        uid: stat.stx_uid,
        gid: stat.stx_gid,
    })
}

fn is_placeholder(stat: &Statx, uid: u32) -> bool {
    let mode = u32::from(stat.stx_mode);
    FileType::from_raw_mode(mode) == FileType::RegularFile
        && (mode & 0o7777, stat.stx_size, stat.stx_nlink, stat.stx_uid) == (PLACEHOLDER_MODE, 0, 1, uid)
}

fn kind(stat: &Statx) -> FileKind {
    match FileType::from_raw_mode(stat.stx_mode.into()) {
        FileType::Symlink => FileKind::Symlink,
        FileType::Directory => FileKind::Directory,
        FileType::Socket => FileKind::Socket,
        FileType::Fifo => FileKind::Fifo,
        FileType::CharacterDevice | FileType::BlockDevice => FileKind::Device,
        _ => FileKind::File,
    }
}
