//! The steps that are made inside of containers: each container's in order, containers in parallel.

use std::{
    collections::BTreeSet,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use devgate_core::{
    Action, ActionOutcome, CgroupId, Done, Failure, FailureKind, PlaceNodeStep, RemoveNodeStep, RuntimeId, Step, Task,
};
use futures_util::FutureExt;
use tokio::task::JoinSet;

use super::{failure, report::Timing, tag};
use crate::executors::device_nodes::{
    Change, ContainerRef, DevPath, DeviceNodes, Outcome, Place, PlacedNode, Refusal, VisitError,
};

/// Where processes and cgroups are looked up.
#[derive(Clone, Debug)]
pub struct HostPaths {
    /// A procfs of the host's pid namespace.
    pub proc_root: PathBuf,
    /// Where the cgroup v2 hierarchy is mounted.
    pub cgroup_root: PathBuf,
}

/// The visits that are under way.
pub(super) struct Visits<N> {
    nodes: Arc<N>,
    paths: HostPaths,
    running: JoinSet<Ended>,
    busy: BTreeSet<CgroupId>,
}

/// A container to look into.
pub(super) type Asked = (CgroupId, RuntimeId, Task);

/// Something in a container that has come to its end.
pub(super) enum Ended {
    Visit(Visited),
    Listing(Listed),
}

/// What was found in a container.
pub(super) struct Listed {
    pub(super) asked: Asked,
    pub(super) result: Result<Vec<PlacedNode>, Failure>,
}

/// What a visit came to.
pub(super) struct Visited {
    pub(super) cgroup: CgroupId,
    pub(super) outcomes: Vec<ActionOutcome>,
    /// How long the visit took.
    pub(super) took: Duration,
    /// The times of the round that it is part of.
    pub(super) timing: Timing,
}

impl<N: DeviceNodes> Visits<N> {
    pub(super) fn new(nodes: N, paths: HostPaths) -> Self {
        Self { nodes: Arc::new(nodes), paths, running: JoinSet::new(), busy: BTreeSet::new() }
    }

    /// Whether a visit to the container is under way; another must not begin.
    pub(super) fn is_busy(&self, cgroup: CgroupId) -> bool {
        self.busy.contains(&cgroup)
    }

    /// Begins a visit for the steps that concern nodes, in their order.
    pub(super) fn begin(&mut self, cgroup: CgroupId, id: RuntimeId, task: Task, steps: Vec<Step>, timing: Timing) {
        self.busy.insert(cgroup);
        let (nodes, paths) = (self.nodes.clone(), self.paths.clone());
        self.running.spawn(async move {
            let begun = Instant::now();
            let results = visit(&*nodes, &paths, &id, &task, &steps).await;
            let outcomes = steps.into_iter().zip(results);
            let outcomes =
                outcomes.map(|(step, result)| ActionOutcome { action: Action::Container(cgroup, step), result });
            Ended::Visit(Visited { cgroup, outcomes: outcomes.collect(), took: begun.elapsed(), timing })
        });
    }

    /// Begins to look for the nodes of ours in a container.
    pub(super) fn begin_listing(&mut self, asked: Asked) {
        self.busy.insert(asked.0);
        self.running.spawn(listing(self.nodes.clone(), self.paths.clone(), asked).map(Ended::Listing));
    }

    /// The next visit that ends. Waits for ever while none is under way. Cancel-safe.
    pub(super) async fn next(&mut self) -> Ended {
        loop {
            match self.running.join_next().await {
                Some(Ok(ended)) => {
                    let (Ended::Visit(Visited { cgroup, .. }) | Ended::Listing(Listed { asked: (cgroup, ..), .. })) =
                        &ended;
                    self.busy.remove(cgroup);
                    return ended;
                }
                // A panic ends the process; a task that was aborted is of a reconciler that is ending.
                Some(Err(error)) => tracing::error!(%error, "a visit has failed"),
                None => std::future::pending().await,
            }
        }
    }

    /// Looks for the nodes of ours in containers, all at once, and waits for all of them.
    pub(super) async fn list(&self, containers: Vec<Asked>) -> Vec<Listed> {
        let listings = containers.into_iter().map(|asked| listing(self.nodes.clone(), self.paths.clone(), asked));
        listings.collect::<JoinSet<_>>().join_all().await
    }
}

async fn listing<N: DeviceNodes>(nodes: Arc<N>, paths: HostPaths, asked: Asked) -> Listed {
    let result = match find(&paths, &asked.2) {
        Ok(container) => nodes.list(&container).await.map_err(|error| failure::visit(&error)),
        Err(error) => Err(error),
    };
    Listed { asked, result }
}

fn find(paths: &HostPaths, task: &Task) -> Result<ContainerRef, Failure> {
    ContainerRef::find(task.pid, task.cgroup.id.0, &paths.proc_root, &paths.cgroup_root)
        .map_err(|error| failure::container(&error))
}

type StepResult = Result<Done, Failure>;

async fn visit<N: DeviceNodes>(
    nodes: &N,
    paths: &HostPaths,
    id: &RuntimeId,
    task: &Task,
    steps: &[Step],
) -> Vec<StepResult> {
    let container = match find(paths, task) {
        Ok(container) => container,
        Err(error) => return vec![Err(error); steps.len()],
    };
    // What cannot be asked for gets its answer here; the rest is asked for in one visit.
    let changes: Vec<_> = steps.iter().map(change).collect();
    let asked = changes.iter().filter_map(|change| change.as_ref().ok().cloned()).collect();
    let mut answers = match nodes.visit(&container, asked).await {
        Ok(outcomes) => outcomes.into_iter(),
        Err(error) => {
            let failed = failure::visit(&error);
            if matches!(error, VisitError::Deadline(_) | VisitError::Hanging) {
                tracing::warn!(container = %id, error = %failed, "a container does not let itself be visited");
            }
            return changes.into_iter().map(|change| change.and(Err(failed.clone()))).collect();
        }
    };
    let results = steps.iter().zip(changes).map(|(step, change)| {
        change?;
        answers.next().map_or_else(|| Err(lost()), |outcome| result(step, outcome))
    });
    results.collect()
}

fn lost() -> Failure {
    Failure { kind: FailureKind::Temporary, message: "the helper gave no answer for this change".to_owned() }
}

fn change(step: &Step) -> Result<Change, Failure> {
    let bad = |error: &dyn std::error::Error| Failure { kind: FailureKind::Permanent, message: failure::chain(error) };
    let path = |path: &str| DevPath::try_from(path.to_owned()).map_err(|error| bad(&error));
    match step {
        Step::PlaceNode(PlaceNodeStep { path: at, node }) => Ok(Change::Place(Place {
            path: path(at.as_str())?,
            number: node.number,
            mode: node.owner.mode,
            uid: node.owner.uid,
            gid: node.owner.gid,
            tag: tag::tag(node).map_err(|error| bad(&error))?,
            label: None,
        })),
        Step::RemoveNode(RemoveNodeStep { path: at, node }) => Ok(Change::Remove {
            path: path(at.as_str())?,
            // No mount of ours has the id 0, so nothing is removed for a node that is not ours.
            mount_id: node.mount.unwrap_or(0),
        }),
        Step::Revoke(_) | Step::Grant(_) | Step::Manage(_) | Step::Release => {
            unreachable!("only the steps that concern nodes are made in containers")
        }
    }
}

fn result(step: &Step, outcome: Outcome) -> StepResult {
    match outcome {
        Outcome::Placed { mount_id } | Outcome::AlreadyThere { mount_id } | Outcome::Replaced { mount_id } => {
            Ok(Done::Mounted(mount_id))
        }
        Outcome::NotOurs => Ok(Done::LeftAlone),
        Outcome::Removed | Outcome::Gone => Ok(Done::Done),
        // What cannot be there need not be taken away.
        Outcome::Refused(Refusal::HostDev { .. }) if matches!(step, Step::RemoveNode(_)) => Ok(Done::Done),
        Outcome::Refused(refusal) => Err(failure::refusal(&refusal)),
    }
}
