use core::sync::atomic::AtomicU64;

use crate::Plain;

/// What holds in a managed cgroup for the devices that no rule names, and what of it is recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Policy(pub u32);

impl Policy {
    /// Deny every device that is neither standard nor permitted by a rule. Making a node (mknod) stays allowed.
    pub const DENY_OTHERS: Self = Self(1);
    /// Where other devices are denied, deny making their nodes too.
    pub const DENY_MKNOD: Self = Self(1 << 1);
    /// Change no verdict; record what would have been changed.
    pub const AUDIT_ONLY: Self = Self(1 << 2);
    /// Record grants: requests that the runtime denied and a rule allowed.
    pub const RECORD_GRANTS: Self = Self(1 << 8);
    /// Record denials, those of the runtime too.
    pub const RECORD_DENIALS: Self = Self(1 << 9);
    /// Record every other verdict.
    pub const RECORD_REST: Self = Self(1 << 10);
    /// Record grants and denials.
    pub const RECORD: Self = Self(1 << 8 | 1 << 9);

    /// Whether all of `other` is set.
    #[inline(always)]
    pub const fn contains(self, other: Self) -> bool {
        other.0 & !self.0 == 0
    }

    /// Whether nothing is recorded and what it says is carried out: then only the verdict counts.
    #[inline(always)]
    pub const fn is_plain(self) -> bool {
        self.0 & (Self::AUDIT_ONLY.0 | Self::RECORD.0 | Self::RECORD_REST.0) == 0
    }

    /// Whether it says anything about devices that no rule names: that they are denied, or that it is recorded when they
    /// are not.
    pub const fn is_about_others(self) -> bool {
        self.0 & (Self::DENY_OTHERS.0 | Self::RECORD_REST.0) != 0
    }

    /// What is set in either.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// What is set here and not in `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

/// The value of a managed cgroup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct CgroupEntry {
    /// Index of the container's [`ContainerSlot`].
    pub slot: u32,
    /// What holds in it.
    pub policy: Policy,
    /// How many levels it lies below the root of the hierarchy.
    pub level: u32,
    /// Zero.
    pub reserved: u32,
}

// SAFETY: repr(C), four times 4 bytes without padding, plain members.
unsafe impl Plain for CgroupEntry {}

/// What the kernel counts for one container, and its token bucket. Slot 0 belongs to everything that is not managed.
///
/// For every verdict that the policy asks to record, exactly one of [`recorded`](Self::recorded),
/// [`limited`](Self::limited) and [`lost`](Self::lost) rises by one.
#[derive(Debug, Default)]
#[repr(C)]
pub struct ContainerSlot {
    /// The cgroup that the slot belongs to; 0 when it is free.
    pub cgroup: AtomicU64,
    /// [`Policy`] of the cgroup.
    pub policy: AtomicU64,
    /// The levels at which managed cgroups lie above this one, as bits, in the form of [`learned`](crate::learned).
    pub above: AtomicU64,
    /// Verdicts that a rule changed from denied to allowed.
    pub granted: AtomicU64,
    /// Verdicts that a rule or policy denied, whatever other programs said.
    pub denied: AtomicU64,
    /// Denials of the runtime or another program that were left to it: all of them while a policy records denials, else
    /// those of tasks in managed cgroups and of devices whose kind and major number some rule names.
    pub runtime_denied: AtomicU64,
    /// Zero; fills the words that every verdict needs to a cache line.
    pub reserved: [AtomicU64; 2],
    /// Records that were written to the ring buffer; the next record's sequence number.
    pub recorded: AtomicU64,
    /// Records that the token bucket kept back.
    pub limited: AtomicU64,
    /// Records for which the ring buffer had no room.
    pub lost: AtomicU64,
    /// The token bucket: when it will be full again, in nanoseconds of `CLOCK_BOOTTIME`.
    pub bucket: AtomicU64,
    /// What one record costs, in nanoseconds: 1e9 divided by the records per second; 0 for no limit.
    pub cost: AtomicU64,
    /// How far `bucket` may lie in the future, in nanoseconds: `cost` times the size of a burst.
    pub depth: AtomicU64,
    /// Zero; fills the slot to two cache lines.
    pub reserved_2: [AtomicU64; 2],
}

// SAFETY: repr(C), sixteen words without padding; atomics are valid for every pattern of bits.
unsafe impl Plain for ContainerSlot {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout() {
        assert_eq!((size_of::<CgroupEntry>(), align_of::<CgroupEntry>()), (16, 4));
        assert_eq!((size_of::<ContainerSlot>(), align_of::<ContainerSlot>()), (128, 8));
    }
}
