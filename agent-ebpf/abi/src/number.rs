use crate::Plain;

/// Block or character device, with the kernel's own numbers (`BPF_DEVCG_DEV_*` in `include/uapi/linux/bpf.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u16)]
pub enum DeviceKind {
    /// `BPF_DEVCG_DEV_BLOCK`
    Block = 1,
    /// `BPF_DEVCG_DEV_CHAR`
    Char = 2,
}

impl DeviceKind {
    /// The kind that the kernel's number stands for.
    pub const fn from_raw(raw: u16) -> Option<Self> {
        match raw {
            1 => Some(Self::Block),
            2 => Some(Self::Char),
            _ => None,
        }
    }
}

/// The number under which the kernel knows a device: its kind, major and minor. It is never an identity: numbers are
/// given to another device as soon as theirs is gone.
///
/// The fields are as the maps hold them, so that a value read from a map needs no check: `kind` is 1 or 2 as in
/// [`DeviceKind`], `major` at most 4095 and `minor` at most 1048575 (`MINORBITS` in `include/linux/kdev_t.h`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(C)]
pub struct DeviceNumber {
    kind: u16,
    major: u16,
    minor: u32,
}

// SAFETY: repr(C), 2 + 2 + 4 bytes without padding, integers only.
unsafe impl Plain for DeviceNumber {}

impl DeviceNumber {
    /// The largest major number of Linux.
    pub const MAX_MAJOR: u32 = (1 << 12) - 1;
    /// The largest minor number of Linux.
    pub const MAX_MINOR: u32 = (1 << 20) - 1;

    /// A number, or `None` if major or minor are larger than Linux has.
    pub const fn new(kind: DeviceKind, major: u32, minor: u32) -> Option<Self> {
        if major > Self::MAX_MAJOR || minor > Self::MAX_MINOR {
            return None;
        }
        Some(Self { kind: kind as u16, major: major as u16, minor })
    }

    /// A character device.
    ///
    /// # Panics
    ///
    /// If major or minor are out of range. Meant for numbers that are known when the code is written.
    pub const fn char(major: u32, minor: u32) -> Self {
        match Self::new(DeviceKind::Char, major, minor) {
            Some(number) => number,
            None => panic!("device number out of range"),
        }
    }

    /// A block device.
    ///
    /// # Panics
    ///
    /// As [`DeviceNumber::char`].
    pub const fn block(major: u32, minor: u32) -> Self {
        match Self::new(DeviceKind::Block, major, minor) {
            Some(number) => number,
            None => panic!("device number out of range"),
        }
    }

    /// The number in one word, as it lies in memory on a little-endian machine.
    #[inline(always)]
    pub const fn bits(self) -> u64 {
        self.kind as u64 | (self.major as u64) << 16 | (self.minor as u64) << 32
    }

    /// The number whose [`bits`](Self::bits) these are.
    #[inline(always)]
    pub const fn from_bits(bits: u64) -> Self {
        Self { kind: bits as u16, major: (bits >> 16) as u16, minor: (bits >> 32) as u32 }
    }

    /// Block or character; `None` only for a value that no version of this crate wrote.
    pub const fn kind(self) -> Option<DeviceKind> {
        DeviceKind::from_raw(self.kind)
    }

    /// The number of the kind, which is that of a [`DeviceKind`].
    #[inline(always)]
    pub(crate) const fn kind_number(self) -> u32 {
        self.kind as u32
    }

    /// Whether this is a block device.
    pub const fn is_block(self) -> bool {
        self.kind == DeviceKind::Block as u16
    }

    /// The major number.
    pub const fn major(self) -> u32 {
        self.major as u32
    }

    /// The minor number.
    pub const fn minor(self) -> u32 {
        self.minor
    }

    /// The standard devices that every runtime gives to every container: null, zero, full, random, urandom, tty, ptmx
    /// and the pseudo terminals (OCI runtime specification, "Default Devices"). No rule may name them and no policy
    /// denies them: a container without them does not run.
    #[inline(always)]
    pub const fn is_standard(self) -> bool {
        self.kind == DeviceKind::Char as u16
            && match self.major {
                1 => matches!(self.minor, 3 | 5 | 7 | 8 | 9),
                5 => matches!(self.minor, 0 | 2),
                136 => true,
                _ => false,
            }
    }
}

impl core::fmt::Display for DeviceNumber {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let kind = match self.kind() {
            Some(DeviceKind::Block) => "b",
            Some(DeviceKind::Char) => "c",
            None => "?",
        };
        write!(f, "{kind} {}:{}", self.major, self.minor)
    }
}

impl core::fmt::Debug for DeviceNumber {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        core::fmt::Display::fmt(self, f)
    }
}

/// A set of the accesses that the kernel asks about, in its own bits (`BPF_DEVCG_ACC_*`): mknod 1, read 2, write 4.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Access(u8);

// SAFETY: repr(transparent) over an integer; unknown bits are kept out by `from_bits` and mean nothing elsewhere.
unsafe impl Plain for Access {}

impl Access {
    /// Nothing: what `access(F_OK)` asks.
    pub const NONE: Self = Self(0);
    /// To make a node of the device.
    pub const MKNOD: Self = Self(1);
    /// To open it for reading.
    pub const READ: Self = Self(2);
    /// To open it for writing.
    pub const WRITE: Self = Self(4);
    /// Reading and writing.
    pub const READ_WRITE: Self = Self(6);
    /// Everything.
    pub const ALL: Self = Self(7);

    /// The set that the kernel's bits stand for; other bits are dropped.
    pub const fn from_bits(bits: u32) -> Self {
        Self((bits & 7) as u8)
    }

    /// The kernel's bits.
    pub const fn bits(self) -> u32 {
        self.0 as u32
    }

    /// Whether nothing is in the set.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether all of `other` is in this set.
    pub const fn contains(self, other: Self) -> bool {
        other.0 & !self.0 == 0
    }

    /// Whether the sets have an access in common.
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// What is in either set.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl core::fmt::Display for Access {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        for (bit, letter) in [(Self::READ, "r"), (Self::WRITE, "w"), (Self::MKNOD, "m")] {
            if self.contains(bit) {
                f.write_str(letter)?;
            }
        }
        Ok(())
    }
}

impl core::fmt::Debug for Access {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Access({self})")
    }
}

/// The letters `r`, `w` and `m` in any order; each at most once.
impl core::str::FromStr for Access {
    type Err = InvalidAccess;

    fn from_str(text: &str) -> Result<Self, InvalidAccess> {
        let mut access = Self::NONE;
        for letter in text.chars() {
            let bit = match letter {
                'r' => Self::READ,
                'w' => Self::WRITE,
                'm' => Self::MKNOD,
                _ => return Err(InvalidAccess),
            };
            if access.contains(bit) {
                return Err(InvalidAccess);
            }
            access = access.union(bit);
        }
        Ok(access)
    }
}

/// A text that is not a set of the letters `r`, `w` and `m`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidAccess;

impl core::fmt::Display for InvalidAccess {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("access is made of the letters r, w and m, each at most once")
    }
}

impl core::error::Error for InvalidAccess {}

/// One question of the kernel: may the current task have this access to this device? One call carries the union of what
/// an `open` asks; `mknod` asks [`Access::MKNOD`] alone; `access(F_OK)` asks [`Access::NONE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The device.
    pub device: DeviceNumber,
    /// What is asked for.
    pub access: Access,
}

impl Request {
    /// Reads a question as the kernel puts it into `struct bpf_cgroup_dev_ctx`: `access_type` holds the kind in its low
    /// and the access in its high 16 bits. `None` for a kind or number that this version does not know.
    #[inline(always)]
    pub const fn from_kernel(access_type: u32, major: u32, minor: u32) -> Option<Self> {
        let Some(kind) = DeviceKind::from_raw(access_type as u16) else { return None };
        match DeviceNumber::new(kind, major, minor) {
            Some(device) => Some(Self { device, access: Access::from_bits(access_type >> 16) }),
            None => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_is_eight_bytes_without_padding() {
        assert_eq!((size_of::<DeviceNumber>(), align_of::<DeviceNumber>()), (8, 4));
    }

    #[test]
    fn numbers_beyond_linux_are_refused() {
        assert!(DeviceNumber::new(DeviceKind::Char, 4096, 0).is_none());
        assert!(DeviceNumber::new(DeviceKind::Block, 0, 1 << 20).is_none());
        assert!(DeviceNumber::new(DeviceKind::Char, 4095, (1 << 20) - 1).is_some());
    }

    #[test]
    fn a_question_of_the_kernel_is_read() {
        let request = Request::from_kernel((6 << 16) | 2, 10, 229).unwrap();
        assert_eq!(request, Request { device: DeviceNumber::char(10, 229), access: Access::READ_WRITE });
        assert_eq!(Request::from_kernel(1 << 16, 10, 229), None);
    }

    #[test]
    fn letters_of_access() {
        assert_eq!("wmr".parse(), Ok(Access::ALL));
        assert_eq!("rr".parse::<Access>(), Err(InvalidAccess));
        assert_eq!("rx".parse::<Access>(), Err(InvalidAccess));
        assert_eq!(Access::ALL.to_string(), "rwm");
    }

    #[test]
    fn null_is_standard_and_kmsg_is_not() {
        assert!(DeviceNumber::char(1, 3).is_standard());
        assert!(DeviceNumber::char(136, 77).is_standard());
        assert!(!DeviceNumber::char(1, 11).is_standard());
        assert!(!DeviceNumber::char(5, 1).is_standard());
        assert!(!DeviceNumber::block(1, 3).is_standard());
    }
}
