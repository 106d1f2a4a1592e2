//! The kernel programs' maps, written behind the enforcer's back: combinations that no call of it makes.

use std::{
    io,
    os::fd::{AsRawFd, OwnedFd},
};

use anyhow::{Context, Result};
use devgate::executors::enforcer::{EnforcerConfig, sys};
use devgate_abi::{LAYOUT_VERSION, Plain};

/// `BPF_MAP_UPDATE_ELEM` of `include/uapi/linux/bpf.h`.
const UPDATE: libc::c_int = 2;

/// A hash map, opened by its pin.
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
        let path = config.pin_root.join(format!("v{LAYOUT_VERSION}")).join(name);
        Ok(Self(sys::pinned(&path).with_context(|| format!("nothing is pinned at {}", path.display()))?))
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
