use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use devgate_core::{
    AppliedState, Backoff, Batch, BatchTiming, Batcher, Cgroup, CgroupId, CompiledClass, Container, ContainerEvent,
    ContainerState, Device, DeviceClass, DeviceEvent, DeviceNumber, Event, Incarnation, Memory, NodeOwner, Parent,
    RuntimeId, State, Task, compile,
};
use serde_json::{Value, json};

pub(crate) fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A class from the fields of its spec; `match` and `allocation` have defaults.
pub(crate) fn class(name: &str, spec: Value) -> Arc<CompiledClass> {
    let mut document = json!({
        "apiVersion": "devgate.dev/v1alpha1",
        "kind": "DeviceClass",
        "metadata": { "name": name },
        "spec": { "match": [{ "subsystem": "tty" }], "allocation": { "kind": "All" } },
    });
    let Value::Object(spec) = spec else { panic!("a spec is an object") };
    for (field, value) in spec {
        document["spec"][field] = value;
    }
    let class: DeviceClass = serde_json::from_value(document).expect("the class can be read");
    Arc::new(compile(&class).unwrap_or_else(|problems| panic!("{name}: {problems:?}")))
}

/// A tty without anything above it.
pub(crate) fn device(name: &str, number: DeviceNumber, plug: u64, properties: &[(&str, &str)]) -> Device {
    Device {
        devpath: format!("/devices/platform/{name}/tty/{name}").as_str().into(),
        subsystem: "tty".into(),
        devnode: format!("/dev/{name}"),
        number,
        incarnation: Incarnation { initialized_usec: Some(plug), ..Incarnation::default() },
        owner: NodeOwner { mode: 0o660, uid: 0, gid: 20 },
        properties: properties.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect(),
        attributes: BTreeMap::new(),
        parents: Vec::new(),
    }
}

/// The node of a USB serial adapter with its interface and device above it.
pub(crate) fn usb_serial(bus: u32, port: &str, serial: Option<&str>, minor: u32, plug: u64) -> Device {
    let unit = format!("/devices/pci0000:00/0000:00:04.0/usb{bus}/{bus}-{port}");
    let interface = format!("{unit}/{bus}-{port}:1.0");
    let name = format!("ttyUSB{minor}");
    let properties = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect()
    };
    let mut attributes = properties(&[("idVendor", "0403"), ("idProduct", "6001")]);
    attributes.extend(serial.map(|serial| ("serial".to_owned(), serial.to_owned())));
    let parent = |devpath: &str, subsystem: &str, kind: &str, attributes| Parent {
        devpath: devpath.into(),
        subsystem: Some(subsystem.into()),
        properties: properties(&[("DEVTYPE", kind)]),
        attributes,
    };
    Device {
        devpath: format!("{interface}/{name}/tty/{name}").as_str().into(),
        parents: vec![
            parent(&format!("{interface}/{name}"), "usb-serial", "", properties(&[("port_number", "0")])),
            parent(&interface, "usb", "usb_interface", properties(&[("bInterfaceNumber", "00")])),
            parent(&unit, "usb", "usb_device", attributes),
        ],
        ..device(&name, DeviceNumber::char(188, minor), plug, &[("ID_VENDOR_ID", "0403")])
    }
}

pub(crate) fn container_id(name: &str) -> RuntimeId {
    RuntimeId { runtime: "containerd".into(), namespace: "default".into(), id: name.into() }
}

/// A running container that asks for classes by label.
pub(crate) fn container(name: &str, cgroup: u64, wishes: &str) -> Container {
    let cgroup = Cgroup { id: CgroupId(cgroup), path: format!("/default/{name}") };
    Container {
        id: container_id(name),
        state: ContainerState::Running(Task { pid: u32::try_from(1000 + cgroup.id.0).expect("small"), cgroup }),
        labels: [("devgate.dev/classes".to_owned(), wishes.to_owned())].into(),
        image_labels: Some(BTreeMap::new()),
        claims: Vec::new(),
    }
}

pub(crate) fn runtimes() -> [String; 1] {
    ["containerd".to_owned()]
}

pub(crate) fn devices_listed(devices: &[Device]) -> Event {
    Event::Device(DeviceEvent::Listed(devices.to_vec()))
}

pub(crate) fn listed(containers: &[Container]) -> Event {
    Event::Container(ContainerEvent::Listed { runtime: "containerd".into(), containers: containers.to_vec() })
}

pub(crate) fn classes(classes: &[Arc<CompiledClass>]) -> Event {
    Event::Classes(classes.to_vec())
}

/// The events as one batch.
pub(crate) fn batch(events: impl IntoIterator<Item = Event>) -> Batch {
    let mut batcher = Batcher::new(BatchTiming::default());
    for event in events {
        batcher.push(event, millis(1));
    }
    batcher.take(millis(1000)).unwrap_or_default()
}

/// A state in which every source has listed.
pub(crate) fn state(devices: &[Device], containers: &[Container], of: &[Arc<CompiledClass>]) -> State {
    let mut state = State::new(AppliedState::default(), &Memory::default(), runtimes(), Backoff::default());
    state.apply(batch([devices_listed(devices), listed(containers), classes(of)]), Vec::new());
    state
}
