//! Devices as udev showed them on a real kernel: `udevadm info` and `umockdev-record` in one reader, which share the
//! form `LETTER: rest of the line`, and `udevadm monitor`.

use std::collections::BTreeMap;
use std::path::Path;

use devgate_core::{Device, DeviceKind, DeviceNumber, Incarnation, NodeOwner, Parent, Properties};

#[derive(Default)]
struct Record {
    devpath: String,
    properties: Properties,
    attributes: BTreeMap<String, String>,
}

fn fixture(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The devices of a recording that have a node and were set up by udev, in the order of the file.
pub(crate) fn recorded(name: &str) -> Vec<Device> {
    let text = fixture(name);
    let text = text.split("## udevadm info").nth(1).unwrap_or(&text);
    let text = text.split("## device nodes").next().unwrap_or(text);
    let mut records: Vec<Record> = Vec::new();
    for line in text.lines() {
        let Some((letter, rest)) = line.split_once(": ") else { continue };
        match (letter, records.last_mut(), rest.split_once('=')) {
            ("P", ..) => records.push(Record { devpath: rest.to_owned(), ..Record::default() }),
            ("E", Some(record), Some((name, value))) => {
                record.properties.insert(name.to_owned(), value.to_owned());
            }
            ("A", Some(record), Some((name, value))) => {
                record.attributes.insert(name.to_owned(), value.trim_end_matches("\\n").to_owned());
            }
            _ => {}
        }
    }
    let devices: Vec<_> = records.iter().filter_map(|record| device(record, &records)).collect();
    assert!(!devices.is_empty(), "{name} has no device");
    devices
}

fn device(record: &Record, all: &[Record]) -> Option<Device> {
    let mut above: Vec<_> = all.iter().filter(|other| is_above(other, record)).collect();
    above.sort_by_key(|other| std::cmp::Reverse(other.devpath.len()));
    let parent = |record: &&Record| Parent {
        devpath: record.devpath.as_str().into(),
        subsystem: record.properties.get("SUBSYSTEM").cloned(),
        properties: record.properties.clone(),
        attributes: record.attributes.clone(),
    };
    from_properties(&record.devpath, &record.properties, &record.attributes, above.iter().map(parent).collect())
}

fn is_above(other: &Record, record: &Record) -> bool {
    record.devpath.strip_prefix(&other.devpath).is_some_and(|rest| rest.starts_with('/'))
}

fn from_properties(
    devpath: &str,
    properties: &Properties,
    attributes: &BTreeMap<String, String>,
    parents: Vec<Parent>,
) -> Option<Device> {
    let number = |name: &str| properties.get(name).and_then(|value| value.parse().ok());
    let subsystem = properties.get("SUBSYSTEM")?.clone();
    let kind = if subsystem == "block" { DeviceKind::Block } else { DeviceKind::Char };
    let (major, minor): (u64, u64) = (number("MAJOR")?, number("MINOR")?);
    let small = |number: u64| u32::try_from(number).expect("a device number is small");
    Some(Device {
        devpath: devpath.into(),
        devnode: properties.get("DEVNAME")?.clone(),
        number: DeviceNumber::new(kind, small(major), small(minor))?,
        incarnation: Incarnation {
            initialized_usec: number("USEC_INITIALIZED"),
            disk_sequence: number("DISKSEQ"),
            plug: 0,
        },
        owner: NodeOwner { mode: 0o660, uid: 0, gid: 20 },
        subsystem,
        properties: properties.clone(),
        attributes: attributes.clone(),
        parents,
    })
}

/// One event of a recorded `udevadm monitor --kernel --udev --property`.
pub(crate) struct Monitor {
    /// From the kernel's own group, not udev's.
    pub(crate) kernel: bool,
    pub(crate) action: String,
    pub(crate) devpath: String,
    /// The device, if the event is of one with a node. What is above it is what the events before have said.
    pub(crate) device: Option<Device>,
}

/// The events of a recording, in order.
pub(crate) fn recorded_monitor(name: &str) -> Vec<Monitor> {
    let text = fixture(name);
    let mut known: BTreeMap<String, Record> = BTreeMap::new();
    let mut events = Vec::new();
    for block in text.split("\n\n") {
        let mut lines = block.lines();
        let kernel = match lines.next() {
            Some(first) if first.starts_with("KERNEL[") => true,
            Some(first) if first.starts_with("UDEV ") => false,
            _ => continue,
        };
        let pairs = lines.filter_map(|line| line.split_once('='));
        let properties: Properties = pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        let (action, devpath) = (properties["ACTION"].clone(), properties["DEVPATH"].clone());
        let record = Record { devpath: devpath.clone(), properties, attributes: BTreeMap::new() };
        let above = |other: &&Record| is_above(other, &record);
        let mut parents: Vec<_> = known.values().filter(above).collect();
        parents.sort_by_key(|other| std::cmp::Reverse(other.devpath.len()));
        let parent = |record: &&Record| Parent {
            devpath: record.devpath.as_str().into(),
            subsystem: record.properties.get("SUBSYSTEM").cloned(),
            properties: record.properties.clone(),
            attributes: BTreeMap::new(),
        };
        let device = from_properties(
            &record.devpath,
            &record.properties,
            &record.attributes,
            parents.iter().map(parent).collect(),
        );
        events.push(Monitor { kernel, action: action.clone(), devpath: devpath.clone(), device });
        if !kernel {
            known.insert(devpath, record);
        }
    }
    assert!(!events.is_empty(), "{name} has no event");
    events
}
