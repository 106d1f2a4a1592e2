//! A model of what the executors act upon: the kernel's rules and epochs, the nodes in containers, and the devices
//! themselves. It knows at any moment which plug of a device a container can open, whatever anyone believes.

use std::collections::{BTreeMap, BTreeSet};

use devgate_core::{
    Access, Action, ActionOutcome, AppliedRule, AppliedState, CgroupId, ContainerPolicy, DesiredState, DevPath, Device,
    DeviceEvent, DeviceNumber, Done, Event, Failure, FailureKind, Generation, GlobalAction, NodePath, Plan, Reread,
    Step,
};

#[derive(Clone, Debug, Default)]
pub(crate) struct World {
    pub(crate) devices: BTreeMap<DevPath, Device>,
    /// Whether the kernel advances the epoch of a number while its device is removed.
    guarded: bool,
    running: BTreeSet<CgroupId>,
    epochs: BTreeMap<DeviceNumber, u64>,
    policies: BTreeMap<CgroupId, ContainerPolicy>,
    rules: BTreeMap<(CgroupId, DeviceNumber), AppliedRule>,
    nodes: BTreeMap<(CgroupId, NodePath), Node>,
    mounts: u64,
}

#[derive(Clone, Debug)]
struct Node {
    number: DeviceNumber,
    generation: Generation,
    mount: u64,
}

/// What an open in a container comes to, by our rules alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Granted(Access, Generation),
    Denied,
    Unchanged,
}

impl World {
    pub(crate) fn new(guarded: bool) -> Self {
        Self { guarded, ..Self::default() }
    }

    /// The same devices and containers before a kernel that knows nothing.
    pub(crate) fn forgetful(&self, guarded: bool) -> Self {
        let (devices, running) = (self.devices.clone(), self.running.clone());
        Self { devices, guarded, running, ..Self::default() }
    }

    pub(crate) fn plug(&mut self, device: Device) -> Event {
        let devpath = device.devpath.clone();
        self.devices.insert(devpath.clone(), device);
        Event::Device(DeviceEvent::Added { devpath })
    }

    pub(crate) fn unplug(&mut self, devpath: &DevPath) -> Option<Event> {
        let device = self.devices.remove(devpath)?;
        if self.guarded {
            *self.epochs.entry(device.number).or_default() += 1;
        }
        let number = Some(device.number);
        Some(Event::Device(DeviceEvent::Removed { devpath: device.devpath, number }))
    }

    pub(crate) fn by_number(&self, number: DeviceNumber) -> Option<&Device> {
        self.devices.values().find(|device| device.number == number)
    }

    pub(crate) fn reread(&self, paths: &[DevPath]) -> Vec<Reread> {
        let read = |devpath: &DevPath| Reread { devpath: devpath.clone(), device: self.devices.get(devpath).cloned() };
        paths.iter().map(read).collect()
    }

    pub(crate) fn start(&mut self, cgroup: CgroupId) {
        self.running.insert(cgroup);
    }

    /// The container's mount namespace is gone.
    pub(crate) fn stop(&mut self, cgroup: CgroupId) {
        self.running.remove(&cgroup);
        self.nodes.retain(|(owner, _), _| *owner != cgroup);
    }

    fn epoch(&self, number: DeviceNumber) -> u64 {
        self.epochs.get(&number).copied().unwrap_or_default()
    }

    pub(crate) fn verdict(&self, cgroup: CgroupId, number: DeviceNumber) -> Verdict {
        match self.rules.get(&(cgroup, number)) {
            Some(_) if !self.policies.contains_key(&cgroup) => Verdict::Unchanged,
            Some(rule) if rule.epoch == self.epoch(number) => Verdict::Granted(rule.access, rule.generation),
            Some(_) => Verdict::Denied,
            None => Verdict::Unchanged,
        }
    }

    /// All that is granted, by cgroup and number.
    pub(crate) fn granted(&self) -> BTreeMap<(CgroupId, DeviceNumber), (Access, Generation)> {
        let effective = self.rules.iter().filter(|((_, number), rule)| rule.epoch == self.epoch(*number));
        effective.map(|(key, rule)| (*key, (rule.access, rule.generation))).collect()
    }

    /// The paths of the nodes in a container, with their numbers.
    pub(crate) fn nodes(&self, cgroup: CgroupId) -> BTreeMap<String, DeviceNumber> {
        let own = self.nodes.iter().filter(|((owner, _), _)| *owner == cgroup);
        own.map(|((_, path), node)| (path.to_string(), node.number)).collect()
    }

    /// No number is granted to two incarnations, and with a guard none to another than the one that has it.
    pub(crate) fn assert_sound(&self) {
        let mut granted: BTreeMap<DeviceNumber, Generation> = BTreeMap::new();
        for ((_, number), (_, generation)) in self.granted() {
            let other = granted.insert(number, generation);
            assert!(other.is_none_or(|other| other == generation), "{number} is granted to two incarnations");
            let present = self.by_number(number).map(|device| device.incarnation.generation());
            assert!(!self.guarded || present == Some(generation), "{number} is granted to an absent incarnation");
        }
    }

    /// Carries out a plan as executors must, with the newest `desired` state. `meddle` is called between the moment
    /// at which a grant's epoch and device are read and the moment at which the rule is written; `fails` says which
    /// actions fail.
    pub(crate) fn execute(
        &mut self,
        plan: Plan,
        desired: &DesiredState,
        mut meddle: impl FnMut(&mut Self, DeviceNumber),
        mut fails: impl FnMut(&Action) -> bool,
    ) -> Vec<ActionOutcome> {
        let mut outcomes = Vec::new();
        let mut unvoided = BTreeSet::new();
        for action in &plan.global {
            let GlobalAction::AdvanceEpoch { number } = *action;
            let action = Action::Global(*action);
            let result = if fails(&action) {
                unvoided.insert(number);
                Err(failure(FailureKind::Temporary))
            } else {
                let epoch = self.epochs.entry(number).or_default();
                *epoch += 1;
                Ok(Done::Epoch(*epoch))
            };
            self.assert_sound();
            outcomes.push(ActionOutcome { action, result });
        }
        for (cgroup, plan) in plan.without_numbers(&unvoided).containers {
            let mut failed: Vec<Step> = Vec::new();
            for step in plan.steps {
                if failed.iter().any(|earlier| step.needs(earlier)) {
                    failed.push(step);
                    continue;
                }
                let action = Action::Container(cgroup, step.clone());
                let result = if fails(&action) {
                    Err(failure(FailureKind::Temporary))
                } else if desired.still_wants(cgroup, &step) {
                    self.step(cgroup, &step, &mut meddle)
                } else {
                    Err(failure(FailureKind::Stale))
                };
                self.assert_sound();
                if result.is_err() {
                    failed.push(step);
                }
                outcomes.push(ActionOutcome { action, result });
            }
        }
        outcomes
    }

    fn step(
        &mut self,
        cgroup: CgroupId,
        step: &Step,
        meddle: &mut impl FnMut(&mut Self, DeviceNumber),
    ) -> Result<Done, Failure> {
        let visits = matches!(step, Step::RemoveNode(_) | Step::PlaceNode(_));
        if visits && !self.running.contains(&cgroup) {
            return Err(failure(FailureKind::ContainerGone));
        }
        match step {
            Step::Revoke(step) => {
                self.rules.remove(&(cgroup, step.number));
            }
            Step::RemoveNode(step) => {
                let ours = |node: &Node| Some(node.mount) == step.node.mount;
                let key = (cgroup, step.path.clone());
                if self.nodes.get(&key).is_some_and(ours) {
                    self.nodes.remove(&key);
                }
            }
            Step::Grant(step) => {
                let epoch = self.epoch(step.number);
                let present = self.by_number(step.number).map(|device| device.incarnation);
                step.check(present.as_ref()).map_err(|_| failure(FailureKind::Stale))?;
                meddle(self, step.number);
                let grant = &step.grant;
                let rule = AppliedRule {
                    access: grant.access,
                    rule: grant.rule,
                    generation: grant.generation,
                    hotplug: grant.hotplug,
                    expires_at: grant.expires_at,
                    epoch,
                };
                self.rules.insert((cgroup, step.number), rule);
                return Ok(Done::Epoch(epoch));
            }
            Step::Manage(step) => {
                self.policies.insert(cgroup, step.policy);
            }
            Step::PlaceNode(step) => {
                let key = (cgroup, step.path.clone());
                assert!(!self.nodes.contains_key(&key), "{} is placed upon", step.path);
                self.mounts += 1;
                let (number, generation, mount) = (step.node.number, step.node.generation, self.mounts);
                self.nodes.insert(key, Node { number, generation, mount });
                return Ok(Done::Mounted(mount));
            }
            Step::Release => {
                self.policies.remove(&cgroup);
                self.rules.retain(|(owner, _), _| *owner != cgroup);
            }
        }
        Ok(Done::Done)
    }

    /// What an agent that starts finds.
    pub(crate) fn read_back(&self) -> AppliedState {
        let mut applied = AppliedState::default();
        for (cgroup, policy) in &self.policies {
            applied.containers.entry(*cgroup).or_default().policy = Some(*policy);
        }
        for ((cgroup, number), rule) in &self.rules {
            applied.found_rule(*cgroup, *number, *rule, rule.epoch == self.epoch(*number));
        }
        for ((cgroup, path), node) in &self.nodes {
            applied.found_node(*cgroup, path.clone(), node.number, node.generation, node.mount);
        }
        applied
    }
}

fn failure(kind: FailureKind) -> Failure {
    Failure { kind, message: "as the test says".into() }
}
