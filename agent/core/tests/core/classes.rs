//! What is said of classes that cannot be used, and which devices a class matches.

use devgate_core::{Asked, ClassName, DeviceClass, DeviceNumber, MatchVerdict, PathTemplate, compile};
use serde_json::{Value, json};

use crate::support::{class, device, recorded, usb_serial};

fn document(name: &str, spec: &Value) -> Value {
    json!({ "apiVersion": "devgate.dev/v1alpha1", "kind": "DeviceClass", "metadata": { "name": name }, "spec": spec })
}

/// The fields that are reported for a class.
fn problems(document: Value) -> Vec<String> {
    let class: DeviceClass = serde_json::from_value(document).expect("the document can be read");
    let problems = compile(&class).err().unwrap_or_default();
    assert!(problems.iter().all(|problem| !problem.reason.is_empty() && !problem.remedy.is_empty()));
    problems.into_iter().map(|problem| problem.field).collect()
}

fn spec_with(field: &str, value: Value) -> Value {
    let mut spec = json!({ "match": [{ "subsystem": "tty" }], "allocation": { "kind": "All" } });
    spec[field] = value;
    document("scanner", &spec)
}

#[test]
fn all_problems_of_a_class_are_reported_at_once() {
    let fields = problems(document(
        "Scanner",
        &json!({
            "match": [{}, { "properties": { "ID_SERIAL": "[" }, "parent": {} }],
            "exclude": [{ "attributes": { "../uevent": "x" } }],
            "access": "rx",
            "allocation": { "kind": "All" },
            "path": "/tmp/scanner",
            "owner": { "mode": "0999", "uid": 4_294_967_295_u32 },
        }),
    ));
    assert_eq!(
        fields,
        [
            "metadata.name",
            "spec.match[0]",
            "spec.match[1].properties.ID_SERIAL",
            "spec.match[1].parent",
            "spec.exclude[0].attributes.../uevent",
            "spec.access",
            "spec.path",
            "spec.owner.mode",
            "spec.owner.uid",
        ]
    );
}

// Fault: agent/core/src/class/name.rs
// -         let fit = (1..=Self::MAX_LEN).contains(&text.len())
// +         let fit = (1..=Self::MAX_LEN + 1).contains(&text.len())
#[test]
fn b48_a_name_unfit_for_a_resource_is_refused() {
    let long = "a".repeat(64);
    for name in ["", "Scanner", "my_scanner", "scanner-", "-scanner", "a.b", "scänner", "a/b", "a b", &long] {
        assert_eq!(problems(document(name, &spec_with("access", "r".into())["spec"])), ["metadata.name"], "{name}");
    }
    for name in ["s", "scanner-2", "0c2e", &long[1..]] {
        assert!(ClassName::new(name).is_some(), "{name}");
    }
}

// Fault: agent/core/src/class/path.rs
// -         if is_standard_path(text) {
// +         if text == "/dev/null" {
#[test]
fn a_path_outside_of_dev_or_in_use_is_refused() {
    for path in [
        "/tmp/x",
        "/dev",
        "/dev/",
        "dev/x",
        "/dev/../etc/x",
        "/dev/./x",
        "/dev//x",
        "/dev/x/",
        "/dev/x y",
        "/dev/x\n",
        "/dev/ä",
        "/dev/%",
        "/dev/%d",
        "/dev/%i/%i",
        "/dev/null",
        "/dev/pts/7",
        "/dev/shm/x",
        "/dev/fd",
        "/dev/tty",
        "/dev/console",
        "/dev/core",
        "/dev/mqueue/x",
    ] {
        assert_eq!(problems(spec_with("path", path.into())), ["spec.path"], "{path:?}");
    }
    assert_eq!(problems(spec_with("path", format!("/dev/{}", "x".repeat(300)).into())), ["spec.path"]);
    for path in ["/dev/scanner", "/dev/scanner%i", "/dev/scan/%i/main", "/dev/null0", "/dev/ttyS9"] {
        assert_eq!(problems(spec_with("path", path.into())), [""; 0], "{path:?}");
    }
}

#[test]
fn modes_are_octal_permission_bits() {
    for mode in ["", "8", "660x", "0x1b0", "+660", "01777", "1777", "0888", "-660"] {
        assert_eq!(problems(spec_with("owner", json!({ "mode": mode }))), ["spec.owner.mode"], "{mode:?}");
    }
    assert_eq!(class("c", json!({ "owner": { "mode": "0640" } })).mode, Some(0o640));
    assert_eq!(class("c", json!({ "owner": { "mode": "600" } })).mode, Some(0o600));
}

#[test]
fn access_is_never_empty() {
    for access in ["", "x", "rr", "rw "] {
        assert_eq!(problems(spec_with("access", access.into())), ["spec.access"], "{access:?}");
    }
}

#[test]
fn unknown_fields_and_kinds_are_refused() {
    for (field, value) in [("acess", json!("r")), ("allocation", json!({ "kind": "Exclusive" })), ("unit", json!({}))] {
        let read = serde_json::from_value::<DeviceClass>(spec_with(field, value));
        assert!(read.is_err(), "{field}");
    }
    let mut other = spec_with("access", "r".into());
    other["apiVersion"] = "resource.k8s.io/v1".into();
    other["kind"] = "Device".into();
    assert_eq!(problems(other), ["apiVersion", "kind"]);
}

#[test]
fn a_class_that_is_written_out_reads_the_same() {
    let text = spec_with("owner", json!({ "gid": 20 }));
    let class: DeviceClass = serde_json::from_value(text).expect("the document can be read");
    let written = serde_json::to_value(&class).expect("a class can be written");
    assert_eq!(serde_json::from_value::<DeviceClass>(written).expect("it can be read again"), class);
}

// Fault: agent/core/src/class/matcher.rs
// -                 if !value.is_some_and(|value| pattern.matches_with(value, IN_VALUE)) {
// +                 if !value.is_some_and(|value| pattern.matches_with(value, IN_VALUE)) && wanted.len() == 1 {
#[test]
fn b80_two_properties_must_both_match() {
    let class = class("c", json!({ "match": [{ "properties": { "ID_VENDOR_ID": "0c2e", "ID_MODEL_ID": "0aa1" } }] }));
    let number = DeviceNumber::char(188, 0);
    let with = |properties: &[(&str, &str)]| class.contains(&device("ttyS7", number, 1, properties));
    assert!(with(&[("ID_VENDOR_ID", "0c2e"), ("ID_MODEL_ID", "0aa1")]));
    assert!(!with(&[("ID_VENDOR_ID", "0c2e"), ("ID_MODEL_ID", "0bb2")]));
    assert!(!with(&[("ID_VENDOR_ID", "ffff"), ("ID_MODEL_ID", "0aa1")]));
    assert!(!with(&[("ID_MODEL_ID", "0aa1")]));
}

// Fault: agent/core/src/class/matcher.rs
// -         self.parent.as_ref().and_then(|parent| self.parent_mismatch(parent, &device.parents))
// +         self.parent.as_ref().filter(|_| device.parents.is_empty()).and_then(|parent| self.parent_mismatch(parent, &device.parents))
#[test]
fn b80_conditions_on_a_parent_hold_for_one_and_the_same() {
    let adapter = usb_serial(1, "4", Some("A"), 0, 1);
    let with = |parent: Value| class("c", json!({ "match": [{ "parent": parent }] })).verdict(&adapter);
    let matched = MatchVerdict::Matched { item: "spec.match[0]".into() };
    assert_eq!(with(json!({ "subsystem": "usb", "attributes": { "bInterfaceNumber": "00" } })), matched);
    assert_eq!(with(json!({ "attributes": { "serial": "A", "idVendor": "0403" } })), matched);
    // The interface has the number, the device has the serial: neither has both.
    let mixed = with(json!({ "subsystem": "usb", "attributes": { "bInterfaceNumber": "00", "serial": "A" } }));
    let MatchVerdict::Unmatched(mismatches) = mixed else { panic!("{mixed:?}") };
    assert_eq!(mismatches[0].field, "spec.match[0].parent.attributes.serial");
    let absent = with(json!({ "subsystem": "scsi" }));
    let MatchVerdict::Unmatched(mismatches) = absent else { panic!("{absent:?}") };
    assert_eq!((mismatches[0].field.as_str(), &mismatches[0].found), ("spec.match[0].parent.subsystem", &None));
}

#[test]
fn recorded_devices_match_by_what_udev_says_of_them() {
    let matching = |file: &str, item: Value| -> Vec<String> {
        let class = class("c", json!({ "match": [item] }));
        let devices = recorded(file).into_iter().filter(|device| class.contains(device));
        devices.map(|device| device.devnode).collect()
    };
    let ftdi = json!({ "subsystem": "tty", "properties": { "ID_VENDOR_ID": "0403", "ID_SERIAL": "QEMU_*" } });
    assert_eq!(matching("usb-serial-ftdi.txt", ftdi.clone()), ["/dev/ttyUSB0"]);
    assert_eq!(matching("udev257/usb-serial-ftdi.txt", ftdi.clone()), ["/dev/ttyUSB0"]);
    assert_eq!(matching("gadget-two-acm.txt", ftdi), [""; 0]);
    // hidraw nodes say nothing of themselves: what is above them does.
    let keyboard =
        json!({ "subsystem": "hidraw", "parent": { "subsystem": "usb", "properties": { "ID_MODEL_ID": "0001" } } });
    assert_eq!(matching("usb-kbd.txt", keyboard), ["/dev/hidraw0"]);
    let by_attribute =
        json!({ "subsystem": "tty", "parent": { "subsystem": "usb", "attributes": { "idVendor": "0403" } } });
    assert_eq!(matching("usb-serial-ftdi.umockdev", by_attribute), ["/dev/ttyUSB0"]);
    let second = json!({ "subsystem": "tty", "properties": { "ID_USB_INTERFACE_NUM": "02" } });
    assert_eq!(matching("gadget-two-acm.txt", second), ["/dev/ttyACM1"]);
    assert_eq!(matching("snd-aloop.txt", json!({ "devicePath": "/dev/snd/pcm*p" })).len(), 2);
    assert_eq!(matching("snd-aloop.txt", json!({ "devicePath": "/dev/*" })), [""; 0]);
}

// Fault: agent/core/src/class/matcher.rs
// -             && !self.exclude.iter().any(|item| item.mismatch(device).is_none())
// +             && !self.exclude.iter().any(|item| item.mismatch(device).is_some())
#[test]
fn what_is_excluded_is_not_of_the_class() {
    let class = class(
        "c",
        json!({ "match": [{ "subsystem": "tty" }], "exclude": [{ "properties": { "ID_USB_INTERFACE_NUM": "02" } }] }),
    );
    let devices = recorded("gadget-two-acm.txt");
    let of_class: Vec<_> = devices.iter().filter(|device| class.contains(device)).map(|it| &it.devnode).collect();
    assert_eq!(of_class, ["/dev/ttyACM0", "/dev/ttyGS0", "/dev/ttyGS1"]);
    let second = devices.iter().find(|device| device.devnode == "/dev/ttyACM1").expect("recorded");
    assert_eq!(class.verdict(second), MatchVerdict::Excluded { item: "spec.exclude[0]".into() });
}

#[test]
fn sources_are_asked_for_what_classes_look_at() {
    let tty = class("a", json!({ "match": [{ "subsystem": "tty", "attributes": { "device/interface": "x" } }] }));
    let usb =
        class("b", json!({ "match": [{ "subsystem": "usb", "parent": { "attributes": { "removable": "x" } } }] }));
    let any = class("c", json!({ "match": [{ "properties": { "ID_MODEL": "x" } }] }));
    let asked = Asked::by([&tty, &usb].into_iter());
    assert_eq!(asked.subsystems, Some(["tty".to_owned(), "usb".to_owned()].into()));
    assert!(asked.attributes.contains("device/interface") && asked.parent_attributes.contains("removable"));
    assert_eq!(Asked::by([&tty, &any].into_iter()).subsystems, None);
}

#[test]
fn an_index_is_read_back_from_a_path() {
    let template = |path: &str| -> PathTemplate { class("c", json!({ "path": path })).path.clone().expect("given") };
    let indexed = template("/dev/scan%i/main");
    assert_eq!(indexed.path(7).as_str(), "/dev/scan7/main");
    assert_eq!(indexed.index_of("/dev/scan7/main"), Some(7));
    for path in ["/dev/scan07/main", "/dev/scan+7/main", "/dev/scan/main", "/dev/scan7", "/dev/scan7/mainx"] {
        assert_eq!(indexed.index_of(path), None, "{path}");
    }
    let plain = template("/dev/scanner");
    assert_eq!((plain.index_of("/dev/scanner"), plain.index_of("/dev/scanner0")), (Some(0), None));
}
