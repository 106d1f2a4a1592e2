//! Finding the nodes of ours in a container.

use rustix::io::Errno;

use super::look::{mount_id, node_facts};
use super::mountinfo;
use super::remove::open_mount;
use super::target::Entered;
use super::visit::root_directory;
use crate::executors::device_nodes::change::{NodeFacts, PlacedNode};
use crate::executors::device_nodes::refusal::EntryError;

/// No container is given more nodes; one that fakes more makes only its own list useless.
const LIMIT: usize = 4096;

/// Every mount in the container that looks like ours, with what the node under it really is.
pub(super) fn nodes(entered: &Entered) -> Result<Vec<PlacedNode>, EntryError> {
    let failed = |errno: Errno| EntryError::System {
        operation: "read".to_owned(),
        path: "/proc/self/mountinfo".to_owned(),
        errno: errno.raw_os_error(),
    };
    let io_failed = |error: std::io::Error| failed(Errno::from_io_error(&error).unwrap_or(Errno::IO));
    let root = root_directory()?;
    let mut nodes = Vec::new();
    for mount in mountinfo::read(&entered.own_process).map_err(io_failed)? {
        let mount = mount.map_err(io_failed)?;
        let Some(tag) = mount.tag() else { continue };
        if nodes.len() == LIMIT {
            return Err(failed(Errno::OVERFLOW));
        }
        let node = open_mount(&root, &mount)
            .and_then(|file| if mount_id(&file)? == mount.id { node_facts(&file) } else { Ok(None) });
        let node: Option<NodeFacts> = node.unwrap_or_default();
        nodes.push(PlacedNode {
            path: String::from_utf8_lossy(&mount.point).into_owned(),
            mount_id: mount.id,
            tag,
            node,
        });
    }
    Ok(nodes)
}
