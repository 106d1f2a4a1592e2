//! What is said to people about the state, as plain data.

use std::collections::BTreeSet;

use devgate_abi::{Access, DeviceNumber};

use crate::{
    AppliedState, CgroupId, ClassName, ContainerPolicy, DesiredState, DeviceId, Inventory, MatchVerdict, NodePath,
    RuleId, RuntimeId, Warning,
};

/// The whole state at a glance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The devices that some class matches.
    pub devices: Vec<DeviceStatus>,
    /// The containers that hold a class.
    pub containers: Vec<ContainerStatus>,
    /// What users should know of.
    pub warnings: BTreeSet<Warning>,
}

/// A device that some class matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceStatus {
    /// Its id.
    pub id: DeviceId,
    /// Its number.
    pub number: DeviceNumber,
    /// Its node on the host.
    pub devnode: String,
    /// The classes that match it.
    pub classes: Vec<ClassName>,
}

/// A container that holds a class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerStatus {
    /// Who it is.
    pub id: RuntimeId,
    /// Its cgroup.
    pub cgroup: CgroupId,
    /// The classes that it holds.
    pub classes: BTreeSet<ClassName>,
    /// What holds for every device.
    pub policy: ContainerPolicy,
    /// What it is granted.
    pub grants: Vec<GrantStatus>,
}

/// A grant of a container, rule and nodes together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrantStatus {
    /// The device.
    pub device: DeviceId,
    /// Its number.
    pub number: DeviceNumber,
    /// What is granted.
    pub access: Access,
    /// The classes that give it.
    pub classes: Vec<ClassName>,
    /// The kernel rule.
    pub rule: RuleId,
    /// The paths of its nodes in the container.
    pub paths: Vec<NodePath>,
    /// How far it has come.
    pub state: GrantState,
}

/// How far a grant has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GrantState {
    /// The rule is not written yet: the runtime's verdict holds.
    Pending,
    /// The rule holds, but not all nodes are in the container.
    WithoutNode,
    /// Rule and nodes are there.
    Ready,
}

impl Status {
    /// The status of a state.
    pub fn new(inventory: &Inventory, desired: &DesiredState, applied: &AppliedState) -> Self {
        let devices = inventory.devices().filter_map(|known| {
            let matching = inventory.classes().filter(|class| class.contains(&known.device));
            let classes: Vec<_> = matching.map(|class| class.name.clone()).collect();
            let (id, number, devnode) = (known.id.clone(), known.device.number, known.device.devnode.clone());
            (!classes.is_empty()).then_some(DeviceStatus { id, number, devnode, classes })
        });
        let containers = desired.containers.iter().filter_map(|(cgroup, container)| {
            Some(ContainerStatus {
                id: container.id.clone(),
                cgroup: *cgroup,
                classes: container.classes.clone(),
                policy: container.policy?,
                grants: container
                    .grants
                    .keys()
                    .filter_map(|number| grant(desired, applied, *cgroup, *number))
                    .collect(),
            })
        });
        Self { devices: devices.collect(), containers: containers.collect(), warnings: desired.warnings.clone() }
    }
}

fn grant(
    desired: &DesiredState,
    applied: &AppliedState,
    cgroup: CgroupId,
    number: DeviceNumber,
) -> Option<GrantStatus> {
    let container = desired.containers.get(&cgroup)?;
    let wanted = container.grants.get(&number)?;
    let nodes = || container.nodes.iter().filter(|(_, node)| node.number == number);
    let found = applied.containers.get(&cgroup);
    let has_rule = found.and_then(|found| found.rules.get(&number)).is_some_and(|rule| {
        rule.generation == wanted.generation && rule.access == wanted.access && applied.is_current(number, rule.epoch)
    });
    let has_node = |path: &NodePath, generation| {
        let node = found.and_then(|found| found.nodes.get(path));
        node.is_some_and(|node| node.generation == generation && applied.is_current(number, node.epoch))
    };
    let state = if !has_rule {
        GrantState::Pending
    } else if nodes().all(|(path, node)| has_node(path, node.generation)) {
        GrantState::Ready
    } else {
        GrantState::WithoutNode
    };
    Some(GrantStatus {
        device: wanted.device.clone(),
        number,
        access: wanted.access,
        classes: wanted.classes.clone(),
        rule: wanted.rule,
        paths: nodes().map(|(path, _)| path.clone()).collect(),
        state,
    })
}

/// Why a container can, or cannot, open a device, as far as classes and grants decide it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Explanation {
    /// No runtime knows the container.
    NoContainer,
    /// The container has no task, or its cgroup was refused; see the warnings.
    NotServed,
    /// Every container has the device.
    Standard,
    /// No device has the number.
    NoDevice,
    /// A grant says so.
    Granted(GrantStatus),
    /// No class that the container holds gives it the device.
    NotGiven {
        /// The device.
        device: DeviceId,
        /// For each class that the container holds, why the device is not of it.
        held: Vec<(ClassName, MatchVerdict)>,
        /// The classes that would give the device.
        would: Vec<ClassName>,
        /// What holds then.
        policy: Option<ContainerPolicy>,
    },
}

/// Explains one container and one device number.
pub fn explain(
    inventory: &Inventory,
    desired: &DesiredState,
    applied: &AppliedState,
    container: &RuntimeId,
    number: DeviceNumber,
) -> Explanation {
    let Some(container) = inventory.container(container) else { return Explanation::NoContainer };
    let wanted = container.task().and_then(|task| desired.containers.get_key_value(&task.cgroup.id));
    let Some((cgroup, wanted)) = wanted.filter(|(_, wanted)| wanted.id == container.id) else {
        return Explanation::NotServed;
    };
    if number.is_standard() {
        return Explanation::Standard;
    }
    if let Some(grant) = grant(desired, applied, *cgroup, number) {
        return Explanation::Granted(grant);
    }
    let Some(known) = inventory.device(number) else { return Explanation::NoDevice };
    let held = wanted.classes.iter().filter_map(|name| inventory.class(name));
    let would = inventory.classes().filter(|class| class.contains(&known.device));
    Explanation::NotGiven {
        device: known.id.clone(),
        held: held.map(|class| (class.name.clone(), class.verdict(&known.device))).collect(),
        would: would.map(|class| class.name.clone()).collect(),
        policy: wanted.policy,
    }
}
