//! Nodes of the host's own in a container that has the host's `/dev`, or a part of it.

use devgate_abi::DeviceNumber;
use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};

use super::dev_dir::{DIRECTORY, NO_LINKS, own_mount};
use super::look::node_facts;
use super::visit::Visit;
use crate::executors::device_nodes::change::DevPath;
use crate::executors::device_nodes::refusal::Refusal;

impl Visit {
    /// The number of the node at `path`, which is on the host's file system that `directory` is on.
    ///
    /// Another mount is not entered, and so no file system asked that may never answer. What the container has put at
    /// `directory` since it was looked at first is looked at again.
    pub(super) fn host_node(&self, path: &DevPath, directory: &str) -> Option<DeviceNumber> {
        let name = path.as_str().strip_prefix(directory)?.strip_prefix('/')?;
        let below = directory.strip_prefix('/')?;
        let opened = openat2(&self.root, below, DIRECTORY, Mode::empty(), ResolveFlags::IN_ROOT | NO_LINKS).ok()?;
        if !matches!(own_mount(&opened, directory, &self.entered), Err(Refusal::HostDev { .. })) {
            return None;
        }
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_XDEV | NO_LINKS;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let node = openat2(&opened, name, flags, Mode::empty(), resolve).ok()?;
        node_facts(node).ok()?.map(|facts| facts.number)
    }
}
