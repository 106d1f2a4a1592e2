use std::collections::{BTreeMap, BTreeSet};

use devgate_abi::DeviceNumber;

use crate::{
    AppliedContainer, AppliedState, CgroupId, DesiredContainer, DesiredState, Generation, GlobalAction, GrantStep,
    ManageStep, PlaceNodeStep, RemoveNodeStep, RevokeStep, RuntimeId, Step, Task,
};

/// What is to be done so that what is applied becomes what is desired.
///
/// First the global actions, then the containers: independent of each other, each in the order of its steps. A grant
/// whose number is among the global actions must not be written before that action has succeeded
/// ([`Plan::without_numbers`]).
///
/// Who carries out plans leaves out a container whose earlier steps are still under way: it is in the next plan again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// What comes before everything else.
    pub global: Vec<GlobalAction>,
    /// The steps of each container that needs any.
    pub containers: BTreeMap<CgroupId, ContainerPlan>,
}

/// What is to be done for one container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerPlan {
    /// The container and its task; `None` if it is gone, and then the only step is [`Step::Release`].
    pub target: Option<(RuntimeId, Task)>,
    /// The steps, in order.
    pub steps: Vec<Step>,
}

impl Plan {
    /// The difference between what is and what should be.
    pub fn new(applied: &AppliedState, desired: &DesiredState) -> Self {
        let voided = voided(applied, desired);
        let cgroups: BTreeSet<_> = applied.containers.keys().chain(desired.containers.keys()).collect();
        let nothing = AppliedContainer::default();
        let containers = cgroups.into_iter().filter_map(|cgroup| {
            let difference = Difference {
                state: applied,
                voided: &voided,
                applied: applied.containers.get(cgroup).unwrap_or(&nothing),
                known: applied.containers.contains_key(cgroup),
            };
            let plan = match desired.containers.get(cgroup) {
                Some(desired) => difference.live(desired),
                None => ContainerPlan { target: None, steps: vec![Step::Release] },
            };
            (!plan.steps.is_empty()).then_some((*cgroup, plan))
        });
        let containers = containers.collect();
        let global = voided.iter().map(|number| GlobalAction::AdvanceEpoch { number: *number }).collect();
        Self { global, containers }
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.global.is_empty() && self.containers.is_empty()
    }

    /// What is left of the plan when the epochs of some numbers could not be advanced: no grant for these, and nothing
    /// that needs one.
    #[must_use]
    pub fn without_numbers(self, numbers: &BTreeSet<DeviceNumber>) -> Self {
        self.without(|_, step| matches!(step, Step::Grant(grant) if numbers.contains(&grant.number)))
    }

    /// The plan without some steps and without what needs them.
    pub(crate) fn without(mut self, mut left_out: impl FnMut(CgroupId, &Step) -> bool) -> Self {
        self.containers.retain(|cgroup, plan| {
            let mut missing: Vec<Step> = Vec::new();
            plan.steps.retain(|step| {
                let out = left_out(*cgroup, step) || missing.iter().any(|earlier| step.needs(earlier));
                if out {
                    missing.push(step.clone());
                }
                !out
            });
            !plan.steps.is_empty()
        });
        self
    }
}

/// The numbers whose epoch must be advanced: those that are known to have lost their device, and those for which some
/// rule was made for another incarnation than the one that is to be granted now, wherever that rule is.
fn voided(applied: &AppliedState, desired: &DesiredState) -> BTreeSet<DeviceNumber> {
    let grants = desired.containers.values().flat_map(|container| &container.grants);
    let present: BTreeMap<DeviceNumber, Generation> =
        grants.map(|(number, grant)| (*number, grant.generation)).collect();
    let rules = applied.containers.values().flat_map(|container| &container.rules);
    let outlived = rules.filter(|(number, rule)| {
        applied.is_current(**number, rule.epoch)
            && present.get(number).is_some_and(|generation| *generation != rule.generation)
    });
    outlived.map(|(number, _)| *number).chain(applied.voided.iter().copied()).collect()
}

/// One container, as it is.
struct Difference<'a> {
    state: &'a AppliedState,
    voided: &'a BTreeSet<DeviceNumber>,
    applied: &'a AppliedContainer,
    known: bool,
}

impl Difference<'_> {
    fn live(&self, desired: &DesiredContainer) -> ContainerPlan {
        // Destructured so that a new field cannot be forgotten here.
        let DesiredContainer { id, task, classes: _, policy, grants: _, nodes: _ } = desired;
        let mut steps = self.revocations(desired);
        steps.extend(self.removals(desired));
        steps.extend(self.grants(desired));
        match policy {
            Some(policy) if self.applied.policy != Some(*policy) => {
                steps.push(Step::Manage(ManageStep { policy: *policy }));
            }
            None if self.known => steps.push(Step::Release),
            _ => {}
        }
        steps.extend(self.placements(desired));
        ContainerPlan { target: Some((id.clone(), task.clone())), steps }
    }

    fn is_current(&self, number: DeviceNumber, epoch: u64) -> bool {
        !self.voided.contains(&number) && self.state.is_current(number, epoch)
    }

    fn revocations<'a>(&'a self, desired: &'a DesiredContainer) -> Vec<Step> {
        let rules = self.applied.rules.keys();
        let unwanted = rules.filter(|number| !desired.grants.contains_key(number));
        unwanted.map(|number| Step::Revoke(RevokeStep { number: *number })).collect()
    }

    fn removals<'a>(&'a self, desired: &'a DesiredContainer) -> impl Iterator<Item = Step> + 'a {
        let unwanted = self.applied.nodes.iter().filter(|(path, _)| !self.has_node(desired, path.as_str()));
        unwanted.map(|(path, node)| Step::RemoveNode(RemoveNodeStep { path: path.clone(), node: *node }))
    }

    /// Whether the node that should be at a path is there.
    fn has_node(&self, desired: &DesiredContainer, path: &str) -> bool {
        match (self.applied.nodes.get(path), desired.nodes.get(path)) {
            (Some(applied), Some(desired)) => {
                applied.number == desired.number
                    && applied.generation == desired.generation
                    && self.is_current(applied.number, applied.epoch)
            }
            _ => false,
        }
    }

    /// Grants that take something away from a rule that holds come before those that give.
    fn grants(&self, desired: &DesiredContainer) -> Vec<Step> {
        let (mut narrowing, mut giving) = (Vec::new(), Vec::new());
        for (number, grant) in &desired.grants {
            let rule = self.applied.rules.get(number).filter(|rule| self.is_current(*number, rule.epoch));
            let same = rule.is_some_and(|rule| {
                rule.access == grant.access
                    && rule.rule == grant.rule
                    && rule.generation == grant.generation
                    && rule.hotplug == grant.hotplug
                    && rule.expires_at == grant.expires_at
            });
            let narrows = rule.is_some_and(|rule| !grant.access.contains(rule.access));
            if !same {
                let step = Step::Grant(GrantStep { number: *number, grant: grant.clone() });
                if narrows { narrowing.push(step) } else { giving.push(step) }
            }
        }
        narrowing.append(&mut giving);
        narrowing
    }

    fn placements<'a>(&'a self, desired: &'a DesiredContainer) -> impl Iterator<Item = Step> + 'a {
        let missing = desired.nodes.iter().filter(|(path, _)| !self.has_node(desired, path.as_str()));
        missing.map(|(path, node)| Step::PlaceNode(PlaceNodeStep { path: path.clone(), node: node.clone() }))
    }
}
