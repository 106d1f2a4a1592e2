//! Which physical device a node belongs to, whatever number, name or bus it has today.

mod book;
mod key;
mod memory;

use std::fmt;
use std::sync::Arc;

use crate::digest::StableHash;

pub(crate) use book::IdBook;
pub(crate) use key::{ATTRIBUTES, PARENT_ATTRIBUTES, StableKey};
pub use memory::{Memory, MemoryProblem};

/// What stays the same of a device over replug and reboot: a short readable prefix and a hash, at most 63 characters,
/// lower case letters, digits and `-` only.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId(Arc<str>);

impl DeviceId {
    /// The most characters an id has: those of a DNS label.
    pub const MAX_LEN: usize = 63;
    const MAX_PREFIX: usize = 32;
    /// 80 bits: nobody who can choose a device's serial number finds a second device with a given id.
    const HASH_BYTES: usize = 10;

    /// The id of a stable key.
    pub(crate) fn of(prefix: &str, key: &[&str]) -> Self {
        let hash = key.iter().fold(StableHash::default(), |hash, part| hash.text(part));
        let mut id = String::with_capacity(Self::MAX_LEN);
        for letter in prefix.chars() {
            match letter.to_ascii_lowercase() {
                letter @ ('a'..='z' | '0'..='9') => id.push(letter),
                _ if id.is_empty() || id.ends_with('-') => {}
                _ => id.push('-'),
            }
            if id.len() == Self::MAX_PREFIX {
                break;
            }
        }
        if !id.is_empty() && !id.ends_with('-') {
            id.push('-');
        }
        id.push_str(&hash.hex(Self::HASH_BYTES));
        Self(id.into())
    }

    /// The id of the `count`th device (from 2) that nothing tells from the first.
    pub(crate) fn numbered(&self, count: u32) -> Self {
        Self(format!("{self}-{count}").into())
    }

    /// An id that was written down, or `None` if the text cannot be one.
    pub fn parse(text: &str) -> Option<Self> {
        let fit = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        let plain = (1..=Self::MAX_LEN).contains(&text.len()) && text.bytes().all(fit);
        (plain && !text.starts_with('-') && !text.ends_with('-')).then(|| Self(text.into()))
    }

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
