//! Which of the cgroups above a task's have to be asked for. Each costs a call, so what was found once is remembered, for
//! as long as no other cgroup becomes managed: a cgroup never moves.

use devgate_abi::{ContainerSlot, State, StateFlags, learned, load};

use crate::{atomic, find, hide::Hide};

/// The way from the root to a cgroup.
#[derive(Clone, Copy)]
pub(crate) struct Way {
    /// What belongs to the cgroup itself, if it is managed.
    pub(crate) own: Option<&'static ContainerSlot>,
    /// The levels to look at, in the form of [`State::levels`].
    pub(crate) levels: u64,
    /// Those of them at which there may be a managed cgroup above, as bits.
    pub(crate) above: u32,
    generation: u64,
    learns: bool,
}

impl Way {
    #[inline(always)]
    pub(crate) fn to(state: &State, flags: StateFlags, cgroup: u64, hide: Hide<'_>) -> Self {
        // Read before everything else: what is found in maps that change meanwhile is learned for an old generation.
        let generation = load(&state.generation);
        let own = find::managed(state, cgroup);
        let above = match own {
            Some(own) => load(&own.above),
            // An outsider's word says that there is nothing above.
            None if State::is_outsider(load(state.outsider_word(cgroup)), cgroup, generation) => learned(generation, 0),
            None => 0,
        };
        let ordered = flags.intersects(StateFlags::ORDERED);
        let known = ordered && (above ^ learned(generation, 0)) >> 32 == 0;
        let above = if known { above as u32 } else { u32::MAX };
        let levels = if above == 0 { 0 } else { load(&state.levels) };
        let (levels, above) = (hide.word(levels), hide.word(u64::from(above)) as u32);
        Self { own, levels, above, generation, learns: hide.bool(ordered && !known) }
    }

    /// Remembers the levels at which managed cgroups were found, as bits.
    #[inline(always)]
    pub(crate) fn learn(&self, state: &State, cgroup: u64, found: u32) {
        if !self.learns {
            return;
        }
        if let Some(own) = self.own {
            atomic::store(&own.above, learned(self.generation, found));
        } else if found == 0 && State::can_be_outsider(cgroup) {
            atomic::store(state.outsider_word(cgroup), learned(self.generation, cgroup as u32));
        }
    }
}
