use crate::{Access, DeviceNumber, Plain};

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout() {
        assert_eq!((size_of::<RuleKey>(), align_of::<RuleKey>()), (16, 8));
        assert_eq!((size_of::<Rule>(), align_of::<Rule>()), (40, 8));
    }

    #[test]
    fn a_rule_in_words_is_the_rule() {
        let rule = Rule {
            allow: Access::READ,
            deny: Access::WRITE,
            flags: RuleFlags(0x1234),
            epoch_slot: u32::MAX,
            epoch: 1 << 40,
            expires_at: 3,
            rule_id: u64::MAX,
            generation: 5,
            reserved: 0,
        };
        assert_eq!(Rule::from_words(rule.to_words()), rule);
    }
}
