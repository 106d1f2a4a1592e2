use core::sync::atomic::AtomicU64;
#[cfg(target_has_atomic = "64")]
use core::sync::atomic::Ordering::Relaxed;

use crate::{DeviceNumber, Plain, load};

/// How many cgroup levels below the root a managed cgroup may lie.
pub const MAX_LEVEL: u32 = 31;
/// At how many different levels managed cgroups may lie: the kernel program asks for the ancestor at each of them.
pub const MAX_LEVELS: usize = 8;

/// The largest number of a slot that [`State::slot`] can answer.
pub const MAX_SLOT: u32 = (1 << LANE_BITS) - 1;

const MAJORS: usize = 4096;
const KINDS: usize = 4;
/// How many low bits of a cgroup's id choose its lane in the table of slots, and its word in that of outsiders.
const SLOT_BITS: u32 = 16;
const OUTSIDER_BITS: u32 = 12;
const LANE_BITS: u64 = 16;
const LANES: u64 = 64 / LANE_BITS;

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
    /// The CPU carries out loads in their order, as `x86_64` does: a [`RulePlace`](crate::RulePlace) can be read while it
    /// changes, and what was found can be [`learned`]. Elsewhere the kernel program does without both.
    pub const ORDERED: Self = Self(1 << 4);

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
/// else. All words are 64 bits wide, since eBPF has no smaller atomics. The first eight share a cache line.
///
/// What it says of majors and cgroups has no false negatives: it is set before the first entry that needs it and cleared
/// after the last one is gone.
#[repr(C)]
pub struct State {
    /// [`StateFlags`].
    pub flags: AtomicU64,
    /// Always zero, which the verifier does not know.
    pub zero: AtomicU64,
    /// Rises after a cgroup has become managed: what was learned about the place of other cgroups before is void.
    pub generation: AtomicU64,
    /// The levels at which managed cgroups lie, as [`pack_levels`] makes it.
    pub levels: AtomicU64,
    /// Id of the cgroup that the program is attached to.
    pub ancestor: AtomicU64,
    /// [`Policy`](crate::Policy) of the cgroups below the ancestor that nobody has classified.
    pub unclassified: AtomicU64,
    /// How many [`RulePlace`](crate::RulePlace)s there are, a power of two; 0 if they are not to be used.
    pub places: AtomicU64,
    /// 1 while the reader of the ring buffer sleeps; who writes a record then sets it to 0 and wakes it.
    pub reader_asleep: AtomicU64,
    /// [`LAYOUT_VERSION`](crate::LAYOUT_VERSION) of the agent that wrote it.
    pub layout: AtomicU64,
    /// How many elements of the containers array have ever been used.
    pub containers: AtomicU64,
    /// How many epochs the socket filter has advanced.
    pub advanced_by_uevent: AtomicU64,
    /// How many epochs the program at `device_del` has advanced.
    pub advanced_by_device_del: AtomicU64,
    /// Zero; fills the words to two cache lines.
    pub reserved: [AtomicU64; 4],
    /// By the number of the kind, so that 0 and 3 stay empty.
    majors: [[AtomicU64; MAJORS / 64]; KINDS],
    slots: [AtomicU64; (1 << SLOT_BITS) / LANES as usize],
    outsiders: [AtomicU64; 1 << OUTSIDER_BITS],
}

// SAFETY: repr(C), words without padding; atomics are valid for every pattern of bits.
unsafe impl Plain for State {}

impl State {
    /// A zeroed state: nothing managed, no rule.
    #[expect(clippy::large_stack_arrays, reason = "only tests make one; all others lie in maps")]
    pub const fn new() -> Self {
        Self {
            flags: AtomicU64::new(0),
            zero: AtomicU64::new(0),
            generation: AtomicU64::new(0),
            levels: AtomicU64::new(0),
            ancestor: AtomicU64::new(0),
            unclassified: AtomicU64::new(0),
            places: AtomicU64::new(0),
            reader_asleep: AtomicU64::new(0),
            layout: AtomicU64::new(0),
            containers: AtomicU64::new(0),
            advanced_by_uevent: AtomicU64::new(0),
            advanced_by_device_del: AtomicU64::new(0),
            reserved: [const { AtomicU64::new(0) }; 4],
            majors: [const { [const { AtomicU64::new(0) }; MAJORS / 64] }; KINDS],
            slots: [const { AtomicU64::new(0) }; (1 << SLOT_BITS) / LANES as usize],
            outsiders: [const { AtomicU64::new(0) }; 1 << OUTSIDER_BITS],
        }
    }

    /// Whether a rule names a device with this kind and major number.
    #[inline(always)]
    pub fn names_major(&self, device: DeviceNumber) -> bool {
        self.names(device.kind_number(), device.major())
    }

    /// [`names_major`](Self::names_major) before anybody has looked whether there is such a kind and number: for one that
    /// there is not, the answer may be that of another. Of `kind` the lowest bits count.
    #[inline(always)]
    pub fn names(&self, kind: u32, major: u32) -> bool {
        load(self.majors_word(kind, major)) >> (major % 64) & 1 != 0
    }

    /// Says whether a rule names a device with this kind and major number.
    #[cfg(target_has_atomic = "64")]
    pub fn set_major(&self, device: DeviceNumber, named: bool) {
        let (word, mask) = (self.majors_word(device.kind_number(), device.major()), 1 << (device.major() % 64));
        if named {
            word.fetch_or(mask, Relaxed);
        } else {
            word.fetch_and(!mask, Relaxed);
        }
    }

    #[inline(always)]
    fn majors_word(&self, kind: u32, major: u32) -> &AtomicU64 {
        &self.majors[kind as usize % KINDS][(major as usize / 64) % (MAJORS / 64)]
    }

    /// The slot of the managed cgroup with this id, or of another with the same low bits; 0 if there is none with those.
    #[inline(always)]
    pub fn slot(&self, cgroup: u64) -> u32 {
        let (word, shift) = Self::lane(cgroup);
        (load(&self.slots[word]) >> shift) as u32 & ((1 << LANE_BITS) - 1)
    }

    /// Says which slot [`slot`](Self::slot) answers for ids with these low bits: at most [`MAX_SLOT`].
    #[cfg(target_has_atomic = "64")]
    pub fn set_slot(&self, cgroup: u64, slot: u32) {
        let (word, shift) = Self::lane(cgroup);
        let (mask, value) = (((1 << LANE_BITS) - 1) << shift, u64::from(slot) << shift);
        let _ = self.slots[word].fetch_update(Relaxed, Relaxed, |lanes| Some(lanes & !mask | value));
    }

    /// What cgroups have in common that share a lane in the table of slots.
    #[inline(always)]
    pub const fn slot_bits(cgroup: u64) -> u64 {
        cgroup & ((1 << SLOT_BITS) - 1)
    }

    #[inline(always)]
    const fn lane(cgroup: u64) -> (usize, u64) {
        let lane = Self::slot_bits(cgroup);
        ((lane / LANES) as usize, lane % LANES * LANE_BITS)
    }

    /// Where it is remembered that the cgroup is an outsider: neither managed nor below a managed one. The word there is
    /// its id in the form of [`learned`].
    #[inline(always)]
    pub fn outsider_word(&self, cgroup: u64) -> &AtomicU64 {
        &self.outsiders[(cgroup & ((1 << OUTSIDER_BITS) - 1)) as usize]
    }

    /// Whether the word says that the cgroup is an outsider.
    #[inline(always)]
    pub const fn is_outsider(word: u64, cgroup: u64, generation: u64) -> bool {
        word == learned(generation, cgroup as u32) && Self::can_be_outsider(cgroup)
    }

    /// Whether the cgroup's id fits into a word. The kernel has to give out two thousand million others before it does not.
    #[inline(always)]
    pub const fn can_be_outsider(cgroup: u64) -> bool {
        cgroup >> 32 == 0
    }
}

/// What the kernel program has learned in a generation of the managed cgroups: it is void in every other.
#[inline(always)]
pub const fn learned(generation: u64, what: u32) -> u64 {
    generation << 32 | what as u64
}

/// The levels at which managed cgroups lie, counted from the root of the hierarchy, in one word: in each byte, from the
/// lowest on, one more than a level, the smallest level first; then zeros. `None` if there are more than [`MAX_LEVELS`].
#[cfg(target_has_atomic = "64")]
pub fn pack_levels(ascending: impl IntoIterator<Item = u32>) -> Option<u64> {
    let mut packed = 0;
    for (index, level) in ascending.into_iter().enumerate() {
        if index == MAX_LEVELS {
            return None;
        }
        packed |= u64::from(level + 1) << (8 * index);
    }
    Some(packed)
}

impl Default for State {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout() {
        assert_eq!((size_of::<State>(), align_of::<State>()), (2 * 64 + 2048 + (1 << 17) + (1 << 15), 8));
    }

    #[test]
    fn levels_in_a_word() {
        assert_eq!(pack_levels([]), Some(0));
        assert_eq!(pack_levels([0, 3, 31]), Some(0x20_0401));
        assert!(pack_levels(0..8).is_some());
        assert_eq!(pack_levels(0..9), None);
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
    fn cgroups_that_share_their_low_bits_share_a_lane() {
        let state = State::new();
        state.set_slot(0x1_0007, 300);
        state.set_slot(6, 65535);
        assert_eq!([5, 6, 7, 8].map(|cgroup| state.slot(cgroup)), [0, 65535, 300, 0]);
        state.set_slot(7, 0);
        assert_eq!((state.slot(0x1_0007), state.slot(6)), (0, 65535));
    }

    #[test]
    fn an_outsider_is_one_cgroup_in_one_generation() {
        let word = learned(1, 7);
        assert!(State::is_outsider(word, 7, 1));
        for (cgroup, generation) in [(7, 2), (8, 1), (1 << 32 | 7, 1)] {
            assert!(!State::is_outsider(word, cgroup, generation));
        }
    }
}
