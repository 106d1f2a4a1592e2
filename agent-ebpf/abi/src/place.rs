//! Where rules are looked for first.
//!
//! A look-up in a hash map costs several calls in the kernel, each of which is slow where the CPU needs protection from
//! speculative returns, and several cache lines far from each other. So every key has a *place*, one cache line of an
//! array. The hash map has all rules; a place has one of those whose keys it belongs to, and says whether there are more.
//!
//! A reader sees a rule that was written as a whole or none, if the CPU carries out its loads in their order; see
//! [`StateFlags::ORDERED`](crate::StateFlags::ORDERED).

use core::sync::atomic::AtomicU64;

use crate::{Plain, RuleKey, RuleWords, load};

/// A place: one rule with its key.
#[derive(Debug, Default)]
#[repr(C)]
pub struct RulePlace {
    /// Counts the writes, twice each, so that it is [odd](WRITING) during one; above that, [`SHARED`].
    stamp: AtomicU64,
    cgroup: AtomicU64,
    device: AtomicU64,
    rule: [AtomicU64; RULE_WORDS],
}

// SAFETY: repr(C), eight words without padding; atomics are valid for every pattern of bits.
unsafe impl Plain for RulePlace {}

const RULE_WORDS: usize = size_of::<RuleWords>() / 8;
/// Set in the stamp while the place is written.
const WRITING: u64 = 1;
/// Set in the stamp if other keys that the place belongs to have rules too.
const SHARED: u64 = 1 << 63;

/// What a place says about a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlaceAnswer {
    /// This is its rule.
    Rule(RuleWords),
    /// It has no rule.
    NoRule,
    /// Only the hash map knows.
    AskMap,
}

impl RulePlace {
    /// The number of the key's place, of `count` places: a power of two.
    #[inline(always)]
    pub const fn of(key: RuleKey, count: u64) -> u32 {
        // Fibonacci hashing: ids and minors that follow each other go to places far apart.
        let mixed =
            (key.cgroup.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ key.device.bits()).wrapping_mul(0xd6e8_feb8_6659_fd93);
        (mixed >> 32 & (count - 1)) as u32
    }

    /// Looks for the rule of a key that the place belongs to.
    #[inline(always)]
    pub fn look_up(&self, key: RuleKey) -> PlaceAnswer {
        let stamp = load(&self.stamp);
        let found = load(&self.cgroup) == key.cgroup && load(&self.device) == key.device.bits();
        let words = [0, 1, 2, 3, 4].map(|word: usize| load(&self.rule[word]));
        if stamp & WRITING != 0 || load(&self.stamp) != stamp {
            return PlaceAnswer::AskMap;
        }
        if found {
            PlaceAnswer::Rule(words)
        } else if stamp & SHARED != 0 {
            PlaceAnswer::AskMap
        } else {
            PlaceAnswer::NoRule
        }
    }

    /// Whether the place says that none of its keys has a rule.
    pub fn is_empty(&self) -> bool {
        load(&self.stamp) & (WRITING | SHARED) == 0 && load(&self.cgroup) == 0
    }

    /// The stores that put a rule into the place, or none, in their order; `shared` says whether other keys that the place
    /// belongs to have rules. Each must be seen before the next ([`Release`](core::sync::atomic::Ordering::Release)).
    /// There must be one writer at a time, which may end between any two.
    ///
    /// After each store a reader is told what was in the place before, what is in it at the end, or to ask the map.
    pub fn stores(
        &self,
        content: Option<(RuleKey, RuleWords)>,
        shared: bool,
    ) -> [(&AtomicU64, u64); size_of::<Self>() / 8 + 1] {
        // The stamp of a writer that was killed is odd.
        let during = (load(&self.stamp) | WRITING) & !SHARED;
        let after = (during + 1) | if shared { SHARED } else { 0 };
        let (cgroup, device, words) = match content {
            Some((key, words)) => (key.cgroup, key.device.bits(), words),
            None => (0, 0, RuleWords::default()),
        };
        let [first, second, third, fourth, fifth] = &self.rule;
        [
            (&self.stamp, during),
            (&self.cgroup, cgroup),
            (&self.device, device),
            (first, words[0]),
            (second, words[1]),
            (third, words[2]),
            (fourth, words[3]),
            (fifth, words[4]),
            (&self.stamp, after),
        ]
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::Ordering::Release;

    use super::*;
    use crate::DeviceNumber;

    const KEY: RuleKey = RuleKey { cgroup: 7, device: DeviceNumber::char(10, 229) };
    const OTHER: RuleKey = RuleKey { cgroup: 8, ..KEY };
    const WORDS: RuleWords = [1, 2, 3, 4, 5];

    fn write(place: &RulePlace, content: Option<(RuleKey, RuleWords)>, shared: bool) {
        for (word, value) in place.stores(content, shared) {
            word.store(value, Release);
        }
    }

    #[test]
    fn layout() {
        assert_eq!((size_of::<RulePlace>(), align_of::<RulePlace>()), (64, 8));
    }

    #[test]
    fn a_place_gives_back_what_was_put_into_it() {
        let place = RulePlace::default();
        assert_eq!((place.is_empty(), place.look_up(KEY)), (true, PlaceAnswer::NoRule));
        write(&place, Some((KEY, WORDS)), false);
        assert_eq!((place.is_empty(), place.look_up(KEY)), (false, PlaceAnswer::Rule(WORDS)));
        assert_eq!(place.look_up(OTHER), PlaceAnswer::NoRule);
        write(&place, Some((KEY, WORDS)), true);
        assert_eq!((place.look_up(KEY), place.look_up(OTHER)), (PlaceAnswer::Rule(WORDS), PlaceAnswer::AskMap));
        write(&place, None, false);
        assert_eq!((place.is_empty(), place.look_up(KEY)), (true, PlaceAnswer::NoRule));
    }

    // Fault: agent-ebpf/abi/src/place.rs
    // - let during = (load(&self.stamp) | WRITING) & !SHARED;
    // + let during = load(&self.stamp) + 1;
    #[test]
    fn a_place_whose_writer_was_killed_says_nothing_until_it_is_written_anew() {
        for done in 1..9 {
            let place = RulePlace::default();
            write(&place, Some((KEY, [9; 5])), true);
            for (word, value) in place.stores(Some((OTHER, WORDS)), false).into_iter().take(done) {
                word.store(value, Release);
            }
            assert_eq!([KEY, OTHER].map(|key| place.look_up(key)), [PlaceAnswer::AskMap; 2]);
            assert!(!place.is_empty());
            write(&place, Some((KEY, WORDS)), false);
            assert_eq!([KEY, OTHER].map(|key| place.look_up(key)), [PlaceAnswer::Rule(WORDS), PlaceAnswer::NoRule]);
        }
    }

    // Fault: agent-ebpf/abi/src/place.rs
    // - if stamp & WRITING != 0 || load(&self.stamp) != stamp {
    // + if stamp & WRITING != 0 {
    #[test]
    fn a_reader_never_sees_half_of_a_change() {
        let place = RulePlace::default();
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                for round in 0..200_000 {
                    write(&place, Some((KEY, [round; 5])), round % 2 == 0);
                }
            });
            while !writer.is_finished() {
                if let PlaceAnswer::Rule(words) = place.look_up(KEY) {
                    assert_eq!(words, [words[0]; 5]);
                }
            }
        });
    }

    #[test]
    fn keys_that_follow_each_other_have_different_places() {
        let keys = (0..100).flat_map(|cgroup| (0..10).map(move |minor| (cgroup, minor)));
        let places = keys
            .map(|(cgroup, minor)| RulePlace::of(RuleKey { cgroup, device: DeviceNumber::char(240, minor) }, 1 << 16));
        let places: std::collections::HashSet<_> = places.collect();
        // Of 1000 thrown at random, some 8 meet another.
        assert!(places.len() > 980, "{}", places.len());
    }
}
