//! The whole life of a node in containers made by the real runc.

use anyhow::{Result, bail, ensure};
use devgate::executors::device_nodes::{Change, DeviceNodes, Outcome};
use libtest_mimic::{Completion, Trial};

use crate::executor::{block_on, executor, node, path, trials};
use crate::runc::{RuncContainer, installed};

pub(crate) fn trials() -> Vec<Trial> {
    if installed() {
        return trials![a_node_lives_in_a_runc_container, a_node_lives_in_a_runc_container_with_a_user_namespace];
    }
    let skipped = |name: &str| Trial::ignorable_test(name, || Ok(Completion::ignored_with("runc is not installed")));
    vec![skipped("a_node_lives_in_a_runc_container"), skipped("a_node_lives_in_a_runc_container_with_a_user_namespace")]
}

// Fault: agent/src/executors/device_nodes/helper/staging.rs
// - let kind = if place.number.is_block() { FileType::BlockDevice } else { FileType::CharacterDevice };
// + let kind = if place.number.is_block() { FileType::CharacterDevice } else { FileType::BlockDevice };
fn a_node_lives_in_a_runc_container() -> Result<()> {
    life(&RuncContainer::start(false)?)
}

// Fault: agent/src/executors/device_nodes/helper/target.rs
// - if let Some(user_namespace) = &self.user_namespace {
// + if let (Some(user_namespace), true) = (&self.user_namespace, self.id_maps.users.root().is_none()) {
fn a_node_lives_in_a_runc_container_with_a_user_namespace() -> Result<()> {
    life(&RuncContainer::start(true)?)
}

fn life(container: &RuncContainer) -> Result<()> {
    let found = container.find()?;
    let at = "/dev/bus/usb/001/004";
    let outcomes = block_on(async { Ok(executor()?.visit(&found, vec![Change::Place(node(at))]).await?) })?;
    let [Outcome::Placed { mount_id }] = outcomes[..] else { bail!("{outcomes:?}") };
    let facts = container.shell(&format!("stat -c '%F %a %u %g %t:%T' {at}"))?;
    ensure!(facts.trim() == "character special file 642 3 20 a:e5", "{facts}");
    // The container has no capability at all: it opens the node by the bits for others, which are -w-.
    container.shell(&format!("exec 3>{at}"))?;
    ensure!(container.shell(&format!("umount {at}")).is_err(), "the container could unmount it");
    ensure!(container.shell(&format!("rm -f {at}")).is_err(), "the container could delete it");
    let change = Change::Remove { path: path(at), mount_id };
    let outcomes = block_on(async { Ok(executor()?.visit(&found, vec![change]).await?) })?;
    ensure!(outcomes == [Outcome::Removed], "{outcomes:?}");
    container.shell(&format!("test ! -e {at} && test -d /dev/bus/usb/001"))?;
    Ok(())
}
