use std::fmt;

use crate::digest::StableHash;

/// One stay of a device on the machine: new for each plug, and the same for as long as the device stays, also over a
/// restart of the agent.
///
/// A number, a path in sysfs and even a [`DeviceId`](crate::DeviceId) can be the same before and after a replug; what
/// was granted before must not hold after. Two incarnations are the same only if all three tokens are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation {
    /// When udev first handled the device, in microseconds of `CLOCK_MONOTONIC`: the property `USEC_INITIALIZED`.
    pub initialized_usec: Option<u64>,
    /// The kernel's sequence number of a block device's medium: the property `DISKSEQ`.
    pub disk_sequence: Option<u64>,
    /// A number of the source's for the stay: that of the device's folder in sysfs, which the kernel gives to no other
    /// folder until the next boot. It is there for devices of which udev says nothing, and tells when the udev database
    /// still speaks of the device before. 0 where the source has none.
    pub plug: u64,
}

impl Incarnation {
    /// The mark that rules and nodes of this incarnation carry in the kernel and in containers.
    pub fn generation(&self) -> Generation {
        let Self { initialized_usec, disk_sequence, plug } = *self;
        let tokens = [initialized_usec, disk_sequence, Some(plug)];
        let hash = tokens.iter().fold(StableHash::default(), |hash, token| {
            hash.number(u64::from(token.is_some())).number(token.unwrap_or_default())
        });
        Generation(hash.bits32())
    }
}

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.initialized_usec, self.disk_sequence) {
            (Some(usec), Some(sequence)) => write!(f, "{usec}us/{sequence}"),
            (Some(usec), None) => write!(f, "{usec}us"),
            (None, Some(sequence)) => write!(f, "medium {sequence}"),
            (None, None) => write!(f, "plug {}", self.plug),
        }
    }
}

/// A mark of 32 bits made from an [`Incarnation`], so that after a restart of the agent a rule or a node that is read
/// back tells for which incarnation it was made. It is the `generation` of a kernel rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Generation(pub u32);

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.0)
    }
}
