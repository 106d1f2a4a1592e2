//! The ids of devices, over replug, reboot and twins.

use std::collections::BTreeSet;

use devgate_core::{AppliedState, Backoff, Device, DeviceId, DeviceNumber, Event, Memory, State};
use proptest::prelude::*;

use crate::support::{batch, classes, device, devices_listed, listed, recorded, runtimes, usb_serial};

/// The ids that devices have when they come one after another.
fn ids(memory: &Memory, devices: &[Device]) -> Vec<DeviceId> {
    let mut state = started(memory);
    devices.iter().map(|device| plug(&mut state, device)).collect()
}

fn started(memory: &Memory) -> State {
    let mut state = State::new(AppliedState::default(), memory, runtimes(), Backoff::default());
    state.apply(batch([devices_listed(&[]), listed(&[]), classes(&[])]), Vec::new());
    state
}

fn plug(state: &mut State, device: &Device) -> DeviceId {
    let added = Event::Device(devgate_core::DeviceEvent::Added { devpath: device.devpath.clone() });
    let reread = devgate_core::Reread { devpath: device.devpath.clone(), device: Some(device.clone()) };
    state.apply(batch([added]), vec![reread]);
    state.inventory().device(device.number).expect("just plugged").id.clone()
}

fn unplug(state: &mut State, device: &Device) {
    let removed = devgate_core::DeviceEvent::Removed { devpath: device.devpath.clone(), number: Some(device.number) };
    let reread = devgate_core::Reread { devpath: device.devpath.clone(), device: None };
    state.apply(batch([Event::Device(removed)]), vec![reread]);
}

fn id(device: &Device) -> DeviceId {
    ids(&Memory::default(), std::slice::from_ref(device)).remove(0)
}

/// What can be wrong with an id; nothing.
fn assert_fit(id: &DeviceId) {
    let text = id.as_str();
    assert!((1..=63).contains(&text.len()), "{id}");
    assert!(text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-'), "{id}");
    assert!(!text.starts_with('-') && !text.ends_with('-'), "{id}");
}

// Fault: agent/core/src/identity/mod.rs
// -             if id.len() == Self::MAX_PREFIX {
// +             if id.len() == Self::MAX_LEN {
#[test]
fn b49_odd_serials_make_fit_ids() {
    let long = "x".repeat(300);
    let odd = ["a b", "a/b", "a\0b", "Ärger", "", "-", "A", "a", &long, "…", "../../etc"];
    let mut seen = BTreeSet::new();
    for serial in odd {
        let id = id(&usb_serial(1, "4", Some(serial), 0, 1));
        assert_fit(&id);
        assert!(seen.insert(id), "{serial:?}");
    }
    let odd_vendor = device("x", DeviceNumber::char(1, 1), 1, &[("ID_SERIAL", "s"), ("ID_VENDOR_ID", &long)]);
    assert_fit(&id(&odd_vendor));
    assert_fit(&id(&Device { subsystem: long.clone(), ..odd_vendor }));
}

// Fault: agent/core/src/identity/book.rs
// -             self.ambiguous.entry(plain.clone()).or_insert(Some(first));
// +             drop(first);
#[test]
fn b49_a_twin_has_an_id_with_its_port_and_the_first_keeps_its_own() {
    let (first, twin) = (usb_serial(1, "4", Some("A"), 0, 1), usb_serial(1, "2", Some("A"), 1, 2));
    let mut state = started(&Memory::default());
    let plain = plug(&mut state, &first);
    let at_port = plug(&mut state, &twin);
    assert_ne!(plain, at_port);
    assert_eq!(state.inventory().device(first.number).map(|known| &known.id), Some(&plain));
    // The id of the first is not free for the twin when the first is away.
    unplug(&mut state, &first);
    unplug(&mut state, &twin);
    assert_eq!(plug(&mut state, &usb_serial(1, "2", Some("A"), 0, 3)), at_port);
    assert_eq!(plug(&mut state, &usb_serial(1, "4", Some("A"), 1, 4)), plain);
    // From the next start on both are called by their ports, whoever comes first.
    let memory = state.inventory().memory();
    let later = ids(&memory, &[twin.clone(), first.clone()]);
    assert_eq!(later, ids(&memory, &[first, twin]).into_iter().rev().collect::<Vec<_>>());
    assert!(!later.contains(&plain) && later.contains(&at_port));
    let text = memory.to_text();
    assert_eq!(Memory::from_text(text.as_bytes()), Ok(memory));
}

// Fault: agent/core/src/identity/key.rs
// -             None => Self { plain: at_port(""), at_port: at_port("") },
// +             None => Self { plain: DeviceId::of(&prefix, &["serial", &product, &node]), at_port: at_port("") },
#[test]
fn b49_clones_without_a_serial_are_two_devices() {
    let ids = ids(&Memory::default(), &[usb_serial(1, "4", None, 0, 1), usb_serial(1, "2", None, 1, 2)]);
    assert_ne!(ids[0], ids[1]);
    // One of them at the other's port would be the other one: only the port tells them apart.
    assert_eq!(id(&usb_serial(1, "2", None, 7, 3)), ids[1]);
}

// Fault: agent/core/src/identity/key.rs
// -             place: stable_path(devpath),
// +             place: devpath.to_owned(),
#[test]
fn b84_an_id_holds_no_number_no_kernel_name_and_no_bus() {
    let permuted = |serial, bus, minor| id(&usb_serial(bus, "4", serial, minor, 1));
    for serial in [Some("A"), None] {
        assert_eq!(permuted(serial, 1, 0), permuted(serial, 3, 7));
    }
    // Two devices that have swapped their minors keep their ids.
    let before = ids(&Memory::default(), &[usb_serial(1, "4", None, 0, 1), usb_serial(1, "2", None, 1, 2)]);
    let after = ids(&Memory::default(), &[usb_serial(1, "4", None, 1, 1), usb_serial(1, "2", None, 0, 2)]);
    assert_eq!(before, after);
}

#[test]
fn a_device_with_a_serial_keeps_its_id_at_another_port() {
    assert_eq!(id(&usb_serial(1, "4", Some("A"), 0, 1)), id(&usb_serial(2, "1.3", Some("A"), 5, 9)));
    assert_ne!(id(&usb_serial(1, "4", Some("A"), 0, 1)), id(&usb_serial(1, "4", Some("B"), 0, 1)));
}

// Fault: agent/core/src/inventory.rs
// -             known.device = Arc::new(device);
// +             known.id = crate::identity::StableKey::of(&device).plain;
#[test]
fn an_id_is_fixed_at_first_sight() {
    let mut state = started(&Memory::default());
    let first = device("ttyS7", DeviceNumber::char(4, 71), 1, &[]);
    let before = plug(&mut state, &first);
    let mut later = first;
    later.properties.insert("ID_SERIAL".into(), "found later".into());
    assert_eq!(plug(&mut state, &later), before);
}

#[test]
fn recorded_devices_have_ids_of_their_own_that_stay() {
    for file in [
        "usb-serial-ftdi.txt",
        "usb-serial-ftdi-2.txt",
        "usb-kbd.txt",
        "usb-storage.txt",
        "gadget-two-acm.txt",
        "nvme-pci.txt",
        "snd-aloop.txt",
    ] {
        let devices = recorded(file);
        let once = ids(&Memory::default(), &devices);
        once.iter().for_each(assert_fit);
        assert_eq!(once.iter().collect::<BTreeSet<_>>().len(), devices.len(), "{file}: {once:?}");
        // Numbers and incarnations as after a reboot.
        let again = devices.iter().rev().enumerate().map(|(index, device)| Device {
            number: DeviceNumber::char(240, u32::try_from(index).expect("small")),
            incarnation: devgate_core::Incarnation { plug: 77, ..Default::default() },
            ..device.clone()
        });
        let mut again = ids(&Memory::default(), &again.collect::<Vec<_>>());
        again.reverse();
        if file == "gadget-two-acm.txt" {
            // The two ends of the gadget are virtual devices that nothing but their number tells apart.
            assert_eq!(once[..3], again[..3]);
        } else {
            assert_eq!(once, again, "{file}");
        }
    }
}

#[test]
fn a_newer_udev_changes_no_id() {
    let names = |file: &str| ids(&Memory::default(), &recorded(file));
    assert_eq!(names("usb-serial-ftdi.txt"), names("udev257/usb-serial-ftdi.txt"));
}

#[test]
fn an_id_can_be_recognised() {
    let adapter = recorded("usb-serial-ftdi.txt").into_iter().find(|device| device.subsystem == "tty");
    assert!(id(&adapter.expect("recorded")).as_str().starts_with("usb-0403-6001-tty-"));
}

proptest! {
    #[test]
    fn no_two_devices_that_are_present_have_one_id(
        plugs in prop::collection::vec((0..4_u32, 0..3_u8, any::<bool>()), 1..40),
    ) {
        let mut state = started(&Memory::default());
        let mut present: Vec<Device> = Vec::new();
        for (plug_count, (port, serial, comes)) in plugs.into_iter().enumerate() {
            let serial = ["A", "B"].get(usize::from(serial)).copied();
            let device = usb_serial(1, &port.to_string(), serial, port, plug_count as u64 + 1);
            if let Some(at) = present.iter().position(|other| other.devpath == device.devpath) {
                unplug(&mut state, &present.remove(at));
            }
            if comes {
                assert_fit(&plug(&mut state, &device));
                present.push(device);
            }
            let ids: BTreeSet<_> = state.inventory().devices().map(|known| known.id.clone()).collect();
            prop_assert_eq!(ids.len(), present.len());
        }
    }
}
