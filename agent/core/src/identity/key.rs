use std::collections::BTreeMap;

use super::DeviceId;
use crate::Device;

/// The attributes of devices that ids are made from.
pub(crate) const ATTRIBUTES: &[&str] =
    &["idProduct", "idVendor", "index", "iomem_base", "partition", "port", "port_number", "serial"];

/// The attributes of the devices above that ids are made from.
pub(crate) const PARENT_ATTRIBUTES: &[&str] = &["idProduct", "idVendor", "name", "port_number", "serial"];

/// What identifies a device by itself, the surest first: a disk's world wide name, a serial number, the id of a mapped
/// volume.
const SERIALS: &[&str] = &["ID_WWN_WITH_EXTENSION", "ID_SERIAL_SHORT", "ID_SERIAL", "DM_UUID"];

/// The two ids that a device can have: with and without the place where it is plugged in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StableKey {
    /// The one it should have.
    pub(crate) plain: DeviceId,
    /// The one it has if another device has the same serial number. The same as `plain` for a device without a serial
    /// number, of which the place is the only thing known.
    pub(crate) at_port: DeviceId,
}

impl StableKey {
    /// Makes both from what does not change over replug and reboot. Numbers, the numbers in kernel names, bus numbers
    /// and device numbers on a bus are left out.
    pub(crate) fn of(device: &Device) -> Self {
        let unit = Unit::of(device);
        let node = node_part(device, &unit);
        let prefix = format!("{}-{}", unit.prefix, device.subsystem);
        let product = [unit.vendor.as_str(), unit.product.as_str()].join(":");
        let at_port = |serial: &str| DeviceId::of(&prefix, &["port", &product, serial, &unit.place, &node]);
        match &unit.serial {
            Some(serial) => {
                Self { plain: DeviceId::of(&prefix, &["serial", &product, serial, &node]), at_port: at_port(serial) }
            }
            None => Self { plain: at_port(""), at_port: at_port("") },
        }
    }
}

/// The physical thing that a node belongs to.
struct Unit {
    prefix: String,
    vendor: String,
    product: String,
    serial: Option<String>,
    /// Where it is plugged in.
    place: String,
    /// What of the node's path lies below it.
    tail: String,
}

impl Unit {
    fn of(device: &Device) -> Self {
        Self::usb(device).unwrap_or_else(|| Self::other(device))
    }

    /// The nearest USB device, which may be the node's own.
    fn usb(device: &Device) -> Option<Self> {
        let own = (device.devpath.as_str(), Some(device.subsystem.as_str()), &device.properties, &device.attributes);
        let parents = device.parents.iter().map(|parent| {
            (parent.devpath.as_str(), parent.subsystem.as_deref(), &parent.properties, &parent.attributes)
        });
        let is_usb_device = |subsystem: Option<&str>, properties: &BTreeMap<String, String>| {
            subsystem == Some("usb") && properties.get("DEVTYPE").is_some_and(|kind| kind == "usb_device")
        };
        let (devpath, _, properties, attributes) = std::iter::once(own)
            .chain(parents)
            .find(|(_, subsystem, properties, _)| is_usb_device(*subsystem, properties))?;
        // What the device itself says comes before what udev has made of it.
        let get = |attribute: &str, property: &str| {
            let value = attributes.get(attribute).or_else(|| properties.get(property));
            value.map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
        };
        let vendor = get("idVendor", "ID_VENDOR_ID").unwrap_or_default();
        let product = get("idProduct", "ID_MODEL_ID").unwrap_or_default();
        Some(Self {
            prefix: format!("usb-{vendor}-{product}"),
            vendor,
            product,
            serial: get("serial", "ID_SERIAL_SHORT"),
            place: stable_path(devpath),
            tail: device.devpath.as_str().strip_prefix(devpath).map(stable_path).unwrap_or_default(),
        })
    }

    fn other(device: &Device) -> Self {
        let above = device.parents.iter().map(|parent| &parent.properties);
        let get = |name: &str| {
            let mut all = std::iter::once(&device.properties).chain(above.clone());
            all.find_map(|properties| properties.get(name)).filter(|value| !value.is_empty()).cloned()
        };
        Self {
            prefix: String::new(),
            vendor: get("ID_VENDOR_ID").unwrap_or_default(),
            product: get("ID_MODEL_ID").unwrap_or_default(),
            serial: SERIALS.iter().find_map(|name| get(name)),
            place: device.devpath.as_str().rsplit_once('/').map(|(above, _)| stable_path(above)).unwrap_or_default(),
            tail: stable_component("", device.devpath.kernel_name()),
        }
    }
}

/// What tells the nodes of one physical thing from each other.
fn node_part(device: &Device, unit: &Unit) -> String {
    let mut part = format!("{}|{}", device.subsystem, unit.tail);
    let own = |name: &str| device.attributes.get(name).map(|value| (name.to_owned(), value.clone()));
    let told = ["index", "iomem_base", "port", "port_number"].into_iter().filter_map(own);
    let partition = device.properties.get("PARTN").or_else(|| device.attributes.get("partition"));
    let partition = partition.map(|number| ("partition".to_owned(), number.clone()));
    // One interface can have several input devices, which differ in name alone.
    let input = device.parents.iter().find(|parent| parent.subsystem.as_deref() == Some("input"));
    let input = input.and_then(|parent| parent.properties.get("NAME").or_else(|| parent.attributes.get("name")));
    let input = input.map(|name| ("name".to_owned(), name.trim_matches('"').to_owned()));
    // A serial adapter with several ports on one interface numbers them in the device above.
    let above = device.parents.iter().find_map(|parent| parent.attributes.get("port_number"));
    let above = above.map(|number| ("parent.port_number".to_owned(), number.clone()));
    for (name, value) in told.chain(partition).chain(input).chain(above) {
        part.extend(["|", &name, "=", &value]);
    }
    part
}

/// A path in sysfs without what changes from one plug or boot to the next.
fn stable_path(path: &str) -> String {
    let mut above = "";
    let mut stable = String::with_capacity(path.len());
    for component in path.split('/').filter(|component| !component.is_empty()) {
        stable.push('/');
        stable.push_str(&stable_component(above, component));
        above = component;
    }
    stable
}

/// One component of a path in sysfs, which is a kernel name: the parts that number devices in the order in which they
/// came are left out, those that say where a device is stay.
fn stable_component(above: &str, name: &str) -> String {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let port = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    // Network interfaces have the names that the administrator gave them; mem and misc those of the kernel's interface.
    if matches!(above, "net" | "mem" | "misc") {
        return name.to_owned();
    }
    // A PCI address, or a PCI root.
    if name.starts_with("pci") || (name.len() == 12 && name.as_bytes()[4] == b':' && name.as_bytes()[7] == b':') {
        return name.to_owned();
    }
    // USB: `1-4.2` is port 4.2 of bus 1, `1-4.2:1.0` is an interface there.
    if let Some((bus, rest)) = name.split_once('-')
        && digits(bus)
    {
        return match rest.split_once(':') {
            Some((_, interface)) => format!(":{interface}"),
            None if port(rest) => format!("port{rest}"),
            None => rest.to_owned(),
        };
    }
    // SCSI: `6:0:0:0` is channel, target and unit of host 6; `target6:0:0` likewise.
    let (stem, address) = name.find(|letter: char| letter.is_ascii_digit()).map_or((name, ""), |at| name.split_at(at));
    if matches!(stem, "" | "target")
        && let Some((host, rest)) = address.split_once(':')
        && digits(host)
        && rest.split(':').all(digits)
    {
        return format!("{stem}:{rest}");
    }
    // HID: `0003:046D:C31C.0005` is the fifth HID device since boot.
    if let Some((kind, count)) = name.split_once('.')
        && kind.len() == 14
        && count.len() == 4
    {
        return kind.to_owned();
    }
    // Disks are lettered in the order in which they came; the number of a partition is known otherwise.
    for disk in ["sd", "vd", "hd", "xvd"] {
        let rest = name.strip_prefix(disk).map(|rest| rest.trim_end_matches(|digit: char| digit.is_ascii_digit()));
        if rest.is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_lowercase())) {
            return disk.to_owned();
        }
    }
    // All others: the first number is a count (`ttyUSB0`, `nvme0n1`, `pcmC0D1p`); what follows tells parts of one
    // device from each other.
    format!("{stem}{}", address.trim_start_matches(|digit: char| digit.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_counts_devices_is_left_out_of_paths() {
        let stable = |path| stable_path(path);
        assert_eq!(
            stable("/devices/pci0000:00/0000:00:04.0/usb1/1-4/1-4.2/1-4.2:1.0/ttyUSB0/tty/ttyUSB3"),
            "/devices/pci0000:00/0000:00:04.0/usb/port4/port4.2/:1.0/ttyUSB/tty/ttyUSB"
        );
        assert_eq!(
            stable("/devices/pci0000:00/0000:00:05.0/usb2/2-1/2-1:1.0/host6/target6:0:0/6:0:0:1/block/sdab/sdab2"),
            "/devices/pci0000:00/0000:00:05.0/usb/port1/:1.0/host/target:0:0/:0:0:1/block/sd/sd"
        );
        assert_eq!(
            stable("/x/1-1:1.0/0003:0627:0001.0002/input/input5/event12"),
            "/x/:1.0/0003:0627:0001/input/input/event"
        );
        assert_eq!(stable("/x/sound/card1/pcmC1D3p"), "/x/sound/card/pcmCD3p");
        assert_eq!(stable("/x/nvme/nvme4/nvme4n1"), "/x/nvme/nvme/nvmen1");
        assert_eq!(stable("/devices/virtual/misc/tun10"), "/devices/virtual/misc/tun10");
    }
}
