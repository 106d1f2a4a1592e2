//! Finding what the agent has put into the maps, most often without a call: each costs as much as the rest of a verdict.

use devgate_abi::{ContainerSlot, LANES_PER_WORD, Lane, PlaceAnswer, Rule, RuleKey, RuleWords, State, load};

use crate::{
    hide::Hide,
    maps::{CGROUPS, CONTAINERS, RULE_INDEX, RULE_PLACES, RULES},
};

/// What belongs to a cgroup, if it is managed.
#[inline(always)]
pub(crate) fn managed(state: &State, cgroup: u64) -> Option<&'static ContainerSlot> {
    let slot = state.slot(cgroup);
    if slot == 0 {
        return None;
    }
    let container = CONTAINERS.get(slot)?;
    if load(&container.cgroup) == cgroup {
        return Some(container);
    }
    // Another one has the same low bits.
    // SAFETY: the entry is only read; while the program runs its memory stays that of an entry of the map.
    CONTAINERS.get(unsafe { CGROUPS.get(cgroup) }?.slot)
}

/// The rule of a cgroup for a device, and whether there is one. If it is not `named` there is none. A flag and not an `Option`, in which the compiler would
/// leave the rule that is not there undefined, and the verifier refuses to have it copied.
#[inline(always)]
pub(crate) fn rule(state: &State, named: bool, key: RuleKey, hide: Hide<'_>) -> (Rule, bool) {
    let (words, exists) = if named { words(state, key) } else { NONE };
    (Rule::from_words(words.map(|word| hide.word(word))), hide.bool(exists))
}

const NONE: (RuleWords, bool) = ([0; 5], false);

#[inline(always)]
fn words(state: &State, key: RuleKey) -> (RuleWords, bool) {
    let lanes = load(&state.lanes);
    if lanes != 0 {
        let number = Lane::of(key, lanes);
        let Some(word) = RULE_INDEX.get(number / LANES_PER_WORD) else { return NONE };
        let lane = Lane::read(word, number);
        if lane == Lane::EMPTY {
            return NONE;
        }
        let Some(place) = RULE_PLACES.get(lane.place()) else { return NONE };
        match place.look_up(key) {
            PlaceAnswer::Rule(words) => return (words, true),
            PlaceAnswer::Other if !lane.is_shared() => return NONE,
            PlaceAnswer::Other | PlaceAnswer::Busy => {}
        }
    }
    // SAFETY: the entry is only read; while the program runs its memory stays that of an entry of the map.
    match unsafe { RULES.get(key) } {
        Some(rule) => (rule.to_words(), true),
        None => NONE,
    }
}
