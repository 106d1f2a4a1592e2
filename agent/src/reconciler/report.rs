//! What the reconciler tells of its doings.

use std::{collections::BTreeSet, time::Duration};

use devgate_core::{
    Action, ActionOutcome, CgroupId, Changes, ClassName, DesiredState, DeviceId, DeviceNumber, Done, FailureKind,
    GlobalAction, Moment, NodePath, RuleId, RuntimeId, Step, Warning,
};
use tokio::sync::mpsc;

use crate::executors::enforcer::Drift;

/// One thing that was done or seen, for the audit log.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are what their names say; see the variants")]
pub enum Report {
    /// A device with a number came.
    Arrived { device: DeviceId, number: DeviceNumber, devnode: String },
    /// A device left.
    Left { device: DeviceId, number: DeviceNumber },
    /// Every grant of a number was made void.
    Voided { number: DeviceNumber },
    /// A container was granted a device.
    Granted {
        container: RuntimeId,
        device: DeviceId,
        classes: Vec<ClassName>,
        number: DeviceNumber,
        rule: RuleId,
        timing: Timing,
    },
    /// A grant was taken back.
    Revoked { cgroup: CgroupId, container: Option<RuntimeId>, number: DeviceNumber },
    /// A node is in a container.
    NodePlaced {
        container: RuntimeId,
        device: DeviceId,
        number: DeviceNumber,
        path: NodePath,
        timing: Timing,
        visit: Duration,
        done: Moment,
    },
    /// A node is no longer in a container.
    NodeRemoved { container: Option<RuntimeId>, number: DeviceNumber, path: NodePath },
    /// Something could not be done.
    Failed { container: Option<RuntimeId>, step: &'static str, message: String, permanent: bool },
    /// The enforcement was not as it had been left.
    Alarm { message: String },
}

/// When the parts of a round of work were done, on the reconciler's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timing {
    /// The first event of the batch came.
    pub first: Moment,
    /// The batch was taken.
    pub taken: Moment,
    /// Its devices were read again.
    pub reread: Moment,
    /// The plan was made.
    pub planned: Moment,
    /// The kernel had its part; what is done in containers began.
    pub enforced: Moment,
}

impl Timing {
    /// A round that no event began.
    pub(super) fn at(now: Moment) -> Self {
        Self { first: now, taken: now, reread: now, planned: now, enforced: now }
    }
}

/// Sends reports; says each warning and each failure once, until it changes.
pub(super) struct Reporter {
    reports: mpsc::UnboundedSender<Report>,
    timing: Timing,
    warnings: BTreeSet<Warning>,
    failures: BTreeSet<String>,
}

impl Reporter {
    pub(super) fn new(reports: mpsc::UnboundedSender<Report>) -> Self {
        Self { reports, timing: Timing::default(), warnings: BTreeSet::new(), failures: BTreeSet::new() }
    }

    fn send(&self, report: Report) {
        // The audit log ends after the reconciler; without one there is nobody to tell.
        let _ = self.reports.send(report);
    }

    pub(super) fn changes(&self, changes: &Changes) {
        for known in &changes.left {
            self.send(Report::Left { device: known.id.clone(), number: known.device.number });
        }
        for known in &changes.arrived {
            let (device, number) = (known.id.clone(), known.device.number);
            self.send(Report::Arrived { device, number, devnode: known.device.devnode.clone() });
        }
    }

    pub(super) fn warnings(&mut self, desired: &DesiredState) {
        for warning in desired.warnings.difference(&self.warnings) {
            tracing::warn!("{warning}");
        }
        self.warnings.clone_from(&desired.warnings);
    }

    /// The times, so far, of the round whose outcomes come next.
    pub(super) fn acted(&mut self, timing: Timing) {
        self.timing = timing;
    }

    pub(super) fn alarm(&self, drift: &Drift) {
        self.send(Report::Alarm { message: drift.to_string() });
    }

    pub(super) fn outcome(&mut self, desired: &DesiredState, outcome: &ActionOutcome, visit: Duration, now: Moment) {
        let (cgroup, step) = match &outcome.action {
            Action::Global(GlobalAction::AdvanceEpoch { number }) => {
                match &outcome.result {
                    Ok(_) => self.send(Report::Voided { number: *number }),
                    Err(failure) => tracing::error!(%number, %failure, "cannot void the grants of a number"),
                }
                return;
            }
            Action::Container(cgroup, step) => (*cgroup, step),
        };
        let container = desired.containers.get(&cgroup).map(|container| container.id.clone());
        let done = match &outcome.result {
            Ok(done) => *done,
            Err(failure) => {
                let quiet = matches!(failure.kind, FailureKind::Stale | FailureKind::ContainerGone);
                if !quiet && self.failures.insert(format!("{cgroup} {step:?} {failure}")) {
                    let who = container.as_ref().map(ToString::to_string).unwrap_or_default();
                    tracing::warn!(container = who, step = name(step), %failure, "a step has failed");
                    let (message, permanent) = (failure.message.clone(), failure.kind == FailureKind::Permanent);
                    self.send(Report::Failed { container, step: name(step), message, permanent });
                }
                return;
            }
        };
        let timing = self.timing;
        match (step, container) {
            (Step::Grant(step), Some(container)) => self.send(Report::Granted {
                container,
                device: step.grant.device.clone(),
                classes: step.grant.classes.clone(),
                number: step.number,
                rule: step.grant.rule,
                timing: Timing { enforced: now, ..timing },
            }),
            (Step::Revoke(step), container) => {
                self.send(Report::Revoked { cgroup, container, number: step.number });
            }
            (Step::PlaceNode(step), Some(container)) if matches!(done, Done::Mounted(_)) => {
                self.send(Report::NodePlaced {
                    container,
                    device: step.node.device.clone(),
                    number: step.node.number,
                    path: step.path.clone(),
                    timing,
                    visit,
                    done: now,
                });
            }
            (Step::RemoveNode(step), container) => {
                let (number, path) = (step.node.number, step.path.clone());
                self.send(Report::NodeRemoved { container, number, path });
            }
            (Step::Release, _) => {
                let prefix = format!("{cgroup} ");
                self.failures.retain(|failure| !failure.starts_with(&prefix));
            }
            _ => {}
        }
    }
}

fn name(step: &Step) -> &'static str {
    match step {
        Step::Revoke(_) => "revoke",
        Step::RemoveNode(_) => "remove node",
        Step::Grant(_) => "grant",
        Step::Manage(_) => "manage",
        Step::PlaceNode(_) => "place node",
        Step::Release => "release",
    }
}
