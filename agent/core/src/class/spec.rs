use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A class of devices and what its holders may do with them, as users write it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct DeviceClass {
    /// `devgate.dev/v1alpha1`.
    pub api_version: String,
    /// `DeviceClass`.
    pub kind: String,
    /// Its name.
    pub metadata: Metadata,
    /// What it says.
    pub spec: Spec,
}

impl DeviceClass {
    /// The one version of the format so far.
    pub const API_VERSION: &str = "devgate.dev/v1alpha1";
    /// The kind of the document.
    pub const KIND: &str = "DeviceClass";
}

/// The name of a class.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Metadata {
    /// Lower case letters, digits and `-`, at most 63: containers ask for it by this name.
    pub name: String,
}

/// What a class says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Spec {
    /// Devices of the class are those that fit any of these items.
    #[serde(rename = "match")]
    pub matches: Vec<Selector>,
    /// Devices that fit any of these items are not of the class, whatever `match` says.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exclude: Vec<Selector>,
    /// What holders may do: `r`, `w` and `m` (make a node).
    #[serde(default = "read_write")]
    pub access: String,
    /// How devices are given to holders.
    pub allocation: Allocation,
    /// The stable path of a device inside of the container, below `/dev`. `%i` stands for an index that stays with the
    /// device. Without it the devices are there under their kernel names alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Mode and owner of the nodes inside of the container; what is not given is as on the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
    /// Whether verdicts are changed or only recorded.
    #[serde(default)]
    pub enforcement: Enforcement,
    /// What holds for devices that no class gives to the container.
    #[serde(default)]
    pub other_devices: OtherDevices,
}

fn read_write() -> String {
    "rw".to_owned()
}

/// Conditions on a device. All that are given must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Selector {
    /// The kernel subsystem, exactly.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subsystem: Option<String>,
    /// udev properties; values are globs.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub properties: BTreeMap<String, String>,
    /// Sysfs attributes, by path relative to the device's folder; values are globs.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub attributes: BTreeMap<String, String>,
    /// Conditions that one and the same device above this one meets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<ParentSelector>,
    /// The node on the host; a glob whose `*` does not cross a `/`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_path: Option<String>,
}

/// Conditions on one device above another one. All that are given must hold for the same one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct ParentSelector {
    /// The kernel subsystem, exactly.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subsystem: Option<String>,
    /// udev properties; values are globs.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub properties: BTreeMap<String, String>,
    /// Sysfs attributes; values are globs.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub attributes: BTreeMap<String, String>,
}

/// How devices are given to holders.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Allocation {
    /// The way.
    pub kind: AllocationKind,
}

/// The ways in which devices are given to holders.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AllocationKind {
    /// Every holder has every device of the class, now and later.
    All,
}

/// Mode and owner of nodes inside of a container, as the container sees them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Owner {
    /// The permission bits in octal, as a string: `"0660"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// The user id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// The group id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gid: Option<u32>,
}

/// Whether verdicts are changed. Where the classes of a container differ, the greater one wins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Enforcement {
    /// No verdict changes and nothing is placed in the container; what `Enforce` would have changed is recorded.
    Audit,
    /// Verdicts are changed.
    #[default]
    Enforce,
}

/// What holds for devices that no class gives to the container. Where its classes differ, the greater one wins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum OtherDevices {
    /// The runtime's verdict.
    #[default]
    Runtime,
    /// Denied, but for the standard devices.
    Deny,
}
