use crate::{
    ActionOutcome, AppliedState, Asked, Backoff, Batch, Changes, DesiredState, IndexBook, Inventory, Memory, Moment,
    Plan, Reread, Retries,
};

/// Everything that the one task which owns the state must keep, and the way from one part of it to the next.
///
/// ```text
/// read_back → apply(batch) → plan(now) → … outcomes … → record(outcome) → plan(now) → …
/// ```
#[derive(Clone, Debug)]
pub struct State {
    inventory: Inventory,
    applied: AppliedState,
    desired: DesiredState,
    indexes: IndexBook,
    retries: Retries,
    indexes_found: bool,
}

impl State {
    /// Begins with what is in the kernel and in the containers, which outlives the agent. `runtimes` are the kinds of
    /// runtime whose lists are waited for.
    pub fn new(
        applied: AppliedState,
        memory: &Memory,
        runtimes: impl IntoIterator<Item = String>,
        backoff: Backoff,
    ) -> Self {
        Self {
            inventory: Inventory::new(runtimes, memory),
            applied,
            desired: DesiredState::default(),
            indexes: IndexBook::default(),
            retries: Retries::new(backoff),
            indexes_found: false,
        }
    }

    /// Takes in a batch, with the answers for [`Batch::reread`].
    pub fn apply(&mut self, batch: Batch, reread: Vec<Reread>) -> Changes {
        let changes = self.inventory.apply(batch, reread);
        for number in &changes.voided {
            self.applied.void(*number);
        }
        if self.inventory.is_complete() {
            if !self.indexes_found {
                self.find_indexes();
                self.indexes_found = true;
            }
            self.desired = DesiredState::new(&self.inventory, &mut self.indexes);
        }
        changes
    }

    /// What is to be done now, and when something that failed may be tried again.
    ///
    /// Until every source has listed, nothing is planned but to void numbers: what was granted before the agent came
    /// back holds on, whatever is still missing in the inventory.
    pub fn plan(&mut self, now: Moment) -> (Plan, Option<Moment>) {
        let mut plan = Plan::new(&self.applied, &self.desired);
        if !self.inventory.is_complete() {
            plan.containers.clear();
        }
        self.retries.hold_back(plan, now)
    }

    /// Takes in what became of an action, `now`, with a `random` number for the spread of retries.
    pub fn record(&mut self, outcome: &ActionOutcome, now: Moment, random: u64) {
        self.applied.record(outcome);
        self.retries.record(outcome, now, random);
    }

    /// Takes in what was read back again, because something else may have changed it.
    pub fn read_back(&mut self, applied: AppliedState) {
        let voided = std::mem::take(&mut self.applied.voided);
        self.applied = applied;
        for number in voided {
            self.applied.void(number);
        }
    }

    /// What was observed.
    pub fn inventory(&self) -> &Inventory {
        &self.inventory
    }

    /// What should be; empty until every source has listed.
    pub fn desired(&self) -> &DesiredState {
        &self.desired
    }

    /// What is.
    pub fn applied(&self) -> &AppliedState {
        &self.applied
    }

    /// What the device source must read for the classes in force.
    pub fn asked(&self) -> Asked {
        self.inventory.asked()
    }

    /// The nodes that were found in containers tell which index each device had there.
    fn find_indexes(&mut self) {
        for container in self.inventory.containers() {
            let applied = container.task().and_then(|task| self.applied.containers.get(&task.cgroup.id));
            for (path, node) in applied.into_iter().flat_map(|applied| &applied.nodes) {
                // A node whose device has left meanwhile says nothing of the device that has its number now.
                let known = self.inventory.device(node.number);
                let Some(known) = known.filter(|_| self.applied.is_current(node.number, node.epoch)) else { continue };
                let classes = self.inventory.classes().filter(|class| class.contains(&known.device));
                for class in classes {
                    let index = class.path.as_ref().and_then(|template| template.index_of(path.as_str()));
                    if let Some(index) = index {
                        self.indexes.found(&container.id, &class.name, &known.id, index);
                    }
                }
            }
        }
    }
}
