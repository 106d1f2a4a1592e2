//! The steps that the kernel takes, at once and in order.

use std::{collections::BTreeMap, path::Path};

use devgate_core::{
    Action, ActionOutcome, CgroupId, DevPath, DeviceNumber, Done, Failure, FailureKind, GlobalAction, GrantStep,
    Incarnation, ManageStep, Plan, RevokeStep, Step, Task,
};

use super::{DeviceReader, Numbers, Reconciler, failure, translate};
use crate::executors::{
    device_nodes::DeviceNodes,
    enforcer::{Cgroup, Enforcer, Epoch, GrantOutcome, Revocation},
};

/// What was seen of a number: its epoch first, then the device that has it.
pub(super) struct Look {
    epoch: Epoch,
    present: BTreeMap<DevPath, Incarnation>,
}

pub(super) type Looks = BTreeMap<DeviceNumber, Result<Look, Failure>>;

impl<E: Enforcer, N: DeviceNodes, R: DeviceReader> Reconciler<E, N, R> {
    /// Advances the epochs that the plan says, before anything else. Returns the numbers for which that failed.
    pub(super) fn advance(&mut self, plan: &Plan) -> Numbers {
        let mut failed = Numbers::new();
        for action in &plan.global {
            let GlobalAction::AdvanceEpoch { number } = *action;
            let advanced = self.enforcer.void(number).and_then(|()| self.enforcer.epoch(number));
            let result = advanced.map(|epoch| Done::Epoch(epoch.value())).map_err(|error| failure::enforcer(&error));
            if result.is_err() {
                failed.insert(number);
            }
            self.finish(&ActionOutcome { action: Action::Global(*action), result });
        }
        failed
    }

    /// Looks at the devices that are to be granted: the epoch of each number, then, for all of them at once, what is
    /// there. A device that goes after this look makes its grants void from birth.
    pub(super) async fn look(&mut self, plan: &Plan) -> Looks {
        let steps = plan.containers.values().flat_map(|plan| &plan.steps);
        let mut wanted: BTreeMap<DeviceNumber, Vec<(DevPath, Incarnation)>> = BTreeMap::new();
        for step in steps {
            if let Step::Grant(GrantStep { number, grant }) = step {
                let paths = wanted.entry(*number).or_default();
                let device = (grant.devpath.clone(), grant.incarnation);
                if !paths.contains(&device) {
                    paths.push(device);
                }
            }
        }
        if wanted.is_empty() {
            return Looks::new();
        }
        let mut looks = Looks::new();
        for number in wanted.keys() {
            let epoch = self.enforcer.epoch(*number);
            let look = epoch.map(|epoch| Look { epoch, present: BTreeMap::new() });
            looks.insert(*number, look.map_err(|error| failure::enforcer(&error)));
        }
        // What was read of a device before holds for as long as it is the same stay of it.
        let devices = wanted.values().flatten().cloned().collect();
        let remaining: BTreeMap<_, _> = self.devices.remain(devices).await.into_iter().collect();
        for (number, devices) in wanted {
            let Some(Ok(look)) = looks.get_mut(&number) else { continue };
            look.present.extend(devices.into_iter().filter(|(path, stay)| remaining.get(path) == Some(stay)));
        }
        looks
    }

    /// Carries out steps of one container. Returns those that were not done.
    pub(super) fn kernel_steps(
        &mut self,
        cgroup: CgroupId,
        task: Option<&Task>,
        steps: Vec<Step>,
        looks: &Looks,
    ) -> Vec<Step> {
        let mut undone: Vec<Step> = Vec::new();
        let mut opened: Option<Result<Cgroup, Failure>> = None;
        for step in steps {
            if undone.iter().any(|earlier| step.needs(earlier)) {
                undone.push(step);
                continue;
            }
            let result = match &step {
                Step::Revoke(RevokeStep { number }) => {
                    let how = self.revocation(cgroup, *number);
                    let revoked = self.enforcer.revoke(cgroup.0, *number, how);
                    revoked.map(|()| Done::Done).map_err(|error| failure::enforcer(&error))
                }
                Step::Release => {
                    self.enforcer.forget(cgroup.0).map(|_| Done::Done).map_err(|error| failure::enforcer(&error))
                }
                Step::Grant(_) | Step::Manage(_) => {
                    let opened = opened.get_or_insert_with(|| self.open(cgroup, task));
                    match opened {
                        Ok(opened) => apply(&mut self.enforcer, opened, &step, looks),
                        Err(failure) => Err(failure.clone()),
                    }
                }
                Step::RemoveNode(_) | Step::PlaceNode(_) => continue,
            };
            if result.is_err() {
                undone.push(step.clone());
            }
            self.finish(&ActionOutcome { action: Action::Container(cgroup, step), result });
        }
        undone
    }

    /// What stays of a rule. While its device is there the runtime's verdict may stand again: it was given for that
    /// device. Once the device is gone the number stays denied for as long as the container lives, since the runtime may
    /// have allowed a number that is another device's next.
    fn revocation(&self, cgroup: CgroupId, number: DeviceNumber) -> Revocation {
        let applied = self.state.applied();
        let rule = applied.containers.get(&cgroup).and_then(|container| container.rules.get(&number));
        match rule {
            Some(rule) if applied.is_current(number, rule.epoch) => Revocation::Forget,
            _ => Revocation::Deny,
        }
    }

    /// Opens a container's cgroup, and sees that it is the one of the plan.
    fn open(&self, cgroup: CgroupId, task: Option<&Task>) -> Result<Cgroup, Failure> {
        let gone = |message: &str| Failure { kind: FailureKind::ContainerGone, message: message.to_owned() };
        let task = task.ok_or_else(|| gone("the container has no task"))?;
        let opened = self.cgroups.cgroup(Path::new(&task.cgroup.path)).map_err(|error| failure::cgroup(&error))?;
        if opened.id() == cgroup.0 { Ok(opened) } else { Err(gone("the cgroup is another one now")) }
    }

    fn finish(&mut self, outcome: &ActionOutcome) {
        let now = self.now();
        self.state.record(outcome, now, rand::random());
        self.reporter.outcome(self.state.desired(), outcome, std::time::Duration::ZERO, now);
    }
}

fn apply(enforcer: &mut impl Enforcer, cgroup: &Cgroup, step: &Step, looks: &Looks) -> Result<Done, Failure> {
    match step {
        Step::Manage(ManageStep { policy }) => enforcer
            .manage(cgroup, translate::policy(*policy))
            .map(|()| Done::Done)
            .map_err(|error| failure::enforcer(&error)),
        Step::Grant(step) => {
            let look = match looks.get(&step.number) {
                Some(Ok(look)) => look,
                Some(Err(failure)) => return Err(failure.clone()),
                None => {
                    let message = "the device was not looked at".to_owned();
                    return Err(Failure { kind: FailureKind::Stale, message });
                }
            };
            step.check(look.present.get(&step.grant.devpath)).map_err(|error| failure::stale(&error))?;
            match enforcer.grant(cgroup, step.number, look.epoch, &translate::grant(&step.grant)) {
                Ok(GrantOutcome::Granted) => Ok(Done::Epoch(look.epoch.value())),
                Ok(GrantOutcome::Withheld(reason)) => Err(failure::withheld(&reason)),
                Err(error) => Err(failure::enforcer(&error)),
            }
        }
        Step::Revoke(_) | Step::RemoveNode(_) | Step::PlaceNode(_) | Step::Release => Ok(Done::Done),
    }
}
