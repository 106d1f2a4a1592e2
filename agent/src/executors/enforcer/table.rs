//! Hash maps of the kernel programs, with the key and value types of the ABI crate.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use aya::maps::{HashMap, Map, MapData, MapError};
use devgate_abi::Plain;

use super::{error::EnforcerError, load::map_fd};

/// Lets aya copy a type of the ABI crate.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Bytes<T: Plain + Copy>(T);

// SAFETY: `Plain` asks for what `Pod` asks for: no padding, no references, valid for every pattern of bits.
unsafe impl<T: Plain + Copy> aya::Pod for Bytes<T> {}

/// One hash map.
pub(super) struct Table<K: Plain + Copy, V: Plain + Copy> {
    name: &'static str,
    fd: OwnedFd,
    map: HashMap<MapData, Bytes<K>, Bytes<V>>,
}

impl<K: Plain + Copy, V: Plain + Copy> Table<K, V> {
    /// The map of this name, taken from a loaded object.
    pub(super) fn new(name: &'static str, map: Map) -> Result<Self, EnforcerError> {
        let fd = map_fd(&map).and_then(|fd| fd.try_clone_to_owned()).map_err(EnforcerError::call("dup"))?;
        Ok(Self { name, fd, map: HashMap::try_from(map).map_err(|error| EnforcerError::Map(name, error))? })
    }

    /// Sets the value of a key. `Ok(false)` if the key is new and the map is full.
    pub(super) fn set(&mut self, key: K, value: V) -> Result<bool, EnforcerError> {
        match self.map.insert(Bytes(key), Bytes(value), 0) {
            Ok(()) => Ok(true),
            Err(MapError::SyscallError(error)) if error.io_error.raw_os_error() == Some(libc::E2BIG) => Ok(false),
            Err(error) => Err(EnforcerError::Map(self.name, error)),
        }
    }

    /// Removes a key, if it is there.
    pub(super) fn remove(&mut self, key: K) -> Result<(), EnforcerError> {
        match self.map.remove(&Bytes(key)) {
            Ok(()) | Err(MapError::KeyNotFound) => Ok(()),
            Err(MapError::SyscallError(error)) if error.io_error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(EnforcerError::Map(self.name, error)),
        }
    }

    /// All keys and values. Those of other writers' changes meanwhile may be missing.
    pub(super) fn entries(&self) -> Result<Vec<(K, V)>, EnforcerError> {
        self.map
            .iter()
            .map(|entry| {
                entry.map(|(key, value)| (key.0, value.0)).map_err(|error| EnforcerError::Map(self.name, error))
            })
            .collect()
    }

    /// The map itself.
    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
