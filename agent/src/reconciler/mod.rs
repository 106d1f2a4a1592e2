//! The one task that owns the state: takes in what the sources saw, plans, and carries plans out.
//!
//! ```text
//! sources ──Event──▶ Batcher ─▶ State ─▶ Plan ─┬─▶ Enforcer (at once, in this task)
//!                      ▲          ▲            └─▶ Visits (a process for each container, in parallel)
//!                      └──────────┴──── ActionOutcome ◀──┘
//! ```
//!
//! What the kernel is told takes microseconds and is done here, revocations before grants. What is done inside of
//! containers may take for ever and is not waited for: the outcomes come back as events do.

mod alarm;
mod carry_out;
mod failure;
mod found;
mod names;
mod report;
mod tag;
mod translate;
mod visits;

use std::{
    collections::BTreeSet,
    future::Future,
    sync::Arc,
    time::{Duration, Instant},
};

use devgate_core::{
    Backoff, Batch, BatchTiming, Batcher, DevPath, Event, Incarnation, Memory, Moment, Reread, State, Step,
};
use tokio::{
    sync::{mpsc, watch},
    time::Instant as TokioInstant,
};

use crate::executors::{
    device_nodes::DeviceNodes,
    enforcer::{CgroupRoot, Drift, Enforcer, EnforcerError},
};

pub use names::{Names, RuleNames};
pub use report::{Report, Timing};
pub use visits::HostPaths;

use alarm::Alarm;
use found::Unlisted;
use report::Reporter;
use visits::{Ended, Visits};

/// Reads devices again: an event is only a hint.
pub trait DeviceReader: Send + Sync + 'static {
    /// What is at these paths now. A path that cannot be read has no answer.
    fn reread(&self, devpaths: Vec<DevPath>) -> impl Future<Output = Vec<Reread>> + Send;

    /// Which of these devices, that were read before, are still there: each the stay that it was.
    fn remain(&self, devices: Vec<(DevPath, Incarnation)>) -> impl Future<Output = Vec<(DevPath, Incarnation)>> + Send;
}

/// What the reconciler works with.
pub struct Parts<E, N, R> {
    /// The kernel.
    pub enforcer: E,
    /// The containers.
    pub nodes: N,
    /// The devices.
    pub devices: R,
    /// Where processes and cgroups are.
    pub paths: HostPaths,
    /// The hierarchy that the containers' cgroups are in.
    pub cgroups: CgroupRoot,
    /// What earlier runs remembered.
    pub memory: Memory,
    /// The kinds of runtime whose lists are waited for.
    pub runtimes: Vec<String>,
}

/// How the reconciler works.
#[derive(Clone, Copy, Debug)]
pub struct Timings {
    /// When batches are due.
    pub batch: BatchTiming,
    /// When what failed is tried again.
    pub backoff: Backoff,
    /// How often everything is compared with the kernel although nothing happened.
    pub resync: Duration,
}

/// What comes in and goes out.
pub struct Wires {
    /// What the sources saw.
    pub events: mpsc::Receiver<Event>,
    /// What was done, for the audit log.
    pub reports: mpsc::UnboundedSender<Report>,
    /// What follows for the sources, the disk and the audit log.
    pub published: watch::Sender<Published>,
    /// True when the agent ends.
    pub stop: watch::Receiver<bool>,
}

/// What others need to know of the state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Published {
    /// Whether every source has said what there is. Before that names may be missing.
    pub complete: bool,
    /// What must be on the disk for later runs.
    pub memory: Memory,
    /// Who is meant by the numbers in the kernel's records.
    pub names: Arc<Names>,
}

/// The task. See the module.
pub struct Reconciler<E, N, R> {
    enforcer: E,
    devices: R,
    cgroups: CgroupRoot,
    visits: Visits<N>,
    state: State,
    batcher: Batcher,
    timings: Timings,
    origin: Instant,
    retry: Option<Moment>,
    resync: Moment,
    found_nodes: bool,
    unlisted: Unlisted,
    settled: bool,
    alarm: Alarm,
    reporter: Reporter,
    wires: Wires,
}

impl<E: Enforcer, N: DeviceNodes, R: DeviceReader> Reconciler<E, N, R> {
    /// Begins with what is in the kernel.
    pub fn new(parts: Parts<E, N, R>, timings: Timings, wires: Wires) -> Result<Self, EnforcerError> {
        let Parts { enforcer, nodes, devices, paths, cgroups, memory, runtimes } = parts;
        let applied = translate::applied(&enforcer.read_back()?);
        Ok(Self {
            state: State::new(applied, &memory, runtimes, timings.backoff),
            batcher: Batcher::new(timings.batch),
            visits: Visits::new(nodes, paths),
            origin: Instant::now(),
            retry: None,
            resync: timings.resync,
            found_nodes: false,
            unlisted: Unlisted::default(),
            settled: false,
            alarm: Alarm::none(),
            reporter: Reporter::new(wires.reports.clone()),
            enforcer,
            devices,
            cgroups,
            timings,
            wires,
        })
    }

    /// Works until it is told to stop. What is enforced stays enforced.
    pub async fn run(mut self) {
        self.alarm = Alarm::new(&self.enforcer);
        loop {
            match self.wait().await {
                Wake::Stop => return,
                Wake::Visit(Ended::Visit(visited)) => self.take_visit(&visited),
                Wake::Visit(Ended::Listing(listed)) => self.take_listed(listed),
                Wake::Event(event) => self.take_events(event),
                Wake::Alarm => self.check(),
                Wake::Time => {}
            }
            if let Some(batch) = self.batcher.take(self.now()) {
                self.take_batch(batch).await;
            }
            let now = self.now();
            if now >= self.resync {
                self.resync();
            }
            if self.unlisted.due.is_some_and(|due| due <= now) {
                self.list_again();
            }
            if self.retry.is_some_and(|retry| retry <= now) {
                self.act(None).await;
            }
        }
    }

    /// Waits for the next thing to do.
    async fn wait(&mut self) -> Wake {
        let due = TokioInstant::from_std(self.origin + self.next_due());
        // Each branch is cancel-safe: a message that was not received stays in its channel, a visit that has not ended
        // goes on in its task, and times are computed anew.
        tokio::select! {
            biased;
            _ = self.wires.stop.wait_for(|stop| *stop) => Wake::Stop,
            visited = self.visits.next() => Wake::Visit(visited),
            event = self.wires.events.recv() => event.map_or(Wake::Stop, Wake::Event),
            () = self.alarm.sounded() => Wake::Alarm,
            () = tokio::time::sleep_until(due) => Wake::Time,
        }
    }

    fn now(&self) -> Moment {
        self.origin.elapsed()
    }

    fn next_due(&self) -> Moment {
        [self.batcher.due(), self.retry, self.unlisted.due].into_iter().flatten().fold(self.resync, Moment::min)
    }

    /// Takes in an event and those that wait behind it.
    fn take_events(&mut self, event: Event) {
        let now = self.now();
        self.batcher.push(event, now);
        while let Ok(event) = self.wires.events.try_recv() {
            self.batcher.push(event, now);
        }
    }

    async fn take_batch(&mut self, batch: Batch) {
        let timing = Timing { first: batch.first, taken: self.now(), ..Timing::default() };
        // Before a removed device is read again its grants are void, also where no guard has seen it go.
        for number in batch.removed.iter().filter_map(|removed| removed.number) {
            if self.state.applied().epochs.contains_key(&number)
                && let Err(error) = self.enforcer.void(number)
            {
                tracing::error!(%number, error = failure::chain(&error), "cannot void the grants of a removed device");
            }
        }
        self.find_nodes(&batch).await;
        let reread = if batch.reread.is_empty() { Vec::new() } else { self.devices.reread(batch.reread.clone()).await };
        let timing = Timing { reread: self.now(), ..timing };
        let changes = self.state.apply(batch, reread);
        self.reporter.changes(&changes);
        self.reporter.warnings(self.state.desired());
        self.publish();
        self.act(Some(timing)).await;
    }

    fn take_visit(&mut self, visited: &visits::Visited) {
        let now = self.now();
        self.reporter.acted(visited.timing);
        for outcome in &visited.outcomes {
            self.state.record(outcome, now, rand::random());
            self.reporter.outcome(self.state.desired(), outcome, visited.took, now);
        }
        // What was put off because this visit was under way, and what has failed, is planned again.
        self.retry = Some(now);
    }

    /// Plans, and carries out what can be carried out.
    async fn act(&mut self, timing: Option<Timing>) {
        let now = self.now();
        let (plan, retry) = self.state.plan(now);
        self.retry = retry;
        if plan.is_empty() {
            self.settle();
            return;
        }
        let timing = Timing { planned: self.now(), ..timing.unwrap_or_else(|| Timing::at(now)) };
        self.reporter.acted(timing);
        let failed = self.advance(&plan);
        let plan = plan.without_numbers(&failed);
        let looks = self.look(&plan).await;
        let mut visits = Vec::new();
        for (cgroup, plan) in plan.containers {
            let Some((id, task)) = plan.target else {
                self.kernel_steps(cgroup, None, plan.steps, &looks);
                continue;
            };
            let (nodes, kernel): (Vec<_>, Vec<_>) = plan.steps.into_iter().partition(is_node_step);
            let undone = self.kernel_steps(cgroup, Some(&task), kernel, &looks);
            let nodes: Vec<_> =
                nodes.into_iter().filter(|step| !undone.iter().any(|earlier| step.needs(earlier))).collect();
            if !nodes.is_empty() && !self.visits.is_busy(cgroup) {
                visits.push((cgroup, id, task, nodes));
            }
        }
        let timing = Timing { enforced: self.now(), ..timing };
        for (cgroup, id, task, steps) in visits {
            self.visits.begin(cgroup, id, task, steps, timing);
        }
        self.settle();
        // What could not be done now has its time; what follows from what was done is planned at once, without another
        // look when nothing does.
        let (rest, retry) = self.state.plan(now);
        let waits = rest.containers.keys().all(|cgroup| self.visits.is_busy(*cgroup));
        self.retry = if rest.is_empty() || waits { retry } else { Some(now + self.timings.backoff.first) };
    }

    /// Once everything is known and in the kernel, what an upgrade held back takes over.
    fn settle(&mut self) {
        if self.settled || !self.state.inventory().is_complete() {
            return;
        }
        match self.enforcer.settle() {
            Ok(()) => {
                self.settled = true;
                tracing::info!("everything is known and in force");
            }
            Err(error) => tracing::error!(error = failure::chain(&error), "cannot take over the enforcement"),
        }
    }

    fn publish(&self) {
        let published = Published {
            complete: self.state.inventory().is_complete(),
            memory: self.state.inventory().memory(),
            names: Arc::new(Names::new(self.state.desired())),
        };
        self.wires.published.send_if_modified(|before| {
            let changed = *before != published;
            *before = published;
            changed
        });
    }

    /// Compares with the kernel, after an alarm or a long time.
    fn check(&mut self) {
        match self.enforcer.check() {
            Ok(drifts) if drifts.is_empty() => {}
            Ok(drifts) => {
                for drift in &drifts {
                    tracing::error!(%drift, "the enforcement was not as it had been left");
                    self.reporter.alarm(drift);
                }
                if drifts.iter().any(|drift| !matches!(drift, Drift::PinLost | Drift::MapPinLost(_))) {
                    self.resync();
                }
            }
            Err(error) => tracing::error!(error = failure::chain(&error), "cannot check the enforcement"),
        }
        self.alarm = Alarm::new(&self.enforcer);
    }

    /// Reads back what is in the kernel. What differs is in the next plan.
    fn resync(&mut self) {
        self.resync = self.now() + self.timings.resync;
        match self.enforcer.read_back() {
            Ok(rules) => {
                let mut applied = translate::applied(&rules);
                // The kernel does not know of nodes: those stay as they were known.
                for (cgroup, before) in &self.state.applied().containers {
                    if !before.nodes.is_empty() {
                        applied.containers.entry(*cgroup).or_default().nodes.clone_from(&before.nodes);
                    }
                }
                self.state.read_back(applied);
                self.retry = Some(self.now());
            }
            Err(error) => tracing::error!(error = failure::chain(&error), "cannot read the rules back"),
        }
    }
}

fn is_node_step(step: &Step) -> bool {
    matches!(step, Step::PlaceNode(_) | Step::RemoveNode(_))
}

/// What there is to do.
enum Wake {
    Stop,
    Visit(Ended),
    Event(Event),
    Alarm,
    Time,
}

/// The numbers for which something was not done.
type Numbers = BTreeSet<devgate_core::DeviceNumber>;
