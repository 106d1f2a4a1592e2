//! Device numbers in messages, as `["c", 10, 229]`.

use devgate_abi::{DeviceKind, DeviceNumber};
use serde::de::{Deserialize, Deserializer, Error};
use serde::ser::{Serialize, Serializer};

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
pub(super) fn serialize<S: Serializer>(number: &DeviceNumber, serializer: S) -> Result<S::Ok, S::Error> {
    let kind = if number.is_block() { 'b' } else { 'c' };
    (kind, number.major(), number.minor()).serialize(serializer)
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<DeviceNumber, D::Error> {
    let (kind, major, minor) = <(char, u32, u32)>::deserialize(deserializer)?;
    let kind = match kind {
        'b' => DeviceKind::Block,
        'c' => DeviceKind::Char,
        other => return Err(D::Error::custom(format_args!("{other:?} is neither b nor c"))),
    };
    DeviceNumber::new(kind, major, minor).ok_or_else(|| D::Error::custom("device number out of range"))
}
