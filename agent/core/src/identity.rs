use std::fmt;
use std::sync::Arc;

/// The attributes of devices that ids are made from.
pub(crate) const ATTRIBUTES: &[&str] = &["index", "name", "partition", "port_number"];

/// The attributes of the devices above that ids are made from.
pub(crate) const PARENT_ATTRIBUTES: &[&str] =
    &["bInterfaceNumber", "idProduct", "idVendor", "name", "port_number", "serial"];

/// What stays the same of a device over replug and reboot: a short readable prefix and a hash, at most 63 characters,
/// lower case letters, digits and `-` only.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId(Arc<str>);

impl DeviceId {
    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}
