use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use devgate_abi::DeviceNumber;

use crate::Incarnation;

/// Properties as udev lists them, by name.
pub type Properties = BTreeMap<String, String>;

/// Sysfs attributes by their path relative to the device's folder, without the newline at the end.
pub type Attributes = BTreeMap<String, String>;

/// Where the kernel keeps a device in sysfs, without the mount point: `/devices/pci0000:00/…/tty/ttyUSB0`. Unique among
/// the devices that are present, and no identity.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DevPath(Arc<str>);

impl DevPath {
    /// The path as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The last component, which is the kernel's name for the device.
    pub fn kernel_name(&self) -> &str {
        self.0.rsplit('/').next().unwrap_or_default()
    }
}

impl From<&str> for DevPath {
    fn from(path: &str) -> Self {
        Self(path.into())
    }
}

impl Borrow<str> for DevPath {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for DevPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for DevPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// One device node as udev and sysfs describe it once udev has finished with it. Devices without a node are not
/// reported, except as [`Parent`]s.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Where the device is in sysfs.
    pub devpath: DevPath,
    /// The kernel subsystem, such as `tty`.
    pub subsystem: String,
    /// The node on the host: an absolute path such as `/dev/ttyUSB0`.
    pub devnode: String,
    /// The number of the node.
    pub number: DeviceNumber,
    /// Which stay of the device this is.
    pub incarnation: Incarnation,
    /// Mode and owner of the node on the host.
    pub owner: NodeOwner,
    /// udev's properties.
    pub properties: Properties,
    /// Those of the attributes that were asked for ([`Asked`](crate::Asked)) that the device has.
    pub attributes: Attributes,
    /// The devices above this one, the nearest first.
    pub parents: Vec<Parent>,
}

impl Device {
    /// Whether the device can leave the machine, or its number can pass to another driver, while containers run. Taken
    /// as true unless the device is one that the kernel makes for itself: a needless yes costs a denial while no guard
    /// lives, a wrong no costs a grant to another device.
    pub fn is_hotpluggable(&self) -> bool {
        !matches!(self.subsystem.as_str(), "mem" | "misc")
    }
}

/// A device above another one in sysfs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parent {
    /// Where it is in sysfs.
    pub devpath: DevPath,
    /// The kernel subsystem; a few folders in sysfs have none.
    pub subsystem: Option<String>,
    /// udev's properties.
    pub properties: Properties,
    /// Those of the attributes that were asked for that it has.
    pub attributes: Attributes,
}

/// Mode and owner of a device node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeOwner {
    /// The permission bits, at most `0o777`.
    pub mode: u32,
    /// The user, as the container sees it.
    pub uid: u32,
    /// The group, as the container sees it.
    pub gid: u32,
}
