use std::collections::BTreeMap;

use super::{DeviceId, Memory, StableKey};
use crate::Device;

/// Gives each device that is present an id that no other one has. An id is fixed at first sight: the device keeps it for
/// as long as it stays, whatever udev says of it later.
#[derive(Clone, Debug, Default)]
pub(crate) struct IdBook {
    /// The ids in use, each with the id that its device would have by its place.
    held: BTreeMap<DeviceId, DeviceId>,
    /// The plain ids that more than one device has had, each with the place of the one that may use it: the first in
    /// this run of the agent, and none after that.
    ambiguous: BTreeMap<DeviceId, Option<DeviceId>>,
}

impl IdBook {
    /// Begins with what earlier runs have learnt.
    pub(crate) fn new(memory: &Memory) -> Self {
        Self { held: BTreeMap::new(), ambiguous: memory.ambiguous.iter().map(|id| (id.clone(), None)).collect() }
    }

    /// An id for a device that has come.
    pub(crate) fn assign(&mut self, device: &Device) -> DeviceId {
        let StableKey { plain, at_port } = StableKey::of(device);
        if plain != at_port
            && let Some(first) = self.held.get(&plain)
        {
            let first = first.clone();
            self.ambiguous.entry(plain.clone()).or_insert(Some(first));
        }
        let may_be_plain = self.ambiguous.get(&plain).is_none_or(|first| first.as_ref() == Some(&at_port));
        let mut id = if may_be_plain { plain } else { at_port.clone() };
        if self.held.contains_key(&id) {
            // Nothing tells the two apart, as with `loop0` and `loop1`: the order of sight has to do.
            let candidates = (2..).map(|count| id.numbered(count));
            id = candidates.into_iter().find(|candidate| !self.held.contains_key(candidate)).unwrap_or(id);
        }
        self.held.insert(id.clone(), at_port);
        id
    }

    /// The device with an id has left.
    pub(crate) fn release(&mut self, id: &DeviceId) {
        self.held.remove(id);
    }

    /// What later runs should know.
    pub(crate) fn memory(&self) -> Memory {
        Memory { ambiguous: self.ambiguous.keys().cloned().collect() }
    }
}
