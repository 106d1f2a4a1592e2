use core::sync::atomic::AtomicU64;
#[cfg(target_has_atomic = "64")]
use core::sync::atomic::{
    Ordering::{Relaxed, Release},
    fence,
};

use crate::{Access, DeviceNumber, Plain, load};

/// Names one rule: a cgroup and a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(C)]
pub struct RuleKey {
    /// Id of the container's cgroup in the v2 hierarchy (its inode number; never 0).
    pub cgroup: u64,
    /// The device.
    pub device: DeviceNumber,
}

// SAFETY: repr(C), 8 + 8 bytes without padding, plain members.
unsafe impl Plain for RuleKey {}

impl RuleKey {
    /// Which of `places`, a power of two, is the key's.
    #[inline(always)]
    pub const fn place(self, places: u64) -> u32 {
        // Fibonacci hashing: ids and minors that follow each other go to places far apart.
        let mixed = (self.cgroup.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ self.device.bits()).wrapping_mul(0xd6e8_feb8_6659_fd93);
        (mixed >> 32 & (places - 1)) as u32
    }
}

/// How a [`Rule`] applies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct RuleFlags(pub u16);

impl RuleFlags {
    /// The grant holds in the cgroups below too, over the denials of programs that a nested runtime attached there.
    pub const SUBTREE: Self = Self(1);
    /// The device can be unplugged, so its grant needs a living guard where the agent is configured to ask for one.
    pub const HOTPLUG: Self = Self(2);

    /// Whether all of `other` is set.
    pub const fn contains(self, other: Self) -> bool {
        other.0 & !self.0 == 0
    }

    /// What is set in either.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// The epoch slot of no number. The epoch in it is never equal to a rule's, so a rule that names it is void.
pub const EPOCH_SLOT_NONE: u32 = 0;

/// What one container may do with one device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Rule {
    /// Granted over a runtime's denial, and permitted where other devices are denied.
    pub allow: Access,
    /// Denied, whatever the runtime says, in the whole subtree.
    pub deny: Access,
    /// How the rule applies.
    pub flags: RuleFlags,
    /// Where the epoch of the number stands in the epochs array; [`EPOCH_SLOT_NONE`] makes the rule void.
    pub epoch_slot: u32,
    /// The epoch in which the rule was made; at any later one the rule denies everything.
    pub epoch: u64,
    /// When the grant ends, in nanoseconds of `CLOCK_BOOTTIME`; 0 for never. What `deny` says stays.
    pub expires_at: u64,
    /// The agent's name for the rule, which audit records carry.
    pub rule_id: u64,
    /// Counts the changes of this rule, which audit records carry.
    pub generation: u32,
    /// Zero.
    pub reserved: u32,
}

// SAFETY: repr(C), 1 + 1 + 2 + 4 + 4 * 8 bytes without padding, plain members.
unsafe impl Plain for Rule {}

/// A rule as words, as it lies in memory on a little-endian machine.
pub type RuleWords = [u64; size_of::<Rule>() / 8];

impl Rule {
    /// The rule that the words stand for.
    #[inline(always)]
    pub const fn from_words(words: RuleWords) -> Self {
        Self {
            allow: Access::from_bits(words[0] as u8 as u32),
            deny: Access::from_bits((words[0] >> 8) as u8 as u32),
            flags: RuleFlags((words[0] >> 16) as u16),
            epoch_slot: (words[0] >> 32) as u32,
            epoch: words[1],
            expires_at: words[2],
            rule_id: words[3],
            generation: words[4] as u32,
            reserved: 0,
        }
    }

    /// The rule in words.
    #[inline(always)]
    pub const fn to_words(self) -> RuleWords {
        let rights = self.allow.bits() | self.deny.bits() << 8 | (self.flags.0 as u32) << 16;
        let first = rights as u64 | (self.epoch_slot as u64) << 32;
        [first, self.epoch, self.expires_at, self.rule_id, self.generation as u64]
    }
}

/// Where a rule is looked for first: one cache line, which holds one of the rules whose place it is. A look-up in a hash
/// map costs two calls, which are slow where the CPU needs protection from speculative returns, and three cache lines.
///
/// The hash map has every rule, and its answer is taken whenever a place cannot give one. A reader sees a rule that was
/// written as a whole or none, as long as its loads are carried out in their order; see
/// [`StateFlags::ORDERED`](crate::StateFlags::ORDERED).
#[derive(Debug, Default)]
#[repr(C)]
pub struct RulePlace {
    /// [`BUSY`], [`SHARED`], and above them a counter of changes.
    stamp: AtomicU64,
    cgroup: AtomicU64,
    device: AtomicU64,
    rule: [AtomicU64; size_of::<Rule>() / 8],
}

/// The place is being written.
const BUSY: u64 = 1;
/// It is the place of other rules, too.
const SHARED: u64 = 1 << 1;
#[cfg(target_has_atomic = "64")]
const CHANGE: u64 = 1 << 2;

// SAFETY: repr(C), eight words without padding; atomics are valid for every pattern of bits.
unsafe impl Plain for RulePlace {}

/// What a place says about a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlaceAnswer {
    /// This is its rule.
    Rule(RuleWords),
    /// It has no rule.
    NoRule,
    /// Ask the hash map.
    Unknown,
}

impl RulePlace {
    /// Looks for the rule of a key whose place this is.
    #[inline(always)]
    pub fn look_up(&self, key: RuleKey) -> PlaceAnswer {
        let stamp = load(&self.stamp);
        let found = load(&self.cgroup) == key.cgroup && load(&self.device) == key.device.bits();
        let words = [0, 1, 2, 3, 4].map(|word: usize| load(&self.rule[word]));
        if stamp & BUSY != 0 || load(&self.stamp) != stamp || (!found && stamp & SHARED != 0) {
            return PlaceAnswer::Unknown;
        }
        if found { PlaceAnswer::Rule(words) } else { PlaceAnswer::NoRule }
    }

    /// Whose rule is in the place. There must be no other writer.
    #[cfg(target_has_atomic = "64")]
    pub fn key(&self) -> Option<RuleKey> {
        let cgroup = load(&self.cgroup);
        (cgroup != 0).then(|| RuleKey { cgroup, device: DeviceNumber::from_bits(load(&self.device)) })
    }

    /// Whether nothing was ever written here.
    #[cfg(target_has_atomic = "64")]
    pub fn is_clear(&self) -> bool {
        load(&self.stamp) == 0 && load(&self.cgroup) == 0
    }

    /// Puts a rule into the place, or none. `shared` says whether there are others whose place it is. There must be no
    /// other writer.
    #[cfg(target_has_atomic = "64")]
    pub fn write(&self, content: Option<(RuleKey, Rule)>, shared: bool) {
        let change = (load(&self.stamp) / CHANGE).wrapping_add(1) * CHANGE;
        self.stamp.store(change | BUSY, Relaxed);
        fence(Release);
        self.cgroup.store(content.map_or(0, |(key, _)| key.cgroup), Relaxed);
        self.device.store(content.map_or(0, |(key, _)| key.device.bits()), Relaxed);
        let words = content.map_or_else(RuleWords::default, |(_, rule)| rule.to_words());
        for (word, value) in self.rule.iter().zip(words) {
            word.store(value, Relaxed);
        }
        self.stamp.store(change | if shared { SHARED } else { 0 }, Release);
    }

    /// Says whether there are other rules whose place it is. There must be no other writer.
    #[cfg(target_has_atomic = "64")]
    pub fn set_shared(&self, shared: bool) {
        if shared {
            self.stamp.fetch_or(SHARED, Release);
        } else {
            self.stamp.fetch_and(!SHARED, Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout() {
        assert_eq!((size_of::<RuleKey>(), align_of::<RuleKey>()), (16, 8));
        assert_eq!((size_of::<Rule>(), align_of::<Rule>()), (40, 8));
        assert_eq!((size_of::<RulePlace>(), align_of::<RulePlace>()), (64, 8));
    }

    const KEY: RuleKey = RuleKey { cgroup: 7, device: DeviceNumber::char(10, 229) };

    fn rule() -> Rule {
        Rule {
            allow: Access::READ,
            deny: Access::WRITE,
            flags: RuleFlags(0x1234),
            epoch_slot: u32::MAX,
            epoch: 1 << 40,
            expires_at: 3,
            rule_id: u64::MAX,
            generation: 5,
            reserved: 0,
        }
    }

    #[test]
    fn a_rule_in_words_is_the_rule() {
        assert_eq!(Rule::from_words(rule().to_words()), rule());
    }

    #[test]
    fn a_place_gives_back_what_was_put_into_it() {
        let place = RulePlace::default();
        assert_eq!(place.look_up(KEY), PlaceAnswer::NoRule);
        place.write(Some((KEY, rule())), false);
        assert_eq!((place.key(), place.look_up(KEY)), (Some(KEY), PlaceAnswer::Rule(rule().to_words())));
        place.write(None, false);
        assert_eq!((place.key(), place.look_up(KEY)), (None, PlaceAnswer::NoRule));
    }

    // Fault: agent-ebpf/abi/src/rule.rs
    // - || (!found && stamp & SHARED != 0) {
    // + {
    #[test]
    fn a_shared_place_knows_only_the_rule_in_it() {
        let place = RulePlace::default();
        let other = RuleKey { cgroup: 8, ..KEY };
        place.write(Some((KEY, rule())), true);
        assert_eq!((place.look_up(KEY), place.look_up(other)), (PlaceAnswer::Rule(rule().to_words()), PlaceAnswer::Unknown));
        place.set_shared(false);
        assert_eq!((place.look_up(KEY), place.look_up(other)), (PlaceAnswer::Rule(rule().to_words()), PlaceAnswer::NoRule));
    }

    #[test]
    fn a_place_that_is_being_written_says_nothing() {
        let place = RulePlace::default();
        place.write(Some((KEY, rule())), false);
        place.stamp.fetch_or(BUSY, Relaxed);
        assert_eq!(place.look_up(KEY), PlaceAnswer::Unknown);
    }

    #[test]
    fn keys_that_follow_each_other_have_different_places() {
        let keys = (0..100).flat_map(|cgroup| (0..10).map(move |minor| (cgroup, minor)));
        let places = keys.map(|(cgroup, minor)| RuleKey { cgroup, device: DeviceNumber::char(240, minor) }.place(1 << 16));
        let places: std::collections::HashSet<_> = places.collect();
        // Of 1000 thrown at random, some 8 meet another.
        assert!(places.len() > 980, "{}", places.len());
    }
}
