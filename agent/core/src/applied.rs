use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU64;

use devgate_abi::{Access, DeviceNumber};

use crate::{
    Action, ActionOutcome, CgroupId, ContainerPolicy, Done, FailureKind, Generation, GlobalAction, NodePath, RuleId,
    Step,
};

/// What is in the kernel and in the containers, as it was read back and as outcomes have changed it since.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AppliedState {
    /// By cgroup. One that is no container's any more is in here until it is released.
    pub containers: BTreeMap<CgroupId, AppliedContainer>,
    /// The epoch of each number that has one.
    pub epochs: BTreeMap<DeviceNumber, u64>,
    /// Numbers whose epoch is still to be advanced: their device has left, or another one has them.
    pub voided: BTreeSet<DeviceNumber>,
}

/// What is there of one container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AppliedContainer {
    /// Its policy in the kernel; `None` if the kernel does not know the cgroup.
    pub policy: Option<ContainerPolicy>,
    /// Its rules in the kernel.
    pub rules: BTreeMap<DeviceNumber, AppliedRule>,
    /// The nodes that were placed in it.
    pub nodes: BTreeMap<NodePath, AppliedNode>,
}

/// A rule in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AppliedRule {
    /// What it allows.
    pub access: Access,
    /// What it is called.
    pub rule: RuleId,
    /// The mark of the incarnation it was made for.
    pub generation: Generation,
    /// Whether it says that the device can be unplugged.
    pub hotplug: bool,
    /// When it ends, in nanoseconds of `CLOCK_BOOTTIME`.
    pub expires_at: Option<NonZeroU64>,
    /// The epoch of its number in which it was made. At any other one the rule denies.
    pub epoch: u64,
}

/// A node in a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AppliedNode {
    /// Its number.
    pub number: DeviceNumber,
    /// [`DesiredNode::generation`](crate::DesiredNode::generation) of what it was made for.
    pub generation: Generation,
    /// The id of our mount on it, by which it is removed; `None` if nothing of ours is there, because the container has
    /// the host's node at this path.
    pub mount: Option<u64>,
    /// The epoch of its number in which it was made. At any other one it is removed and made anew: the kernel ties a
    /// node that was opened once to the device that was there then.
    pub epoch: u64,
}

impl AppliedState {
    /// Notes that the device that had a number has left. Nothing that was made for the number counts from here on, and
    /// its epoch is to be advanced, if there is anything to void.
    pub fn void(&mut self, number: DeviceNumber) {
        let holds = |container: &AppliedContainer| {
            container.rules.contains_key(&number) || container.nodes.values().any(|node| node.number == number)
        };
        if self.containers.values().any(holds) {
            self.voided.insert(number);
        }
    }

    /// Whether an epoch is that of its number now.
    pub fn is_current(&self, number: DeviceNumber, epoch: u64) -> bool {
        !self.voided.contains(&number) && self.epochs.get(&number).copied().unwrap_or_default() == epoch
    }

    /// Takes in a rule that was found in the kernel after a restart of the agent, and whether its epoch is that of its
    /// number.
    pub fn found_rule(&mut self, cgroup: CgroupId, number: DeviceNumber, rule: AppliedRule, current: bool) {
        self.containers.entry(cgroup).or_default().rules.insert(number, rule);
        // How far the epoch of a void rule's number has come is not known, only that it has gone on.
        self.saw_epoch(number, if current { rule.epoch } else { rule.epoch.saturating_add(1) });
    }

    /// Takes in a node that was found in a container after a restart of the agent. Rules must have been taken in
    /// before: the node is as current as the container's rule for its number.
    pub fn found_node(
        &mut self,
        cgroup: CgroupId,
        path: NodePath,
        number: DeviceNumber,
        generation: Generation,
        mount: u64,
    ) {
        let container = self.containers.entry(cgroup).or_default();
        // Without a rule nothing vouches for the node; an epoch that is never current has it made anew.
        let epoch = container.rules.get(&number).map_or(u64::MAX, |rule| rule.epoch);
        container.nodes.insert(path, AppliedNode { number, generation, mount: Some(mount), epoch });
    }

    /// Takes in what became of an action.
    pub fn record(&mut self, outcome: &ActionOutcome) {
        match (&outcome.action, &outcome.result) {
            (Action::Global(GlobalAction::AdvanceEpoch { number }), Ok(Done::Epoch(epoch))) => {
                self.saw_epoch(*number, *epoch);
                self.voided.remove(number);
            }
            (Action::Container(cgroup, step), Ok(done)) => self.record_step(*cgroup, step, *done),
            (Action::Container(cgroup, _), Err(failure)) if failure.kind == FailureKind::ContainerGone => {
                if let Some(container) = self.containers.get_mut(cgroup) {
                    container.nodes.clear();
                }
            }
            (Action::Global(_), _) | (_, Err(_)) => {}
        }
    }

    fn record_step(&mut self, cgroup: CgroupId, step: &Step, done: Done) {
        if *step == Step::Release {
            self.containers.remove(&cgroup);
            return;
        }
        let container = self.containers.entry(cgroup).or_default();
        match (step, done) {
            (Step::Revoke(revoke), _) => {
                container.rules.remove(&revoke.number);
            }
            (Step::RemoveNode(remove), _) => {
                container.nodes.remove(&remove.path);
            }
            (Step::Grant(step), Done::Epoch(epoch)) => {
                let grant = &step.grant;
                let rule = AppliedRule {
                    access: grant.access,
                    rule: grant.rule,
                    generation: grant.generation,
                    hotplug: grant.hotplug,
                    expires_at: grant.expires_at,
                    epoch,
                };
                container.rules.insert(step.number, rule);
                self.saw_epoch(step.number, epoch);
            }
            (Step::Manage(manage), _) => container.policy = Some(manage.policy),
            (Step::PlaceNode(place), done) => {
                let number = place.node.number;
                let mount = if let Done::Mounted(mount) = done { Some(mount) } else { None };
                let epoch = container.rules.get(&number).map_or(u64::MAX, |rule| rule.epoch);
                let node = AppliedNode { number, generation: place.node.generation, mount, epoch };
                container.nodes.insert(place.path.clone(), node);
            }
            // A grant without an epoch says nothing that could be relied on: it is planned again.
            (Step::Grant(_) | Step::Release, _) => {}
        }
    }

    /// Outcomes can arrive late; epochs only rise.
    fn saw_epoch(&mut self, number: DeviceNumber, epoch: u64) {
        let known = self.epochs.entry(number).or_default();
        *known = (*known).max(epoch);
    }
}
