//! Device numbers that tests ask for.

use devgate_abi::DeviceNumber;

/// `/dev/fuse`, which can be opened any number of times and is on nearly every machine.
pub const FUSE: DeviceNumber = DeviceNumber::char(10, 229);
/// The first loop device; opening it changes nothing.
pub const LOOP: DeviceNumber = DeviceNumber::block(7, 0);
/// A number that no driver has: who may open it gets [`NO_DEVICE`](crate::NO_DEVICE).
pub const ABSENT: DeviceNumber = DeviceNumber::char(DeviceNumber::MAX_MAJOR, DeviceNumber::MAX_MINOR);

/// Any number of numbers that no driver has: characters of the last major.
pub const fn absent(index: u32) -> DeviceNumber {
    DeviceNumber::char(DeviceNumber::MAX_MAJOR, index)
}

/// The standard devices of containers that this machine has too.
pub const STANDARD: [(&str, DeviceNumber); 7] = [
    ("null", DeviceNumber::char(1, 3)),
    ("zero", DeviceNumber::char(1, 5)),
    ("full", DeviceNumber::char(1, 7)),
    ("random", DeviceNumber::char(1, 8)),
    ("urandom", DeviceNumber::char(1, 9)),
    ("tty", DeviceNumber::char(5, 0)),
    ("ptmx", DeviceNumber::char(5, 2)),
];
