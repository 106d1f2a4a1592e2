//! Making a node appear.

use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, Mode, OFlags, openat, unlinkat};
use rustix::io::Errno;
use rustix::mount::{MoveMountFlags, move_mount};

use super::look::{Found, PLACEHOLDER_MODE, look, mount_id};
use super::visit::{Visit, refused, system};
use crate::executors::device_nodes::change::{NodeFacts, Outcome, Place};
use crate::executors::device_nodes::refusal::{FileKind, Refusal};

/// How often the container may get in between looking and creating before that is called an error.
const ATTEMPTS: usize = 8;

impl Visit {
    /// Mounts `node` where `place` says. What is there and not ours stays as it is. Where a container has the host's
    /// `/dev`, nothing is made; the host's own node of that name is as good.
    pub(super) fn place(&mut self, place: &Place, node: &OwnedFd) -> Result<Outcome, Refusal> {
        match self.place_own(place, node) {
            Err(Refusal::HostDev { path }) if self.host_node(&place.path, &path) == Some(place.number) => {
                Ok(Outcome::NotOurs)
            }
            result => result,
        }
    }

    fn place_own(&mut self, place: &Place, node: &OwnedFd) -> Result<Outcome, Refusal> {
        let path = &place.path;
        let wanted = NodeFacts { number: place.number, mode: place.mode & 0o777, uid: place.uid, gid: place.gid };
        let mut replaced = false;
        for _ in 0..ATTEMPTS {
            let dev = self.dev.as_ref().map_err(Clone::clone)?;
            let Some((parent, name)) = dev.parent(path, true, &self.entered)? else {
                return Err(system("mkdir", path.as_str(), Errno::NOENT));
            };
            let (target, made) = match look(&parent, name, path, dev, self.uid, &self.entered)? {
                Found::Ours(mount, facts) if facts == wanted && mount.tag().as_ref() == Some(&place.tag) => {
                    return Ok(Outcome::AlreadyThere { mount_id: mount.id });
                }
                Found::Ours(mount, _) => {
                    self.remove(path, mount.id)?;
                    replaced = true;
                    continue;
                }
                Found::Node(number) if number == place.number => return Ok(Outcome::NotOurs),
                Found::Node(_) => return Err(occupied(place, FileKind::Device)),
                Found::Other(kind) => return Err(occupied(place, kind)),
                Found::Placeholder(file) => (file, false),
                Found::Nothing => {
                    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                    match openat(&parent, name, flags, Mode::from_raw_mode(PLACEHOLDER_MODE)) {
                        Ok(file) => (file, true),
                        Err(Errno::EXIST) => continue,
                        Err(errno) => return Err(refused("create", path)(errno)),
                    }
                }
            };
            // Both ends are open files, so the container cannot lead the mount elsewhere by renaming.
            let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
            if let Err(errno) = move_mount(node, "", &target, "", flags) {
                if made {
                    // What remains if this fails is an empty file that the next attempt takes for its own.
                    let _ = unlinkat(&parent, name, AtFlags::empty());
                }
                return Err(refused("move_mount", path)(errno));
            }
            return self.verify(place, wanted, node, replaced);
        }
        Err(system("create", path.as_str(), Errno::BUSY))
    }

    /// Sees that the path now leads to the node: success that nobody can see is no success.
    fn verify(&mut self, place: &Place, wanted: NodeFacts, node: &OwnedFd, replaced: bool) -> Result<Outcome, Refusal> {
        let mount_id = mount_id(node).map_err(refused("statx", &place.path))?;
        match self.leads_to(place, mount_id, wanted) {
            Ok(true) if replaced => Ok(Outcome::Replaced { mount_id }),
            Ok(true) => Ok(Outcome::Placed { mount_id }),
            otherwise => {
                self.remove(&place.path, mount_id)?;
                Err(otherwise.err().unwrap_or_else(|| Refusal::NotVisible { path: place.path.to_string() }))
            }
        }
    }

    fn leads_to(&self, place: &Place, mount_id: u64, wanted: NodeFacts) -> Result<bool, Refusal> {
        let dev = self.dev.as_ref().map_err(Clone::clone)?;
        let Some((parent, name)) = dev.parent(&place.path, false, &self.entered)? else { return Ok(false) };
        let found = look(&parent, name, &place.path, dev, self.uid, &self.entered)?;
        Ok(matches!(found, Found::Ours(mount, facts) if (mount.id, facts) == (mount_id, wanted)))
    }
}

fn occupied(place: &Place, kind: FileKind) -> Refusal {
    Refusal::Occupied { path: place.path.to_string(), kind }
}
