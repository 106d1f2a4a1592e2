//! Making nodes on a tmpfs of the host that only the helper can see.

use std::os::fd::OwnedFd;

use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, Uid, XattrFlags, chmodat, chownat, lsetxattr, makedev, mkdirat, mknodat,
};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, fsconfig_create,
    fsconfig_set_string, fsmount, fsopen, mount_change, move_mount, open_tree,
};
use rustix::process::{fchdir, umask};
use rustix::thread::{UnshareFlags, unshare_unsafe};

use super::id_map::{IdMap, IdMaps};
use crate::executors::device_nodes::SOURCE;
use crate::executors::device_nodes::change::{Change, Place};
use crate::executors::device_nodes::protocol::Staging;
use crate::executors::device_nodes::refusal::Refusal;

/// A detached mount of one finished node for each change that places one, in the order of the changes.
pub(super) struct Stage(std::vec::IntoIter<Result<OwnedFd, Refusal>>);

impl Stage {
    pub(super) fn make(changes: &[Change], id_maps: &IdMaps, staging: Staging) -> Self {
        let places: Vec<&Place> = changes
            .iter()
            .filter_map(|change| match change {
                Change::Place(place) => Some(place),
                Change::Remove { .. } => None,
            })
            .collect();
        if places.is_empty() {
            return Self(Vec::new().into_iter());
        }
        let nodes: Vec<_> = match Tmpfs::make(staging) {
            Ok(mut tmpfs) => places.iter().zip(0..).map(|(place, index)| tmpfs.node(index, place, id_maps)).collect(),
            Err(refusal) => places.iter().map(|_| Err(refusal.clone())).collect(),
        };
        Self(nodes.into_iter())
    }

    /// The node of the next change that places one.
    pub(super) fn next(&mut self) -> Result<OwnedFd, Refusal> {
        self.0.next().unwrap_or_else(|| Err(failed("make", "node", Errno::NOENT)))
    }
}

/// The tmpfs, which goes when the last node on it is unmounted. Containers see single files of it, never its directories.
struct Tmpfs {
    mount: OwnedFd,
    attached: bool,
}

impl Tmpfs {
    fn make(staging: Staging) -> Result<Self, Refusal> {
        let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC).map_err(|e| failed("fsopen", "tmpfs", e))?;
        for (key, value) in [("source", SOURCE), ("size", "4k"), ("mode", "0700")] {
            fsconfig_set_string(&context, key, value).map_err(|e| failed("fsconfig", key, e))?;
        }
        fsconfig_create(&context).map_err(|e| failed("fsconfig", "create", e))?;
        // Not MOUNT_ATTR_NODEV, and not NOEXEC either: some devices are mapped executable.
        let mount = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::MOUNT_ATTR_NOSUID)
            .map_err(|e| failed("fsmount", "tmpfs", e))?;
        let mut tmpfs = Self { mount, attached: false };
        if staging == Staging::OwnNamespace {
            tmpfs.attach()?;
        }
        umask(Mode::empty());
        Ok(tmpfs)
    }

    /// Makes one node and clones a mount of it. The mount can be moved anywhere; the node's path in the tmpfs goes with it.
    fn node(&mut self, index: u32, place: &Place, id_maps: &IdMaps) -> Result<OwnedFd, Refusal> {
        let uid = mapped(&id_maps.users, "uid", place.uid)?;
        let gid = mapped(&id_maps.groups, "gid", place.gid)?;
        let directory = index.to_string();
        let node = format!("{directory}/{}", place.tag.as_str());
        let here = |operation: &'static str| move |errno| failed(operation, place.path.as_str(), errno);

        mkdirat(&self.mount, &directory, Mode::RWXU).map_err(here("mkdir"))?;
        let kind = if place.number.is_block() { FileType::BlockDevice } else { FileType::CharacterDevice };
        let device = makedev(place.number.major(), place.number.minor());
        mknodat(&self.mount, &node, kind, Mode::empty(), device).map_err(here("mknod"))?;
        let owner = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
        chownat(&self.mount, &node, owner.0, owner.1, AtFlags::SYMLINK_NOFOLLOW).map_err(here("chown"))?;
        // Last, because chown clears bits.
        chmodat(&self.mount, &node, Mode::from_raw_mode(place.mode & 0o777), AtFlags::empty())
            .map_err(here("chmod"))?;
        if let Some(label) = &place.label {
            // There is no call for "this name in that directory"; opening the node would open the device.
            fchdir(&self.mount).map_err(here("fchdir"))?;
            lsetxattr(&node, "security.selinux", label.as_bytes(), XattrFlags::empty()).map_err(here("setxattr"))?;
        }
        self.clone_mount(&node).map_err(here("open_tree"))
    }

    fn clone_mount(&mut self, node: &str) -> rustix::io::Result<OwnedFd> {
        let flags =
            OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_SYMLINK_NOFOLLOW;
        match open_tree(&self.mount, node, flags) {
            Err(Errno::INVAL) if !self.attached => {
                self.attach().map_err(|_| Errno::INVAL)?;
                open_tree(&self.mount, node, flags)
            }
            tree => tree,
        }
    }

    /// Attaches the tmpfs, in a namespace of the helper's own, since kernels before 6.15 clone attached mounts only.
    fn attach(&mut self) -> Result<(), Refusal> {
        // SAFETY: only CLONE_FILES can harm, and it is not given.
        unsafe { unshare_unsafe(UnshareFlags::NEWNS) }.map_err(|e| failed("unshare", "mnt", e))?;
        mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
            .map_err(|e| failed("mount", "private", e))?;
        move_mount(&self.mount, "", CWD, "/", MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
            .map_err(|e| failed("move_mount", "/", e))?;
        self.attached = true;
        Ok(())
    }
}

fn mapped(map: &IdMap, kind: &str, id: u32) -> Result<u32, Refusal> {
    map.to_host(id).ok_or_else(|| Refusal::UnmappedOwner { kind: kind.to_owned(), id })
}

fn failed(operation: &str, path: &str, errno: Errno) -> Refusal {
    Refusal::System { operation: operation.to_owned(), path: path.to_owned(), errno: errno.raw_os_error() }
}
