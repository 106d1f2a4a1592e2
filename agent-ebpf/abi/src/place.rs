//! Where rules are looked for first.
//!
//! A look-up in a hash map costs several calls in the kernel, each of which is slow where the CPU needs protection from
//! speculative returns, and several cache lines far from each other. So most rules have a *place*, one cache line of an
//! array, and the key's *lane* in an index says which. The hash map has every rule, and its answer is taken where the
//! places have none.
//!
//! A reader sees a rule that was written as a whole or none, if the CPU carries out its loads in their order; see
//! [`StateFlags::ORDERED`](crate::StateFlags::ORDERED).

use core::sync::atomic::AtomicU64;
#[cfg(target_has_atomic = "64")]
use core::sync::atomic::{
    Ordering::{Relaxed, Release},
    fence,
};

#[cfg(target_has_atomic = "64")]
use crate::DeviceNumber;
use crate::{Plain, RuleKey, RuleWords, load};

/// How many lanes one word of the index has.
pub const LANES_PER_WORD: u32 = 2;
const LANE_BITS: u32 = 64 / LANES_PER_WORD;

/// What the index says of the keys that have a lane in common.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lane(u32);

const SHARED: u32 = 1 << 31;

impl Lane {
    /// No key has a rule.
    pub const EMPTY: Self = Self(0);

    /// One key's rule is in the place with this number, which is not 0; others, if `shared`, have rules too.
    pub const fn new(place: u32, shared: bool) -> Self {
        Self(place | if shared { SHARED } else { 0 })
    }

    /// The number of the place; 0 if the lane is empty.
    #[inline(always)]
    pub const fn place(self) -> u32 {
        self.0 & !SHARED
    }

    /// Whether keys whose rules are not in the place may have one in the hash map.
    #[inline(always)]
    pub const fn is_shared(self) -> bool {
        self.0 & SHARED != 0
    }

    /// Which of `count` lanes, a power of two, is the key's.
    #[inline(always)]
    pub const fn of(key: RuleKey, count: u64) -> u32 {
        // Fibonacci hashing: ids and minors that follow each other go to lanes far apart.
        let mixed =
            (key.cgroup.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ key.device.bits()).wrapping_mul(0xd6e8_feb8_6659_fd93);
        (mixed >> 32 & (count - 1)) as u32
    }

    /// Reads the lane with this number from its word, that of number / [`LANES_PER_WORD`].
    #[inline(always)]
    pub fn read(word: &AtomicU64, number: u32) -> Self {
        Self((load(word) >> (number % LANES_PER_WORD * LANE_BITS)) as u32)
    }

    /// Writes the lane with this number into its word.
    #[cfg(target_has_atomic = "64")]
    pub fn write(self, word: &AtomicU64, number: u32) {
        let shift = number % LANES_PER_WORD * LANE_BITS;
        let (mask, value) = (u64::from(u32::MAX) << shift, u64::from(self.0) << shift);
        let _ = word.fetch_update(Release, Relaxed, |lanes| Some(lanes & !mask | value));
    }
}

/// A place: one rule with its key.
#[derive(Debug, Default)]
#[repr(C)]
pub struct RulePlace {
    /// Counts the writes, twice each: it is odd during one.
    stamp: AtomicU64,
    cgroup: AtomicU64,
    device: AtomicU64,
    rule: [AtomicU64; size_of::<RuleWords>() / 8],
}

// SAFETY: repr(C), eight words without padding; atomics are valid for every pattern of bits.
unsafe impl Plain for RulePlace {}

/// What a place says about a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlaceAnswer {
    /// This is its rule.
    Rule(RuleWords),
    /// Its rule is not here.
    Other,
    /// The place is being written.
    Busy,
}

impl RulePlace {
    /// Looks for the rule of a key.
    #[inline(always)]
    pub fn look_up(&self, key: RuleKey) -> PlaceAnswer {
        let stamp = load(&self.stamp);
        let found = load(&self.cgroup) == key.cgroup && load(&self.device) == key.device.bits();
        let words = [0, 1, 2, 3, 4].map(|word: usize| load(&self.rule[word]));
        if stamp & 1 != 0 || load(&self.stamp) != stamp {
            return PlaceAnswer::Busy;
        }
        if found { PlaceAnswer::Rule(words) } else { PlaceAnswer::Other }
    }

    /// Whose rule is in the place.
    #[cfg(target_has_atomic = "64")]
    pub fn key(&self) -> Option<RuleKey> {
        let cgroup = load(&self.cgroup);
        (cgroup != 0).then(|| RuleKey { cgroup, device: DeviceNumber::from_bits(load(&self.device)) })
    }

    /// Puts a rule into the place, or none. There must be one writer at a time.
    #[cfg(target_has_atomic = "64")]
    pub fn write(&self, content: Option<(RuleKey, RuleWords)>) {
        // The stamp of a writer that was killed is odd.
        let during = load(&self.stamp) | 1;
        self.stamp.store(during, Relaxed);
        fence(Release);
        self.cgroup.store(content.map_or(0, |(key, _)| key.cgroup), Relaxed);
        self.device.store(content.map_or(0, |(key, _)| key.device.bits()), Relaxed);
        let words = content.map_or_else(RuleWords::default, |(_, words)| words);
        for (word, value) in self.rule.iter().zip(words) {
            word.store(value, Relaxed);
        }
        self.stamp.store(during.wrapping_add(1), Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: RuleKey = RuleKey { cgroup: 7, device: DeviceNumber::char(10, 229) };
    const WORDS: RuleWords = [1, 2, 3, 4, 5];

    #[test]
    fn layout() {
        assert_eq!((size_of::<RulePlace>(), align_of::<RulePlace>()), (64, 8));
    }

    #[test]
    fn a_place_gives_back_what_was_put_into_it() {
        let place = RulePlace::default();
        assert_eq!((place.key(), place.look_up(KEY)), (None, PlaceAnswer::Other));
        place.write(Some((KEY, WORDS)));
        assert_eq!((place.key(), place.look_up(KEY)), (Some(KEY), PlaceAnswer::Rule(WORDS)));
        assert_eq!(place.look_up(RuleKey { cgroup: 8, ..KEY }), PlaceAnswer::Other);
        place.write(None);
        assert_eq!((place.key(), place.look_up(KEY)), (None, PlaceAnswer::Other));
    }

    #[test]
    fn a_place_that_is_being_written_says_nothing_until_it_is_written_anew() {
        let place = RulePlace::default();
        place.write(Some((KEY, WORDS)));
        place.stamp.fetch_add(1, Relaxed);
        assert_eq!(place.look_up(KEY), PlaceAnswer::Busy);
        place.write(Some((KEY, WORDS)));
        assert_eq!(place.look_up(KEY), PlaceAnswer::Rule(WORDS));
    }

    // Fault: agent-ebpf/abi/src/place.rs
    // - if stamp & 1 != 0 || load(&self.stamp) != stamp {
    // + if stamp & 1 != 0 {
    #[test]
    fn a_reader_never_sees_half_of_a_change() {
        let place = RulePlace::default();
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                for round in 0..200_000 {
                    place.write(Some((KEY, [round; 5])));
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
    fn lanes_of_a_word_are_apart() {
        let word = AtomicU64::new(0);
        Lane::new(3, true).write(&word, 6);
        Lane::new(5, false).write(&word, 7);
        let (one, other) = (Lane::read(&word, 6), Lane::read(&word, 7));
        assert_eq!((one.place(), one.is_shared(), other.place(), other.is_shared()), (3, true, 5, false));
        Lane::EMPTY.write(&word, 6);
        assert_eq!((Lane::read(&word, 6), Lane::read(&word, 7)), (Lane::EMPTY, other));
    }

    #[test]
    fn keys_that_follow_each_other_have_different_lanes() {
        let keys = (0..100).flat_map(|cgroup| (0..10).map(move |minor| (cgroup, minor)));
        let lanes =
            keys.map(|(cgroup, minor)| Lane::of(RuleKey { cgroup, device: DeviceNumber::char(240, minor) }, 1 << 16));
        let lanes: std::collections::HashSet<_> = lanes.collect();
        // Of 1000 thrown at random, some 8 meet another.
        assert!(lanes.len() > 980, "{}", lanes.len());
    }
}
