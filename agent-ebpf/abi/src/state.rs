use core::sync::atomic::AtomicU64;
#[cfg(target_has_atomic = "64")]
use core::sync::atomic::Ordering::Relaxed;

use crate::{DeviceNumber, Plain, load};

/// How many cgroup levels below the root a managed cgroup may lie: the kernel program asks for the ancestor of each
/// level at which a managed cgroup exists.
pub const MAX_LEVELS: u32 = 32;

const MAJORS: usize = 4096;
const CGROUP_BITS: u32 = 16;

/// Switches of [`State::flags`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct StateFlags(pub u64);

impl StateFlags {
    /// The policy of some cgroup, or of the unclassified ones, is about devices that no rule names
    /// ([`Policy::is_about_others`](crate::Policy::is_about_others)): they need a look too.
    pub const STRICT: Self = Self(1);
    /// Every verdict is recorded, also where nothing is managed.
    pub const AUDIT_ALL: Self = Self(1 << 1);
    /// A grant of a device that can be unplugged holds only while a guard process lives.
    pub const REQUIRE_GUARD: Self = Self(1 << 2);
    /// Some cgroup records denials, or the unclassified ones do: whether a device without a rule was denied needs a look.
    pub const DENIALS: Self = Self(1 << 3);

    /// Whether any of `other` is set.
    #[inline(always)]
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// What is set in either.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// The one element of the state array, mapped into the agent: what the kernel program reads before it looks anywhere
/// else. The agent alone writes it, but for the last three words before the bit sets.
///
/// The two bit sets have no false negatives: a bit is set before the first entry that needs it and cleared after the
/// last one is gone.
#[repr(C)]
pub struct State {
    /// [`LAYOUT_VERSION`](crate::LAYOUT_VERSION) of the agent that wrote it.
    pub layout: AtomicU64,
    /// [`StateFlags`]. All words are 64 bits wide, since eBPF has no smaller atomics.
    pub flags: AtomicU64,
    /// Bit `n` is set if a managed cgroup lies `n` levels below the root of the hierarchy.
    pub levels: AtomicU64,
    /// [`Policy`](crate::Policy) of the cgroups below the ancestor that nobody has classified.
    pub unclassified: AtomicU64,
    /// Id of the cgroup that the program is attached to.
    pub ancestor: AtomicU64,
    /// How many elements of the containers array have ever been used.
    pub containers: AtomicU64,
    /// Always zero, which the verifier does not know.
    pub zero: AtomicU64,
    /// 1 while the reader of the ring buffer sleeps; who writes a record then sets it to 0 and wakes it.
    pub reader_asleep: AtomicU64,
    /// How many epochs the socket filter has advanced.
    pub advanced_by_uevent: AtomicU64,
    /// How many epochs the program at `device_del` has advanced.
    pub advanced_by_device_del: AtomicU64,
    majors: [[AtomicU64; MAJORS / 64]; 2],
    cgroups: [AtomicU64; 1 << (CGROUP_BITS - 6)],
}

// SAFETY: repr(C), words without padding; atomics are valid for every pattern of bits.
unsafe impl Plain for State {}

impl State {
    /// A zeroed state: nothing managed, no rule.
    pub const fn new() -> Self {
        Self {
            layout: AtomicU64::new(0),
            flags: AtomicU64::new(0),
            levels: AtomicU64::new(0),
            unclassified: AtomicU64::new(0),
            ancestor: AtomicU64::new(0),
            containers: AtomicU64::new(0),
            zero: AtomicU64::new(0),
            reader_asleep: AtomicU64::new(0),
            advanced_by_uevent: AtomicU64::new(0),
            advanced_by_device_del: AtomicU64::new(0),
            majors: [const { [const { AtomicU64::new(0) }; MAJORS / 64] }; 2],
            cgroups: [const { AtomicU64::new(0) }; 1 << (CGROUP_BITS - 6)],
        }
    }

    /// Whether a rule names a device with this kind and major number.
    #[inline(always)]
    pub fn names_major(&self, device: DeviceNumber) -> bool {
        let word = &self.majors[usize::from(device.is_block())][(device.major() as usize / 64) % (MAJORS / 64)];
        load(word) >> (device.major() % 64) & 1 != 0
    }

    /// Says whether a rule names a device with this kind and major number.
    #[cfg(target_has_atomic = "64")]
    pub fn set_major(&self, device: DeviceNumber, named: bool) {
        set_bit(&self.majors[usize::from(device.is_block())], device.major(), named);
    }

    /// Whether a cgroup with this id may be managed. Cgroups whose ids agree in the low 16 bits share a bit.
    #[inline(always)]
    pub fn may_manage(&self, cgroup: u64) -> bool {
        let bit = Self::cgroup_bit(cgroup);
        load(&self.cgroups[(bit / 64) as usize]) >> (bit % 64) & 1 != 0
    }

    /// Says whether a cgroup with this id's bit is managed.
    #[cfg(target_has_atomic = "64")]
    pub fn set_cgroup(&self, cgroup: u64, managed: bool) {
        set_bit(&self.cgroups, Self::cgroup_bit(cgroup), managed);
    }

    /// The bit that the cgroup shares with others.
    #[inline(always)]
    pub const fn cgroup_bit(cgroup: u64) -> u32 {
        cgroup as u32 & ((1 << CGROUP_BITS) - 1)
    }
}

impl Default for State {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(target_has_atomic = "64")]
fn set_bit(words: &[AtomicU64], bit: u32, value: bool) {
    let (word, mask) = (&words[bit as usize / 64], 1_u64 << (bit % 64));
    if value {
        word.fetch_or(mask, Relaxed);
    } else {
        word.fetch_and(!mask, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout() {
        assert_eq!((size_of::<State>(), align_of::<State>()), (10 * 8 + 1024 + 8192, 8));
    }

    #[test]
    fn bits_of_majors_are_apart() {
        let state = State::new();
        state.set_major(DeviceNumber::char(10, 229), true);
        assert!(state.names_major(DeviceNumber::char(10, 1)));
        assert!(!state.names_major(DeviceNumber::block(10, 229)));
        assert!(!state.names_major(DeviceNumber::char(74, 0)));
        state.set_major(DeviceNumber::char(10, 0), false);
        assert!(!state.names_major(DeviceNumber::char(10, 229)));
        state.set_major(DeviceNumber::block(4095, 0), true);
        assert!(state.names_major(DeviceNumber::block(4095, 7)));
    }

    #[test]
    fn cgroups_that_share_their_low_bits_share_a_bit() {
        let state = State::new();
        state.set_cgroup(0x1_0007, true);
        assert!(state.may_manage(7));
        assert!(!state.may_manage(8));
    }
}
