//! The kernel programs' maps, read and written behind the enforcer's back: combinations that no call of it makes.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    path::Path,
    sync::atomic::Ordering::Relaxed,
};

use anyhow::{Context, Result};
use devgate::executors::enforcer::{EnforcerConfig, sys};
use devgate_abi::{DeviceNumber, LAYOUT_VERSION, Plain, Rule, RuleKey, RulePlace, map};

// Commands of `include/uapi/linux/bpf.h`: `BPF_MAP_CREATE` and so on.
const CREATE: libc::c_int = 0;
const LOOK_UP: libc::c_int = 1;
const UPDATE: libc::c_int = 2;

/// What a map is made with: a zero for what its type does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Shape {
    /// `BPF_MAP_TYPE_*`
    pub kind: u32,
    /// Bytes of a key.
    pub key_size: u32,
    /// Bytes of a value.
    pub value_size: u32,
    /// How many entries there can be.
    pub max_entries: u32,
    /// `BPF_F_*`
    pub flags: u32,
}

/// The epoch of a number, if it has one.
pub fn epoch(config: &EnforcerConfig, device: DeviceNumber) -> Result<Option<u64>> {
    let Some(slot) = RawMap::open(config, map::EPOCH_SLOTS)?.get::<_, u32>(&device)? else { return Ok(None) };
    RawMap::open(config, map::EPOCHS)?.get(&slot)
}

/// Sets rules, and says of each in its place that others may be only in the hash map.
pub struct RawRules {
    rules: RawMap,
    places: RawMap,
    /// How many places there are.
    count: u64,
}

impl RawRules {
    /// Opens the maps.
    pub fn open(config: &EnforcerConfig) -> Result<Self> {
        let count = 2 * u64::from(config.limits.rules.next_power_of_two());
        Ok(Self { rules: RawMap::open(config, map::RULES)?, places: RawMap::open(config, map::RULE_PLACES)?, count })
    }

    /// Sets the rule of a key.
    pub fn set(&self, key: RuleKey, rule: Rule) -> Result<()> {
        self.rules.set(&key, &rule)?;
        let place = RulePlace::default();
        for (word, value) in place.stores(Some((key, rule.to_words())), true) {
            word.store(value, Relaxed);
        }
        self.places.set(&RulePlace::of(key, self.count), &place)
    }

    /// The rule of a key in the hash map.
    pub fn get(&self, key: RuleKey) -> Result<Option<Rule>> {
        self.rules.get(&key)
    }
}

/// A map.
#[derive(Debug)]
pub struct RawMap(OwnedFd);

/// The part of `union bpf_attr` for elements.
#[repr(C)]
struct ElementAttribute {
    map: u32,
    reserved: u32,
    key: u64,
    value: u64,
    flags: u64,
}

impl RawMap {
    /// Opens the map of this name.
    pub fn open(config: &EnforcerConfig, name: &str) -> Result<Self> {
        Self::pinned(&config.pin_root.join(format!("v{LAYOUT_VERSION}")).join(name))
    }

    /// Opens the map that is pinned at a path.
    pub fn pinned(path: &Path) -> Result<Self> {
        Ok(Self(sys::pinned(path).with_context(|| format!("nothing is pinned at {}", path.display()))?))
    }

    /// Makes a map.
    pub fn create(shape: Shape) -> Result<Self> {
        // SAFETY: the kernel reads the attribute.
        let fd = unsafe { libc::syscall(libc::SYS_bpf, CREATE, &raw const shape, size_of::<Shape>()) };
        if fd < 0 {
            return Err(io::Error::last_os_error()).with_context(|| format!("cannot make a map of {shape:?}"));
        }
        // SAFETY: the descriptor is new.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd as i32) }))
    }

    /// The value of a key. The types must be those of the map.
    pub fn get<K: Plain, V: Plain + Default>(&self, key: &K) -> Result<Option<V>> {
        let mut value = V::default();
        let attribute = ElementAttribute {
            map: self.0.as_raw_fd().cast_unsigned(),
            reserved: 0,
            key: std::ptr::from_ref(key).addr() as u64,
            value: (&raw mut value).addr() as u64,
            flags: 0,
        };
        // SAFETY: the kernel reads the attribute and the key and writes as many bytes as the value has.
        let result =
            unsafe { libc::syscall(libc::SYS_bpf, LOOK_UP, &raw const attribute, size_of::<ElementAttribute>()) };
        match io::Error::last_os_error() {
            _ if result == 0 => Ok(Some(value)),
            error if error.kind() == io::ErrorKind::NotFound => Ok(None),
            error => Err(error).context("cannot read a map"),
        }
    }

    /// Sets the value of a key. The types must be those of the map.
    pub fn set<K: Plain, V: Plain>(&self, key: &K, value: &V) -> Result<()> {
        let attribute = ElementAttribute {
            map: self.0.as_raw_fd().cast_unsigned(),
            reserved: 0,
            key: std::ptr::from_ref(key).addr() as u64,
            value: std::ptr::from_ref(value).addr() as u64,
            flags: 0,
        };
        // SAFETY: the kernel reads the attribute and, of a key and a value of plain types, as many bytes as they have.
        let result =
            unsafe { libc::syscall(libc::SYS_bpf, UPDATE, &raw const attribute, size_of::<ElementAttribute>()) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()).context("cannot write to a map") }
    }
}

impl AsFd for RawMap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
