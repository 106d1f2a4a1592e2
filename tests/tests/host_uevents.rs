//! What the guard's socket filter takes for the removal of a device, on its own socket in a network namespace.

use std::fs;

use devgate::executors::enforcer::status;
use devgate_tests::{
    loops::LoopDevice,
    network::{Network, Uevents},
    prelude::*,
    raw,
};

tests![
    removals_void_the_number_that_they_name,
    long_paths_are_read_to_their_end,
    other_messages_void_nothing,
    cut_messages_void_nothing,
    numbers_without_an_epoch_are_left_alone,
    an_event_that_somebody_asked_for_is_no_removal,
];

const BLOCK: DeviceNumber = DeviceNumber::block(7, 3);
const CHAR: DeviceNumber = DeviceNumber::char(7, 3);
/// The numbers that have an epoch.
const KNOWN: [DeviceNumber; 5] = [FUSE, BLOCK, CHAR, ABSENT, DeviceNumber::char(0, 0)];

/// A guard in a namespace, and what it hears.
struct Scene {
    enforcer: KernelEnforcer,
    scratch: Scratch,
    _network: Network,
    uevents: Uevents,
}

impl Scene {
    fn new(name: &str) -> anyhow::Result<Self> {
        let scratch = Scratch::new(name)?;
        let network = Network::new()?;
        let mut enforcer = scratch.enforcer_with(|config| config.net_namespace = network.path())?;
        for device in KNOWN {
            enforcer.epoch(device)?;
        }
        Ok(Self { scratch, enforcer, uevents: network.uevents()?, _network: network })
    }

    /// The numbers that a message voids.
    fn voided(&mut self, message: &[u8]) -> anyhow::Result<Vec<DeviceNumber>> {
        let before = self.epochs()?;
        self.uevents.send(message)?;
        let after = self.epochs()?;
        let changed = KNOWN.into_iter().zip(before.into_iter().zip(after)).filter(|(_, (before, after))| {
            assert!(*after == *before || *after == before + 1, "once, and never back");
            before != after
        });
        Ok(changed.map(|(device, _)| device).collect())
    }

    fn epochs(&mut self) -> anyhow::Result<Vec<u64>> {
        KNOWN.into_iter().map(|device| Ok(self.enforcer.epoch(device)?.value())).collect()
    }
}

/// A message as the kernel makes it.
fn message(action: &str, path: &str, subsystem: &str, rest: &[&str]) -> Vec<u8> {
    let head = [format!("{action}@{path}"), format!("ACTION={action}"), format!("DEVPATH={path}")];
    let mut text = head.join("\0");
    text += &["\0SUBSYSTEM=", subsystem, "\0"].concat();
    for field in rest.iter().chain(&["SEQNUM=7"]) {
        text.push_str(field);
        text.push('\0');
    }
    text.into_bytes()
}

fn removal(path: &str, subsystem: &str, device: DeviceNumber) -> Vec<u8> {
    let (major, minor) = (format!("MAJOR={}", device.major()), format!("MINOR={}", device.minor()));
    message("remove", path, subsystem, &[&major, &minor])
}

// Fault: agent-ebpf/src/guard.rs
// - let kind = if load::<6>(ctx, at)? == *b"block\0" { DeviceKind::Block } else { DeviceKind::Char };
// + let kind = if load::<5>(ctx, at)? == *b"block" { DeviceKind::Block } else { DeviceKind::Char };
// Fault: agent-ebpf/src/guard.rs
// - at = at + length::<8, 8>(ctx, at)? + 1;
// + at = at + length::<8, 2>(ctx, at)? + 1;
// Fault: agent-ebpf/src/guard.rs
// - value = value * 10 + u32::from(byte - b'0');
// + value = (value * 10 + u32::from(byte - b'0')) & 0xffff;
fn removals_void_the_number_that_they_name() -> TestResult {
    let mut scene = Scene::new("removals")?;
    let long = "s".repeat(60);
    for (subsystem, device) in [
        ("misc", FUSE),
        ("block", BLOCK),
        ("mem", CHAR),
        ("b", CHAR),
        ("bloc", CHAR),
        ("blocks", CHAR),
        ("block2", CHAR),
        ("Block", CHAR),
        ("infiniband_verbs", ABSENT),
        (&long, ABSENT),
        ("misc", DeviceNumber::char(0, 0)),
    ] {
        assert_eq!(scene.voided(&removal("/devices/x", subsystem, device))?, [device], "{subsystem}");
    }
    // Further fields make no difference, nor do those of the path that look like others.
    let more = ["MAJOR=10", "MINOR=229", "DEVNAME=fuse", "DEVMODE=0666", "MAJOR=7", "MINOR=3"];
    assert_eq!(scene.voided(&message("remove", "/devices/MAJOR=7/MINOR=3", "misc", &more))?, [FUSE]);
    assert_eq!(status(&scene.scratch.config())?.guards.uevent_advances, 12);
    Ok(())
}

// Fault: agent-ebpf/src/guard.rs
// - let path = length::<16, 80>(ctx, at)?;
// + let path = length::<16, 60>(ctx, at)?;
// Fault: agent-ebpf/src/guard.rs
// - return Some(unknown(chunk * N + index)? & 0xfff);
// + return Some(unknown(chunk * N + index)? & 0x1ff);
fn long_paths_are_read_to_their_end() -> TestResult {
    let mut scene = Scene::new("paths")?;
    let around = |length: usize| [length - 1, length, length + 1];
    let lengths = [16, 32, 48, 64, 128, 256, 512, 1000, 1024, 1200].into_iter().flat_map(around);
    for length in (1..=20).chain(lengths) {
        let path = format!("/{}", "d".repeat(length - 1));
        for (subsystem, device) in [("misc", FUSE), ("block", BLOCK)] {
            assert_eq!(scene.voided(&removal(&path, subsystem, device))?, [device], "a path of {length} bytes");
        }
    }
    Ok(())
}

// Fault: agent-ebpf/src/guard.rs
// - expect(ctx, &mut at, HEADER)?;
// + at += HEADER.len();
// - expect(ctx, &mut at, ACTION)?;
// + at += ACTION.len();
// Fault: agent-ebpf/src/guard.rs
// - if !byte.is_ascii_digit() {
// - return None;
// - }
// + if byte == b'-' {
// + return None;
// + }
fn other_messages_void_nothing() -> TestResult {
    let mut scene = Scene::new("others")?;
    let fuse = ["MAJOR=10", "MINOR=229"];
    let mut messages: Vec<(String, Vec<u8>)> = Vec::new();
    // `unbind` is as long as `remove`.
    for action in ["add", "change", "move", "online", "offline", "bind", "unbind", "removed", "REMOVE"] {
        messages.push((action.to_owned(), message(action, "/devices/x", "misc", &fuse)));
    }
    for rest in [
        &["MAJOR=10"][..],
        &["MINOR=229"],
        &["MINOR=229", "MAJOR=10"],
        &["SYNTH_UUID=0", "MAJOR=10", "MINOR=229"],
        &["DEVNAME=fuse", "MAJOR=10", "MINOR=229"],
        &["MAJOR=", "MINOR=229"],
        &["MAJOR=10", "MINOR="],
        &["MAJOR=1x", "MINOR=229"],
        // As digits these would be 10 and 229.
        &["MAJOR=:", "MINOR=229"],
        &["MAJOR=10", "MINOR=21C"],
        &["MAJOR=10", "MINOR=22:"],
        &["MAJOR=10", "MINOR=-229"],
        &["MAJOR= 10", "MINOR=229"],
        &["MAJOR=4106", "MINOR=229"],
        &["MAJOR=10", "MINOR=1048805"],
        &["MAJOR=00000010", "MINOR=229"],
        &["MAJOR=4294967306", "MINOR=229"],
        &["MAJOR=10", "MINOR=4294967525"],
        &["MAJOR=10 MINOR=229"],
        &["major=10", "minor=229"],
        &[],
    ] {
        messages.push((format!("{rest:?}"), message("remove", "/devices/x", "misc", rest)));
    }
    let text = |text: &str| text.replace('|', "\0").into_bytes();
    for message in [
        "",
        "|",
        "remove",
        "remove@",
        "remove@|||||||||||||||||||||||||||||||||||||",
        "libudev|remove@/d|ACTION=remove|DEVPATH=/d|SUBSYSTEM=misc|MAJOR=10|MINOR=229|SEQNUM=1|",
        "remove@/d|ACTION=add|DEVPATH=/d|SUBSYSTEM=misc|MAJOR=10|MINOR=229|SEQNUM=1|",
        "remove@/d|DEVPATH=/d|ACTION=remove|SUBSYSTEM=misc|MAJOR=10|MINOR=229|SEQNUM=1|",
        "remove@/d|ACTION=remove|DEVPATH=/dd|SUBSYSTEM=misc|MAJOR=10|MINOR=229|SEQNUM=1|",
        "remove@/dd|ACTION=remove|DEVPATH=/d|SUBSYSTEM=misc|MAJOR=10|MINOR=229|SEQNUM=1|",
        "unbind@/d|ACTION=remove|DEVPATH=/d|SUBSYSTEM=misc|MAJOR=10|MINOR=229|SEQNUM=1|",
        "remove@/d|ACTION=remove|DEVPATH=/d|MAJOR=10|MINOR=229|SEQNUM=1|",
    ] {
        messages.push((message.to_owned(), text(message)));
    }
    messages.push(("all bytes".to_owned(), (0..=255).cycle().take(4000).collect()));
    messages.push(("no end".to_owned(), [b"remove@".as_slice(), &[b'x'; 4000]].concat()));
    for (what, message) in messages {
        // The kernel sends no empty messages, nor can anybody.
        if !message.is_empty() {
            assert_eq!(scene.voided(&message)?, [], "{what}");
        }
    }
    assert_eq!(scene.voided(&removal("/devices/x", "misc", FUSE))?, [FUSE], "the guard is not confused");
    Ok(())
}

/// Cut anywhere, a message says either all that is needed or nothing.
// Fault: agent-ebpf/src/guard.rs
// - if byte == 0 && index > 0 {
// + if (byte == 0 || index == 2) && index > 0 {
fn cut_messages_void_nothing() -> TestResult {
    let mut scene = Scene::new("cut")?;
    let whole = removal("/devices/virtual/misc/fuse", "misc", FUSE);
    let end = whole.windows(9).position(|bytes| bytes == b"MINOR=229").expect("it has a minor number") + 10;
    for length in 1..end {
        assert_eq!(scene.voided(&whole[..length])?, [], "the first {length} bytes");
    }
    assert_eq!(scene.voided(&whole)?, [FUSE]);
    Ok(())
}

// Fault: agent-ebpf/src/guard.rs
// - let Some(&slot) = (unsafe { EPOCH_SLOTS.get(number) }) else { return };
// + let slot = unsafe { EPOCH_SLOTS.get(number) }.copied().unwrap_or(1);
fn numbers_without_an_epoch_are_left_alone() -> TestResult {
    let mut scene = Scene::new("unknown")?;
    let config = scene.scratch.config();
    let before = status(&config)?;
    for minor in 0..200 {
        let unknown = DeviceNumber::char(200, minor);
        assert_eq!(scene.voided(&removal("/devices/x", "tty", unknown))?, []);
        assert_eq!(raw::epoch(&config, unknown)?, None);
    }
    let after = status(&config)?;
    assert_eq!((after.devices, after.guards.uevent_advances), (before.devices, 0));
    Ok(())
}

/// Anybody who may write to a file in sysfs can have the kernel send an event of any action.
// Fault: agent-ebpf/src/guard.rs
// - expect(ctx, &mut at, MAJOR)?;
// + if expect(ctx, &mut at, MAJOR).is_none() {
// + at += length::<8, 8>(ctx, at)? + 1;
// + expect(ctx, &mut at, MAJOR)?;
// + }
fn an_event_that_somebody_asked_for_is_no_removal() -> TestResult {
    const INDEX: u32 = 6004;
    let scratch = Scratch::new("asked")?;
    let network = Network::new()?;
    let mut enforcer = scratch.enforcer_with(|config| config.net_namespace = network.path())?;
    let events = network.uevents()?;
    let device = LoopDevice::plug(INDEX)?;
    let before = enforcer.epoch(device.number())?;
    let file = format!("/sys/block/loop{INDEX}/uevent");
    for order in
        ["remove", "remove 01234567-89ab-cdef-0123-456789abcdef", "remove 01234567-89ab-cdef-0123-456789abcdef A=1"]
    {
        fs::write(&file, order)?;
        let mut event = String::new();
        while !event.contains("SYNTH_UUID") {
            event = events.next()?;
        }
        assert!(event.starts_with("remove@") && event.contains("MAJOR=7"), "{event}");
        assert_eq!(enforcer.epoch(device.number())?, before, "{order}");
    }
    let number = device.number();
    device.unplug();
    assert!(enforcer.epoch(number)?.value() > before.value());
    Ok(())
}
