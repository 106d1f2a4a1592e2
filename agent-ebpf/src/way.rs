//! Which of the cgroups above a task's have to be asked for. Each costs a call, so what was found once is remembered, for
//! as long as no other cgroup becomes managed: a cgroup never moves.

use devgate_abi::{ContainerSlot, State, StateFlags, learned, load};

use crate::{atomic, hide::Hide};

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
    /// To a managed cgroup.
    #[inline(always)]
    pub(crate) fn to_container(generation: u64, own: &'static ContainerSlot) -> Self {
        Self { own: Some(own), generation, above: load(&own.above) ^ learned(generation, 0) }
    }

    /// To a cgroup that is not managed.
    #[inline(always)]
    pub(crate) fn to_other(state: &State, generation: u64, cgroup: u64) -> Self {
        // An outsider's word says that there is nothing above.
        let outsider = State::is_outsider(load(state.outsider_word(cgroup)), cgroup, generation);
        Self { own: None, generation, above: u64::from(!outsider) << 32 }
    }

    /// The same way, with a generation of which the verifier knows nothing.
    #[inline(always)]
    pub(crate) fn hide(self, hide: Hide<'_>) -> Self {
        Self { generation: hide.word(self.generation), ..self }
    }

    /// Whether it is known that no cgroup above is managed.
    #[inline(always)]
    pub(crate) fn is_short(&self) -> bool {
        self.above == 0
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
