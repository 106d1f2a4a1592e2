//! What uevents say, from the kernel and from udev.
//!
//! The kernel sends `ACTION@DEVPATH` and then `KEY=VALUE`, each ended by a NUL (`lib/kobject_uevent.c`). udev sends the same
//! pairs behind a header of its own (`struct monitor_netlink_header` in systemd's `device-monitor.c`, unchanged since 2009).

use devgate_core::{DevPath, DeviceKind, DeviceNumber};

/// What stands in the header after the prefix, in network byte order.
pub(super) const MAGIC: u32 = 0xfeed_cafe;
/// Where in the header that is.
pub(super) const MAGIC_OFFSET: u32 = 8;
/// Where in the header the hash of the subsystem is, in network byte order.
pub(super) const SUBSYSTEM_HASH_OFFSET: u32 = 24;
const PREFIX: &[u8] = b"libudev\0";
/// Where in the header, in the byte order of the machine, it says where the pairs begin.
const PAIRS_OFFSET: usize = 16;

/// A uevent, as far as it matters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) action: String,
    pub(super) devpath: DevPath,
    /// Where the device was, if it was moved.
    pub(super) devpath_old: Option<DevPath>,
    pub(super) subsystem: Option<String>,
    /// The number of its node, if it has one.
    pub(super) number: Option<DeviceNumber>,
    /// The kernel's count of uevents, which udev hands on; 0 if it is not said.
    pub(super) sequence: u64,
}

impl Message {
    /// Reads what the kernel's group carries.
    pub(super) fn of_kernel(bytes: &[u8]) -> Option<Self> {
        let mut pairs = bytes.split(|byte| *byte == 0);
        let title = pairs.next()?;
        title.contains(&b'@').then(|| Self::of_pairs(pairs))?
    }

    /// Reads what udev's group carries.
    pub(super) fn of_udev(bytes: &[u8]) -> Option<Self> {
        let magic = bytes.get(MAGIC_OFFSET as usize..MAGIC_OFFSET as usize + 4)?;
        if !bytes.starts_with(PREFIX) || magic != MAGIC.to_be_bytes() {
            return None;
        }
        let word = |at: usize| Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?) as usize);
        let (begin, length) = (word(PAIRS_OFFSET)?, word(PAIRS_OFFSET + 4)?);
        let pairs = bytes.get(begin..begin.checked_add(length)?)?;
        Self::of_pairs(pairs.split(|byte| *byte == 0))
    }

    fn of_pairs<'a>(pairs: impl Iterator<Item = &'a [u8]>) -> Option<Self> {
        let (mut action, mut devpath, mut devpath_old, mut subsystem) = (None, None, None, None);
        let (mut major, mut minor, mut sequence) = (None, None, 0);
        for pair in pairs.filter_map(|pair| str::from_utf8(pair).ok()) {
            let Some((key, value)) = pair.split_once('=') else { continue };
            match key {
                "ACTION" => action = Some(value.to_owned()),
                "DEVPATH" => devpath = Some(path(value)?),
                "DEVPATH_OLD" => devpath_old = Some(path(value)?),
                "SUBSYSTEM" => subsystem = Some(value.to_owned()),
                "MAJOR" => major = value.parse().ok(),
                "MINOR" => minor = value.parse().ok(),
                "SEQNUM" => sequence = value.parse().ok()?,
                _ => {}
            }
        }
        let kind = if subsystem.as_deref() == Some("block") { DeviceKind::Block } else { DeviceKind::Char };
        let number = major.zip(minor).and_then(|(major, minor)| DeviceNumber::new(kind, major, minor));
        Some(Self { action: action?, devpath: devpath?, devpath_old, subsystem, number, sequence })
    }
}

/// A path below the root of sysfs. It is joined to a path and read, and whoever sends it need not be the kernel.
fn path(text: &str) -> Option<DevPath> {
    let plain = text.split('/').skip(1).all(|part| !matches!(part, "" | "." | ".."));
    (text.starts_with('/') && plain).then(|| DevPath::from(text))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A message as udev sends it.
    pub(in super::super) fn udev_message(subsystem: &str, pairs: &str) -> Vec<u8> {
        let mut bytes = PREFIX.to_vec();
        bytes.extend(MAGIC.to_be_bytes());
        for word in [40, 40, pairs.len() as u32] {
            bytes.extend(word.to_ne_bytes());
        }
        bytes.extend(super::super::filter::subsystem_hash(subsystem).to_be_bytes());
        bytes.extend([0; 12]);
        bytes.extend(pairs.as_bytes());
        bytes
    }

    const PAIRS: &str = "ACTION=remove\0DEVPATH=/devices/a/tty/ttyUSB0\0SUBSYSTEM=tty\0SEQNUM=41\0MAJOR=188\0MINOR=0\0";

    fn removal() -> Message {
        Message {
            action: "remove".into(),
            devpath: "/devices/a/tty/ttyUSB0".into(),
            devpath_old: None,
            subsystem: Some("tty".into()),
            number: Some(DeviceNumber::char(188, 0)),
            sequence: 41,
        }
    }

    #[test]
    fn the_kernel_and_udev_say_the_same() {
        let kernel = format!("remove@/devices/a/tty/ttyUSB0\0{PAIRS}");
        assert_eq!(Message::of_kernel(kernel.as_bytes()), Some(removal()));
        assert_eq!(Message::of_udev(&udev_message("tty", PAIRS)), Some(removal()));
        assert_eq!(Message::of_udev(kernel.as_bytes()), None, "each group has its own form");
        assert_eq!(Message::of_kernel(&udev_message("tty", PAIRS)), None);
    }

    #[test]
    fn disks_are_block_devices_and_moves_have_two_paths() {
        let text = "move@/devices/b\0ACTION=move\0DEVPATH=/devices/b\0DEVPATH_OLD=/devices/a\0SUBSYSTEM=block\0MAJOR=8\0MINOR=16\0";
        let message = Message::of_kernel(text.as_bytes()).expect("it is one");
        assert_eq!(message.number, Some(DeviceNumber::block(8, 16)));
        assert_eq!(message.devpath_old, Some("/devices/a".into()));
    }

    #[test]
    fn no_message_leads_out_of_sysfs_or_ends_the_agent() {
        for path in ["/devices/../../etc", "devices/a", "/devices//a", "/.", ""] {
            let text = format!("add@{path}\0ACTION=add\0DEVPATH={path}\0");
            assert_eq!(Message::of_kernel(text.as_bytes()), None, "{path}");
        }
        let message = udev_message("tty", PAIRS);
        for at in 0..message.len() {
            Message::of_udev(&message[..at]);
            Message::of_kernel(&message[at..]);
            let mut garbled = message.clone();
            garbled[at] ^= 0xff;
            Message::of_udev(&garbled);
        }
    }
}
