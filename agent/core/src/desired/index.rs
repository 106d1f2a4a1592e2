use std::collections::{BTreeMap, BTreeSet};

use crate::{ClassName, DeviceId, RuntimeId};

/// Which index each device has in each container, for the stable paths. An index stays with its device while it is
/// away, and over restarts of the container.
#[derive(Clone, Debug, Default)]
pub struct IndexBook {
    indexes: BTreeMap<RuntimeId, BTreeMap<ClassName, Indexes>>,
}

/// The indexes of the devices of one class in one container.
#[derive(Clone, Debug, Default)]
struct Indexes {
    of: BTreeMap<DeviceId, u32>,
    /// The device that has the path of a class whose path has no index.
    holder: Option<DeviceId>,
}

impl IndexBook {
    /// How many devices are remembered for one class in one container before those that are away are forgotten: a
    /// gadget that says another serial number at each plug must not fill the memory.
    const MAX_REMEMBERED: usize = 256;

    /// Gives each of the devices that are present, in the order in which they came, its index.
    pub(super) fn assign<'a>(
        &mut self,
        container: &RuntimeId,
        class: &ClassName,
        present: impl Iterator<Item = &'a DeviceId> + Clone,
    ) -> &BTreeMap<DeviceId, u32> {
        let Indexes { of, .. } = self.indexes_mut(container, class);
        if of.len() > Self::MAX_REMEMBERED {
            of.retain(|id, _| present.clone().any(|present| present == id));
        }
        let mut used: BTreeSet<u32> = of.values().copied().collect();
        for id in present {
            if !of.contains_key(id) {
                let free = (0..u32::MAX).find(|index| !used.contains(index)).unwrap_or(u32::MAX);
                used.insert(free);
                of.insert(id.clone(), free);
            }
        }
        of
    }

    /// The device that has a path without an index: the one that has it already, while it is present, else the one with
    /// the lowest index.
    pub(super) fn holder<'a>(
        &mut self,
        container: &RuntimeId,
        class: &ClassName,
        present: impl Iterator<Item = &'a DeviceId> + Clone,
    ) -> Option<DeviceId> {
        let Indexes { of, holder } = self.indexes_mut(container, class);
        let stays = holder.clone().filter(|holder| present.clone().any(|present| present == holder));
        let lowest = || present.min_by_key(|id| of.get(*id)).cloned();
        *holder = stays.or_else(lowest).or(holder.take());
        holder.clone()
    }

    /// Takes over what a node says that was found in a container after a restart of the agent.
    pub(crate) fn found(&mut self, container: &RuntimeId, class: &ClassName, device: &DeviceId, index: u32) {
        let indexes = self.indexes_mut(container, class);
        if !indexes.of.values().any(|used| *used == index) {
            indexes.of.entry(device.clone()).or_insert(index);
        }
        indexes.holder.get_or_insert_with(|| device.clone());
    }

    /// Forgets the containers that no runtime knows any more.
    pub(super) fn retain(&mut self, known: impl Fn(&RuntimeId) -> bool) {
        self.indexes.retain(|container, _| known(container));
    }

    fn indexes_mut(&mut self, container: &RuntimeId, class: &ClassName) -> &mut Indexes {
        if !self.indexes.contains_key(container) {
            self.indexes.insert(container.clone(), BTreeMap::new());
        }
        self.indexes.entry(container.clone()).or_default().entry(class.clone()).or_default()
    }
}
