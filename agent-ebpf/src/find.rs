//! Finding what the agent has put into the maps, most often without a call: each costs as much as the rest of a verdict.

use devgate_abi::{ContainerSlot, PlaceAnswer, RuleKey, RulePlace, RuleWords, State, load};

use crate::maps::{CGROUPS, CONTAINERS, RULE_PLACES, RULES};

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

/// The rule of a cgroup for a device, and whether there is one. A flag and not an `Option`, in which the compiler would
/// leave the rule that is not there undefined, and the verifier refuses to have it copied.
#[inline(always)]
pub(crate) fn rule(state: &State, key: RuleKey) -> (RuleWords, bool) {
    let places = load(&state.places);
    if places != 0 {
        let Some(place) = RULE_PLACES.get(RulePlace::of(key, places)) else { return NO_RULE };
        match place.look_up(key) {
            PlaceAnswer::Rule(words) => return (words, true),
            PlaceAnswer::NoRule => return NO_RULE,
            PlaceAnswer::AskMap => {}
        }
    }
    // SAFETY: the entry is only read; while the program runs its memory stays that of an entry of the map.
    match unsafe { RULES.get(key) } {
        Some(rule) => (rule.to_words(), true),
        None => NO_RULE,
    }
}

/// What [`rule`] answers if there is none.
pub(crate) const NO_RULE: (RuleWords, bool) = ([0; 5], false);
