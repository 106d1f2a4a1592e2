//! Which of the cgroups above a task's have to be asked for. Each costs a call, so what was found once is remembered, for
//! as long as no other cgroup becomes managed: a cgroup never moves.

use devgate_abi::{ContainerSlot, State, StateFlags, learned, load};

use crate::{atomic, find};

/// The way from the root to a cgroup.
#[derive(Clone, Copy)]
pub(crate) struct Way {
    /// What belongs to the cgroup itself, if it is managed.
    pub(crate) own: Option<&'static ContainerSlot>,
    generation: u64,
    /// What was learned of the cgroups above, compared with the generation: without its upper half, the levels at which
    /// managed ones lie, as bits.
    above: u64,
}

impl Way {
    #[inline(always)]
    pub(crate) fn to(state: &State, cgroup: u64) -> Self {
        // Read before everything else: what is found in maps that change meanwhile is learned for an old generation.
        let generation = load(&state.generation);
        let own = find::managed(state, cgroup);
        let above = match own {
            Some(own) => load(&own.above) ^ learned(generation, 0),
            // An outsider's word says that there is nothing above.
            None => u64::from(!State::is_outsider(load(state.outsider_word(cgroup)), cgroup, generation)) << 32,
        };
        Self { own, generation, above }
    }

    /// Whether it is known that no cgroup above is managed.
    #[inline(always)]
    pub(crate) fn is_short(&self) -> bool {
        self.above == 0
    }

    /// Whether it is known that neither the cgroup nor one above is managed.
    #[inline(always)]
    pub(crate) fn is_outside(&self) -> bool {
        self.own.is_none() && self.is_short()
    }

    /// The levels at which there may be managed cgroups above, as bits.
    #[inline(always)]
    pub(crate) fn levels(&self) -> u32 {
        if self.is_learned() { self.above as u32 } else { u32::MAX }
    }

    /// Remembers the levels at which managed cgroups were found, as bits.
    #[inline(always)]
    pub(crate) fn learn(&self, state: &State, flags: StateFlags, cgroup: u64, found: u32) {
        if self.is_learned() || !flags.intersects(StateFlags::ORDERED) {
            return;
        }
        if let Some(own) = self.own {
            atomic::store(&own.above, learned(self.generation, found));
        } else if found == 0 && State::can_be_outsider(cgroup) {
            atomic::store(state.outsider_word(cgroup), learned(self.generation, cgroup as u32));
        }
    }

    #[inline(always)]
    fn is_learned(&self) -> bool {
        self.above >> 32 == 0
    }
}
