//! What should be in the kernel and in the containers.

mod index;
mod resolve;

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::num::NonZeroU64;
use std::sync::Arc;

use devgate_abi::{Access, DeviceNumber};

use crate::{
    CgroupId, ClassName, DevPath, DeviceId, Enforcement, Generation, Incarnation, NodeOwner, OtherDevices, RuntimeId,
    Step, Task, Warning,
};

pub use index::IndexBook;

/// What should be in the kernel and in the containers, as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DesiredState {
    /// The containers that have a task, by its cgroup; also those that hold no class.
    pub containers: BTreeMap<CgroupId, DesiredContainer>,
    /// What users should know of, in an order that does not change.
    pub warnings: BTreeSet<Warning>,
}

impl DesiredState {
    /// Whether a step of an earlier plan is still right. Who carries out a plan asks before each step, with the newest
    /// desired state; a step that is not wanted any more ends in [`FailureKind::Stale`](crate::FailureKind::Stale).
    pub fn still_wants(&self, cgroup: CgroupId, step: &Step) -> bool {
        let container = self.containers.get(&cgroup);
        match step {
            Step::Grant(step) => container.and_then(|it| it.grants.get(&step.number)) == Some(&step.grant),
            Step::PlaceNode(step) => container.and_then(|it| it.nodes.get(&step.path)) == Some(&step.node),
            Step::Manage(step) => container.and_then(|it| it.policy) == Some(step.policy),
            Step::Revoke(step) => container.is_none_or(|it| !it.grants.contains_key(&step.number)),
            // What was taken away in vain is placed again by the next plan.
            Step::RemoveNode(_) => true,
            Step::Release => container.is_none_or(|it| it.policy.is_none()),
        }
    }
}

/// What should hold for one container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredContainer {
    /// Who it is.
    pub id: RuntimeId,
    /// Its task.
    pub task: Task,
    /// The usable classes that it holds.
    pub classes: BTreeSet<ClassName>,
    /// What holds for every device; `None` if it holds no class and the kernel need not know of it.
    pub policy: Option<ContainerPolicy>,
    /// What it may do with which device.
    pub grants: BTreeMap<DeviceNumber, Grant>,
    /// The nodes that should be in it, by their path.
    pub nodes: BTreeMap<NodePath, DesiredNode>,
}

/// What holds in a container for every device: the strictest of what its classes say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContainerPolicy {
    /// For the devices that no class gives to it.
    pub other_devices: OtherDevices,
    /// Whether verdicts are changed at all.
    pub enforcement: Enforcement,
}

/// What one container may do with one device number, as long as it is this incarnation's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// What it may do: all that the classes together allow.
    pub access: Access,
    /// The classes that give the device, in the order of their names; never empty.
    pub classes: Vec<ClassName>,
    /// The device.
    pub device: DeviceId,
    /// Where the device is in sysfs, for the look that precedes the grant.
    pub devpath: DevPath,
    /// Which stay of the device is meant.
    pub incarnation: Incarnation,
    /// The mark of the incarnation that the kernel rule carries.
    pub generation: Generation,
    /// The name of the kernel rule.
    pub rule: RuleId,
    /// Whether the device can be unplugged, so that the grant may need a living guard.
    pub hotplug: bool,
    /// When the grant ends, in nanoseconds of `CLOCK_BOOTTIME`.
    pub expires_at: Option<NonZeroU64>,
}

/// A node that should be in a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredNode {
    /// Its number, for which the container has a [`Grant`].
    pub number: DeviceNumber,
    /// Mode and owner as the container sees them.
    pub owner: NodeOwner,
    /// The device.
    pub device: DeviceId,
    /// Which stay of the device is meant.
    pub incarnation: Incarnation,
    /// The mark by which the node is found again after a restart of the agent: it differs wherever number, owner,
    /// device or incarnation do.
    pub generation: Generation,
}

/// The absolute path of a node inside of a container, below `/dev`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodePath(Arc<str>);

impl NodePath {
    /// The path as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for NodePath {
    fn from(path: &str) -> Self {
        Self(path.into())
    }
}

impl Borrow<str> for NodePath {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for NodePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for NodePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// The agent's name for a kernel rule, which audit records carry: made from container, classes and device, so it is the
/// same after a restart of the agent and after a replug.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RuleId(pub u64);

impl fmt::Display for RuleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}
