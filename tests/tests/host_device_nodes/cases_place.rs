//! Nodes that appear.

use anyhow::{Result, bail, ensure};
use devgate::executors::device_nodes::{
    Change, DeviceNodes, HelperConfig, HelperProcesses, Outcome, Place, Refusal, Staging,
};
use libtest_mimic::Trial;

use crate::container::Container;
use crate::executor::{NULL, block_on, change, config, executor, must_have, node, path, place, tag, trials};
use crate::spec::{Order, Spec};

pub(crate) fn trials() -> Vec<Trial> {
    trials![
        a_node_appears_with_exact_mode_and_owner,
        b69_a_node_opens_in_a_user_namespace,
        nodes_can_be_made_in_a_namespace_of_the_helper,
        an_owner_without_mapping_is_refused,
        missing_directories_are_made,
        the_stable_path_is_a_second_node,
        placing_twice_is_as_once,
        another_number_replaces_the_node,
        b60_a_device_plugged_again_gets_a_fresh_inode,
        a_node_carries_its_label,
        a_refused_change_does_not_stop_the_others,
    ]
}

// Fault: agent/src/executors/device_nodes/helper/staging.rs
// - chmodat(&self.mount, &node, Mode::from_raw_mode(place.mode & 0o777), AtFlags::empty())
// + chmodat(&self.mount, &node, Mode::from_raw_mode(place.mode & 0o770), AtFlags::empty())
fn a_node_appears_with_exact_mode_and_owner() -> Result<()> {
    let mut container = Container::start(&Spec::default())?;
    block_on(place(&executor()?, &container, node("/dev/scanner")))?;
    must_have(&mut container, "/dev/scanner")?;
    Ok(())
}

// Fault: agent/src/executors/device_nodes/helper/staging.rs
// - let uid = mapped(&id_maps.users, "uid", place.uid)?;
// + let uid = place.uid;
fn b69_a_node_opens_in_a_user_namespace() -> Result<()> {
    let mut container = Container::start(&Spec { user_namespace: true, ..Spec::default() })?;
    block_on(place(&executor()?, &container, node("/dev/bus/usb/001/004")))?;
    must_have(&mut container, "/dev/bus/usb/001/004")?;
    let directory = container.stat("/dev/bus/usb/001")?;
    ensure!(directory.as_ref().is_some_and(|stat| stat.uid == 0), "the container's root owns {directory:?}");
    Ok(())
}

// Fault: agent/src/executors/device_nodes/helper/staging.rs
// - move_mount(&self.mount, "", CWD, "/", MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
// + move_mount(&self.mount, "", CWD, "/", MoveMountFlags::empty())
fn nodes_can_be_made_in_a_namespace_of_the_helper() -> Result<()> {
    for user_namespace in [false, true] {
        let mut container = Container::start(&Spec { user_namespace, ..Spec::default() })?;
        let executor = HelperProcesses::new(HelperConfig { staging: Staging::OwnNamespace, ..config()? });
        block_on(place(&executor, &container, node("/dev/scanner")))?;
        must_have(&mut container, "/dev/scanner")?;
    }
    Ok(())
}

// Fault: agent/src/executors/device_nodes/helper/id_map.rs
// - self.0.iter().find(|range| id.checked_sub(range.inside).is_some_and(|offset| offset < range.count))?;
// + self.0.iter().find(|range| id.checked_sub(range.inside).is_some_and(|_| range.count > 0))?;
fn an_owner_without_mapping_is_refused() -> Result<()> {
    let mut container = Container::start(&Spec { user_namespace: true, ..Spec::default() })?;
    let place = Place { gid: 70_000, ..node("/dev/scanner") };
    let outcome = block_on(async { change(&executor()?, &container, Change::Place(place)).await })?;
    let expected = Refusal::UnmappedOwner { kind: "gid".to_owned(), id: 70_000 };
    ensure!(outcome == Outcome::Refused(expected), "{outcome:?}");
    ensure!(container.stat("/dev/scanner")?.is_none(), "something was made");
    Ok(())
}

// Fault: agent/src/executors/device_nodes/helper/dev_dir.rs
// - Ok(()) | Err(Errno::EXIST) => next = enter(),
// + Ok(()) | Err(Errno::EXIST) => {}
fn missing_directories_are_made() -> Result<()> {
    let mut container = Container::start(&Spec::default())?;
    block_on(place(&executor()?, &container, node("/dev/bus/usb/001/004")))?;
    must_have(&mut container, "/dev/bus/usb/001/004")?;
    let directory = container.stat("/dev/bus/usb")?;
    ensure!(directory.as_ref().is_some_and(|stat| stat.mode == libc::S_IFDIR | 0o755), "{directory:?}");
    Ok(())
}

// Fault: agent/src/executors/device_nodes/helper/staging.rs
// - let directory = index.to_string();
// + let directory = (index / 2).to_string();
fn the_stable_path_is_a_second_node() -> Result<()> {
    let mut container = Container::start(&Spec::default())?;
    let changes = vec![Change::Place(node("/dev/ttyUSB0")), Change::Place(node("/dev/scanner"))];
    let outcomes = block_on(async { Ok(executor()?.visit(&container.find()?, changes).await?) })?;
    let [Outcome::Placed { mount_id: first }, Outcome::Placed { mount_id: second }] = outcomes[..] else {
        bail!("{outcomes:?}");
    };
    let change = Change::Remove { path: path("/dev/ttyUSB0"), mount_id: first };
    block_on(async { Ok(executor()?.visit(&container.find()?, vec![change]).await?) })?;
    ensure!(first != second && container.stat("/dev/ttyUSB0")?.is_none(), "one mount for both");
    must_have(&mut container, "/dev/scanner")?;
    Ok(())
}

// Fault: agent/src/executors/device_nodes/helper/place.rs
// - Found::Ours(mount, facts) if facts == wanted && mount.tag().as_ref() == Some(&place.tag) => {
// + Found::Ours(mount, facts) if facts == wanted && mount.tag().as_ref() != Some(&place.tag) => {
fn placing_twice_is_as_once() -> Result<()> {
    let container = Container::start(&Spec::default())?;
    let first = block_on(async { place(&executor()?, &container, node("/dev/scanner")).await })?;
    let mounts = container.mounts()?;
    let again = block_on(async { change(&executor()?, &container, Change::Place(node("/dev/scanner"))).await })?;
    ensure!(again == Outcome::AlreadyThere { mount_id: first }, "{again:?}");
    ensure!(container.mounts()? == mounts, "mounts have changed");
    Ok(())
}

// Fault: agent/src/executors/device_nodes/helper/place.rs
// - let wanted = NodeFacts { number: place.number, mode: place.mode & 0o777, uid: place.uid, gid: place.gid };
// + let wanted = NodeFacts { number: devgate_abi::DeviceNumber::char(1, 3), mode: 0o642, uid: place.uid, gid: place.gid };
fn another_number_replaces_the_node() -> Result<()> {
    let mut container = Container::start(&Spec::default())?;
    block_on(async {
        let old = Place { number: NULL, ..node("/dev/scanner") };
        place(&executor()?, &container, old).await?;
        let outcome = change(&executor()?, &container, Change::Place(node("/dev/scanner"))).await?;
        ensure!(matches!(outcome, Outcome::Replaced { .. }), "{outcome:?}");
        Ok(())
    })?;
    must_have(&mut container, "/dev/scanner")?;
    ensure!(
        container.mounts()?.iter().filter(|line| line.contains("/dev/scanner")).count() == 1,
        "the old mount stands"
    );
    Ok(())
}

// Fault: agent/src/executors/device_nodes/helper/place.rs
// - Found::Ours(mount, facts) if facts == wanted && mount.tag().as_ref() == Some(&place.tag) => {
// + Found::Ours(mount, facts) if facts == wanted => {
fn b60_a_device_plugged_again_gets_a_fresh_inode() -> Result<()> {
    let mut container = Container::start(&Spec::default())?;
    let device = |container: &Container| -> Result<String> {
        let mounts = container.mounts()?;
        let line = mounts.iter().find(|line| line.contains("/dev/scanner")).map(|line| line.split(' ').nth(2));
        Ok(line.flatten().unwrap_or_default().to_owned())
    };
    block_on(place(&executor()?, &container, node("/dev/scanner")))?;
    // An inode is named by its superblock and its number in it; each visit makes a superblock.
    let before = (device(&container)?, must_have(&mut container, "/dev/scanner")?.inode);
    let again = Place { tag: tag("fuse+2"), ..node("/dev/scanner") };
    let outcome = block_on(async { change(&executor()?, &container, Change::Place(again)).await })?;
    ensure!(matches!(outcome, Outcome::Replaced { .. }), "{outcome:?}");
    let after = (device(&container)?, must_have(&mut container, "/dev/scanner")?.inode);
    ensure!(before != after, "still inode {after:?}");
    Ok(())
}

// Fault: agent/src/executors/device_nodes/helper/staging.rs
// - if let Some(label) = &place.label {
// + if let (Some(label), true) = (&place.label, place.mode == 0) {
fn a_node_carries_its_label() -> Result<()> {
    let container = Container::start(&Spec::default())?;
    let label = "system_u:object_r:container_file_t:s0:c1,c2";
    let labelled = Place { label: Some(label.to_owned()), ..node("/dev/scanner") };
    block_on(place(&executor()?, &container, labelled))?;
    let mut value = vec![0_u8; 256];
    let file = format!("/proc/{}/root/dev/scanner", container.pid);
    let length = rustix::fs::lgetxattr(file, "security.selinux", &mut value[..])?;
    ensure!(&value[..length] == label.as_bytes(), "{:?}", String::from_utf8_lossy(&value[..length]));
    Ok(())
}

// Fault: agent/src/executors/device_nodes/helper/visit.rs
// - changes.into_iter().map(one).map(|result| result.unwrap_or_else(Outcome::Refused)).collect()
// + changes.into_iter().map(one).map(|result| result.unwrap_or_else(Outcome::Refused)).take(2).collect()
fn a_refused_change_does_not_stop_the_others() -> Result<()> {
    let mut container = Container::start(&Spec::default())?;
    container.must(&Order::Mkdir("/dev/taken".to_owned()))?;
    let changes = ["/dev/first", "/dev/taken", "/dev/last"].map(|at| Change::Place(node(at)));
    let outcomes = block_on(async { Ok(executor()?.visit(&container.find()?, changes.to_vec()).await?) })?;
    ensure!(
        matches!(outcomes[..], [Outcome::Placed { .. }, Outcome::Refused(_), Outcome::Placed { .. }]),
        "{outcomes:?}"
    );
    must_have(&mut container, "/dev/first")?;
    must_have(&mut container, "/dev/last")?;
    Ok(())
}
