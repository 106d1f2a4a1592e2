//! Nodes that vanish, and nodes that are found again.

use anyhow::{Context, Result, ensure};
use devgate::executors::device_nodes::{Change, DeviceNodes, Outcome, PlacedNode, Refusal};
use libtest_mimic::Trial;

use crate::container::Container;
use crate::executor::{FUSE, block_on, change, executor, must_have, node, path, place, tag, trials};
use crate::spec::{Order, Spec};

pub(crate) fn trials() -> Vec<Trial> {
    trials![
        a_removed_node_leaves_nothing_at_its_path,
        removing_in_a_user_namespace,
        nodes_are_found_after_a_restart,
        a_node_that_the_container_unmounted_is_gone,
        a_node_that_the_container_moved_is_removed_there,
        a_node_that_the_container_covered_is_reported,
        a_mount_that_is_not_ours_is_never_removed,
        a_file_that_is_not_ours_is_never_deleted,
        an_imitated_node_is_listed_as_what_it_is,
    ]
}

fn remove(container: &Container, at: &str, mount_id: u64) -> Result<Outcome> {
    block_on(async { change(&executor()?, container, Change::Remove { path: path(at), mount_id }).await })
}

fn list(container: &Container) -> Result<Vec<PlacedNode>> {
    block_on(async { Ok(executor()?.list(&container.find()?).await?) })
}

// Fault: agent/src/executors/device_nodes/helper/look.rs
// - && (mode & 0o7777, stat.stx_size, stat.stx_nlink, stat.stx_uid) == (PLACEHOLDER_MODE, 0, 1, uid)
// + && (mode & 0o7777, stat.stx_size, stat.stx_nlink, stat.stx_uid) == (0o600, 0, 1, uid)
fn a_removed_node_leaves_nothing_at_its_path() -> Result<()> {
    let mut container = Container::start(&Spec::default())?;
    let mounts = container.mounts()?;
    let id = block_on(async { place(&executor()?, &container, node("/dev/bus/usb/001/004")).await })?;
    let outcome = remove(&container, "/dev/bus/usb/001/004", id)?;
    ensure!(outcome == Outcome::Removed, "{outcome:?}");
    ensure!(container.stat("/dev/bus/usb/001/004")?.is_none(), "the file is still there");
    ensure!(container.mounts()? == mounts, "the mount is still there");
    let again = remove(&container, "/dev/bus/usb/001/004", id)?;
    ensure!(again == Outcome::Gone, "{again:?}");
    Ok(())
}

// Fault: agent/src/executors/device_nodes/helper/target.rs
// - let kept = CapabilitySet::SYS_ADMIN | CapabilitySet::DAC_OVERRIDE;
// + let kept = CapabilitySet::DAC_OVERRIDE;
fn removing_in_a_user_namespace() -> Result<()> {
    let mut container = Container::start(&Spec { user_namespace: true, ..Spec::default() })?;
    let id = block_on(async { place(&executor()?, &container, node("/dev/scanner")).await })?;
    let outcome = remove(&container, "/dev/scanner", id)?;
    ensure!(outcome == Outcome::Removed, "{outcome:?}");
    ensure!(container.stat("/dev/scanner")?.is_none(), "the file is still there");
    Ok(())
}

// Fault: agent/src/executors/device_nodes/helper/mountinfo.rs
// - let (index, tag) = root.strip_prefix('/')?.split_once('/')?;
// + let (tag, index) = root.strip_prefix('/')?.split_once('/')?;
fn nodes_are_found_after_a_restart() -> Result<()> {
    for user_namespace in [false, true] {
        let mut container = Container::start(&Spec { user_namespace, ..Spec::default() })?;
        let id = block_on(async { place(&executor()?, &container, node("/dev/bus/usb/001/004")).await })?;
        let nodes = list(&container)?;
        let [found] = &nodes[..] else { anyhow::bail!("{nodes:?}") };
        ensure!((found.path.as_str(), found.mount_id) == ("/dev/bus/usb/001/004", id), "{found:?}");
        ensure!(found.tag == tag("fuse+1"), "{found:?}");
        let facts = found.node.context("it is covered")?;
        ensure!((facts.number, facts.mode, facts.uid, facts.gid) == (FUSE, 0o642, 3, 20), "{facts:?}");
        let outcome = remove(&container, &found.path, found.mount_id)?;
        ensure!(outcome == Outcome::Removed && list(&container)?.is_empty(), "{outcome:?}");
        ensure!(container.stat("/dev/bus/usb/001/004")?.is_none(), "the file is still there");
    }
    Ok(())
}

// Fault: agent/src/executors/device_nodes/helper/place.rs
// - Found::Placeholder(file) => (file, false),
// + Found::Placeholder(_) => return Err(occupied(place, FileKind::File)),
fn a_node_that_the_container_unmounted_is_gone() -> Result<()> {
    let mut container = Container::start(&Spec::default())?;
    let id = block_on(async { place(&executor()?, &container, node("/dev/scanner")).await })?;
    container.must(&Order::Unmount("/dev/scanner".to_owned()))?;
    ensure!(list(&container)?.is_empty(), "{:?}", list(&container)?);
    // Its empty file serves again, and goes with the next removal.
    block_on(async { place(&executor()?, &container, node("/dev/scanner")).await })?;
    must_have(&mut container, "/dev/scanner")?;
    container.must(&Order::Unmount("/dev/scanner".to_owned()))?;
    let outcome = remove(&container, "/dev/scanner", id)?;
    ensure!(outcome == Outcome::Gone, "{outcome:?}");
    ensure!(container.stat("/dev/scanner")?.is_none(), "the file is still there");
    Ok(())
}

// Fault: agent/src/executors/device_nodes/helper/remove.rs
// - let point = OsStr::from_bytes(&mount.point);
// + let point = OsStr::from_bytes(&mount.point[..mount.point.len().min(12)]);
fn a_node_that_the_container_moved_is_removed_there() -> Result<()> {
    let mut container = Container::start(&Spec::default())?;
    let id = block_on(async { place(&executor()?, &container, node("/dev/scanner")).await })?;
    container.must(&Order::Write { path: "/volume/hidden node".to_owned(), text: String::new() })?;
    container.must(&Order::MoveMount { from: "/dev/scanner".to_owned(), to: "/volume/hidden node".to_owned() })?;
    let nodes = list(&container)?;
    ensure!(nodes.len() == 1 && nodes[0].path == "/volume/hidden node", "{nodes:?}");
    let outcome = remove(&container, "/dev/scanner", id)?;
    ensure!(outcome == Outcome::Removed && list(&container)?.is_empty(), "{outcome:?}");
    ensure!(container.stat("/dev/scanner")?.is_none(), "the file is still there");
    ensure!(container.stat("/volume/hidden node")?.is_some(), "a file of the container's was deleted");
    Ok(())
}

// Fault: agent/src/executors/device_nodes/helper/remove.rs
// - if mount_id(&file).map_err(refused("statx", path))? != mount.id {
// + if mount_id(&file).map_err(refused("statx", path))? == 0 {
fn a_node_that_the_container_covered_is_reported() -> Result<()> {
    let mut container = Container::start(&Spec::default())?;
    let id = block_on(async { place(&executor()?, &container, node("/dev/scanner")).await })?;
    container.must(&Order::ImitateNode { path: "/dev/scanner".to_owned(), tag: "fuse+1".to_owned() })?;
    let mounts = container.mounts()?;
    let outcome = remove(&container, "/dev/scanner", id)?;
    ensure!(outcome == Outcome::Refused(Refusal::Covered { path: "/dev/scanner".to_owned() }), "{outcome:?}");
    ensure!(container.mounts()? == mounts, "mounts have changed");
    Ok(())
}

// Fault: agent/src/executors/device_nodes/helper/look.rs
// - return Ok(mount.tag().is_some().then_some(mount));
// + return Ok(Some(mount));
fn a_mount_that_is_not_ours_is_never_removed() -> Result<()> {
    let mut container = Container::start(&Spec::default())?;
    container.must(&Order::Mkdir("/dev/shm".to_owned()))?;
    container.must(&Order::MountTmpfs("/dev/shm".to_owned()))?;
    let mounts = container.mounts()?;
    let line = mounts.iter().find(|line| line.contains("/dev/shm")).context("it is not mounted")?;
    let id = line.split(' ').next().context("no id")?.parse()?;
    let outcome = remove(&container, "/dev/shm", id)?;
    ensure!(outcome == Outcome::Gone, "{outcome:?}");
    ensure!(container.mounts()? == mounts, "it was unmounted");
    Ok(())
}

// Fault: agent/src/executors/device_nodes/helper/remove.rs
// - if let Found::Placeholder(_) = look(&parent, name, path, dev, self.uid, &self.entered)? {
// + if !matches!(look(&parent, name, path, dev, self.uid, &self.entered)?, Found::Nothing) {
fn a_file_that_is_not_ours_is_never_deleted() -> Result<()> {
    let mut container = Container::start(&Spec::default())?;
    let id = block_on(async { place(&executor()?, &container, node("/dev/scanner")).await })?;
    container.must(&Order::Unmount("/dev/scanner".to_owned()))?;
    container.must(&Order::Write { path: "/dev/scanner".to_owned(), text: "mine".to_owned() })?;
    let outcome = remove(&container, "/dev/scanner", id)?;
    ensure!(outcome == Outcome::Gone, "{outcome:?}");
    ensure!(container.stat("/dev/scanner")?.is_some_and(|stat| stat.size == 4), "the container's file was deleted");
    Ok(())
}

// Fault: agent/src/executors/device_nodes/helper/look.rs
// - .map_or(Found::Other(FileKind::Mount), |facts| Found::Ours(mount, facts))),
// + .map_or(Found::Nothing, |facts| Found::Ours(mount, facts))),
fn an_imitated_node_is_listed_as_what_it_is() -> Result<()> {
    let mut container = Container::start(&Spec::default())?;
    container.must(&Order::ImitateNode { path: "/dev/scanner".to_owned(), tag: "fuse+1".to_owned() })?;
    let nodes = list(&container)?;
    ensure!(nodes.len() == 1 && nodes[0].node.is_none(), "{nodes:?}");
    let refusal = crate::executor::refusal(&container, "/dev/scanner")?;
    let kind = devgate::executors::device_nodes::FileKind::Mount;
    ensure!(refusal == Refusal::Occupied { path: "/dev/scanner".to_owned(), kind }, "{refusal:?}");
    Ok(())
}
