use std::collections::{BTreeMap, BTreeSet};

use devgate_abi::DeviceNumber;

use crate::{Action, ActionOutcome, Backoff, CgroupId, FailureKind, GlobalAction, Moment, NodePath, Plan, Step};

/// The actions that failed, and when each may be tried again.
///
/// An action is remembered by its place, one for each rule, node and so on. When the plan wants something else at that
/// place, because the device or the class has changed, the failure says nothing about it and it is tried at once.
#[derive(Clone, Debug, Default)]
pub struct Retries {
    backoff: Backoff,
    failed: BTreeMap<Place, Failed>,
}

#[derive(Clone, Debug)]
struct Failed {
    action: Action,
    failures: u32,
    /// `None` for never.
    due: Option<Moment>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Epoch(DeviceNumber),
    Rule(CgroupId, DeviceNumber),
    Node(CgroupId, NodePath),
    Policy(CgroupId),
    Cgroup(CgroupId),
}

impl Place {
    fn of(action: &Action) -> Self {
        match action {
            Action::Global(GlobalAction::AdvanceEpoch { number }) => Self::Epoch(*number),
            Action::Container(cgroup, step) => Self::of_step(*cgroup, step),
        }
    }

    fn of_step(cgroup: CgroupId, step: &Step) -> Self {
        match step {
            Step::Revoke(step) => Self::Rule(cgroup, step.number),
            Step::Grant(step) => Self::Rule(cgroup, step.number),
            Step::RemoveNode(step) => Self::Node(cgroup, step.path.clone()),
            Step::PlaceNode(step) => Self::Node(cgroup, step.path.clone()),
            Step::Manage(_) => Self::Policy(cgroup),
            Step::Release => Self::Cgroup(cgroup),
        }
    }

    fn cgroup(&self) -> Option<CgroupId> {
        match self {
            Self::Epoch(_) => None,
            Self::Rule(cgroup, _) | Self::Node(cgroup, _) | Self::Policy(cgroup) | Self::Cgroup(cgroup) => {
                Some(*cgroup)
            }
        }
    }
}

impl Retries {
    /// Nothing has failed yet.
    pub fn new(backoff: Backoff) -> Self {
        Self { backoff, failed: BTreeMap::new() }
    }

    /// Takes in what became of an action, `now`, with a `random` number of the caller.
    pub fn record(&mut self, outcome: &ActionOutcome, now: Moment, random: u64) {
        let place = Place::of(&outcome.action);
        let Err(failure) = &outcome.result else {
            self.failed.remove(&place);
            if let Action::Container(cgroup, Step::Release) = outcome.action {
                self.failed.retain(|place, _| place.cgroup() != Some(cgroup));
            }
            return;
        };
        let before = self.failed.get(&place).filter(|failed| failed.action == outcome.action);
        let failures = before.map_or(0, |failed| failed.failures).saturating_add(1);
        let due = match failure.kind {
            FailureKind::Permanent => None,
            FailureKind::Temporary | FailureKind::Stale | FailureKind::ContainerGone => {
                Some(now.saturating_add(self.backoff.delay(failures, random)))
            }
        };
        self.failed.insert(place, Failed { action: outcome.action.clone(), failures, due });
    }

    /// What of a plan may be done `now`, and when the next thing of the rest may be. Failures that the plan has nothing
    /// to do with any more are forgotten.
    pub fn hold_back(&mut self, plan: Plan, now: Moment) -> (Plan, Option<Moment>) {
        let mut held = BTreeMap::new();
        let mut next: Option<Moment> = None;
        let mut may_go = |place: Place, wants: &dyn Fn(&Action) -> bool| match self.failed.get(&place) {
            Some(failed) if wants(&failed.action) => {
                let go = failed.due.is_some_and(|due| due <= now);
                if !go && let Some(due) = failed.due {
                    next = Some(next.map_or(due, |next| next.min(due)));
                }
                held.insert(place, failed.clone());
                go
            }
            _ => true,
        };
        let mut blocked = BTreeSet::new();
        let Plan { mut global, containers } = plan;
        global.retain(|action| {
            let GlobalAction::AdvanceEpoch { number } = action;
            let go = may_go(Place::Epoch(*number), &|failed| *failed == Action::Global(*action));
            if !go {
                blocked.insert(*number);
            }
            go
        });
        let plan = Plan { global, containers }.without(|cgroup, step| {
            let wants = |failed: &Action| matches!(failed, Action::Container(_, failed) if failed == step);
            !may_go(Place::of_step(cgroup, step), &wants)
        });
        self.failed = held;
        (plan.without_numbers(&blocked), next)
    }
}
