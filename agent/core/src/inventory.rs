use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use devgate_abi::DeviceNumber;

use crate::identity::IdBook;
use crate::{
    Asked, Batch, ClassName, CompiledClass, Container, ContainerEvent, DevPath, Device, DeviceId, Generation,
    Incarnation, Memory, Reread, RuntimeId,
};

/// Everything that was observed: the devices that are present, the containers that runtimes know, the classes in force.
///
/// A number is never that of two devices in here: the kernel gives it to one at a time, so of two the one that was read
/// last has it.
#[derive(Clone, Debug)]
pub struct Inventory {
    devices: BTreeMap<DevPath, KnownDevice>,
    numbers: BTreeMap<DeviceNumber, DevPath>,
    containers: BTreeMap<RuntimeId, Container>,
    classes: BTreeMap<ClassName, Arc<CompiledClass>>,
    ids: IdBook,
    sighted: u64,
    unheard: Unheard,
}

/// A device that is present.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownDevice {
    /// What was read of it last.
    pub device: Arc<Device>,
    /// Its id, fixed when it came.
    pub id: DeviceId,
    /// The mark of its incarnation.
    pub generation: Generation,
    /// Its place in the order in which devices came.
    pub sighted: u64,
}

/// What a batch has changed, for those who tell users of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Numbers for which nothing that was granted before may hold any more.
    pub voided: BTreeSet<DeviceNumber>,
    /// Devices that have left. One that is in `arrived` too was replugged.
    pub left: Vec<KnownDevice>,
    /// Devices that have come.
    pub arrived: Vec<KnownDevice>,
}

/// The sources that have not listed yet. Until all have, what is missing is not known to be absent.
#[derive(Clone, Debug)]
struct Unheard {
    devices: bool,
    classes: bool,
    runtimes: BTreeSet<String>,
}

impl Inventory {
    /// Nothing observed yet. `runtimes` are the kinds of runtime whose lists are waited for.
    pub fn new(runtimes: impl IntoIterator<Item = String>, memory: &Memory) -> Self {
        Self {
            devices: BTreeMap::new(),
            numbers: BTreeMap::new(),
            containers: BTreeMap::new(),
            classes: BTreeMap::new(),
            ids: IdBook::new(memory),
            sighted: 0,
            unheard: Unheard { devices: true, classes: true, runtimes: runtimes.into_iter().collect() },
        }
    }

    /// Whether every source has listed what it knows. Before that nothing may be taken away because it is missing here.
    pub fn is_complete(&self) -> bool {
        let Unheard { devices, classes, runtimes } = &self.unheard;
        !devices && !classes && runtimes.is_empty()
    }

    /// The devices that are present, by their path in sysfs.
    pub fn devices(&self) -> impl Iterator<Item = &KnownDevice> {
        self.devices.values()
    }

    /// The device that has a number.
    pub fn device(&self, number: DeviceNumber) -> Option<&KnownDevice> {
        self.numbers.get(&number).and_then(|devpath| self.devices.get(devpath))
    }

    /// The containers that runtimes know.
    pub fn containers(&self) -> impl Iterator<Item = &Container> {
        self.containers.values()
    }

    /// A container.
    pub fn container(&self, id: &RuntimeId) -> Option<&Container> {
        self.containers.get(id)
    }

    /// The classes in force.
    pub fn classes(&self) -> impl Iterator<Item = &Arc<CompiledClass>> {
        self.classes.values()
    }

    /// A class.
    pub fn class(&self, name: &ClassName) -> Option<&Arc<CompiledClass>> {
        self.classes.get(name)
    }

    /// What the device source must read for the classes in force. When it changes, the source lists again.
    pub fn asked(&self) -> Asked {
        Asked::by(self.classes.values())
    }

    /// What later runs of the agent should know. When it changes, it is written to the disk.
    pub fn memory(&self) -> Memory {
        self.ids.memory()
    }

    /// Takes in a batch, with the answers for [`Batch::reread`]. A path without an answer could not be read: a device
    /// there stays as it was known, unless it was removed.
    pub fn apply(&mut self, batch: Batch, mut reread: Vec<Reread>) -> Changes {
        let Batch { removed, moved, listed, reread: _, containers, classes, first: _, events: _ } = batch;
        let mut changes = Changes::default();
        // The kernel's word on removals comes first: what is read afterwards is another incarnation, even if all that
        // can be seen of it is the same.
        for removed in removed {
            self.remove(&removed.devpath, &mut changes);
            changes.voided.extend(removed.number);
        }
        for (from, to) in moved {
            self.rename(&from, to, &mut changes);
        }
        if let Some(mut devices) = listed {
            in_order_of_arrival(&mut devices, |device| Some(device.incarnation));
            self.unheard.devices = false;
            let listed: BTreeSet<_> = devices.iter().map(|device| device.devpath.clone()).collect();
            let missing: Vec<_> = self.devices.keys().filter(|devpath| !listed.contains(*devpath)).cloned().collect();
            for devpath in missing {
                self.remove(&devpath, &mut changes);
            }
            for device in devices {
                self.insert(device, &mut changes);
            }
        }
        in_order_of_arrival(&mut reread, |reread| reread.device.as_ref().map(|device| device.incarnation));
        for Reread { devpath, device } in reread {
            match device {
                Some(device) => self.insert(device, &mut changes),
                None => self.remove(&devpath, &mut changes),
            }
        }
        for event in containers {
            self.apply_container(event);
        }
        if let Some(classes) = classes {
            self.unheard.classes = false;
            self.classes = classes.into_iter().map(|class| (class.name.clone(), class)).collect();
        }
        changes
    }

    fn insert(&mut self, device: Device, changes: &mut Changes) {
        let stays = self
            .devices
            .get_mut(&device.devpath)
            .filter(|known| known.device.incarnation == device.incarnation && known.device.number == device.number);
        if let Some(known) = stays {
            known.device = Arc::new(device);
            return;
        }
        self.remove(&device.devpath.clone(), changes);
        // The news that the one before has left was lost, or is still to come.
        if let Some(before) = self.numbers.get(&device.number).cloned() {
            self.remove(&before, changes);
        }
        let known = KnownDevice {
            id: self.ids.assign(&device),
            generation: device.incarnation.generation(),
            sighted: self.sighted,
            device: Arc::new(device),
        };
        self.sighted += 1;
        self.numbers.insert(known.device.number, known.device.devpath.clone());
        self.devices.insert(known.device.devpath.clone(), known.clone());
        changes.arrived.push(known);
    }

    fn remove(&mut self, devpath: &DevPath, changes: &mut Changes) {
        if let Some(known) = self.devices.remove(devpath) {
            self.numbers.remove(&known.device.number);
            self.ids.release(&known.id);
            changes.voided.insert(known.device.number);
            changes.left.push(known);
        }
    }

    /// The device stays what it is: it keeps id and incarnation under its new path.
    fn rename(&mut self, from: &DevPath, to: DevPath, changes: &mut Changes) {
        if let Some(mut known) = self.devices.remove(from) {
            self.remove(&to, changes);
            let device = Arc::make_mut(&mut known.device);
            device.devpath = to.clone();
            self.numbers.insert(device.number, to.clone());
            self.devices.insert(to, known);
        }
    }

    fn apply_container(&mut self, event: ContainerEvent) {
        match event {
            ContainerEvent::Seen(container) => {
                self.containers.insert(container.id.clone(), container);
            }
            ContainerEvent::Gone { id, pid } => {
                let known = self.containers.get(&id).and_then(Container::task);
                let of_another_life = known.zip(pid).is_some_and(|(task, pid)| task.pid != pid);
                if !of_another_life {
                    self.containers.remove(&id);
                }
            }
            ContainerEvent::Listed { runtime, containers } => {
                self.unheard.runtimes.remove(&runtime);
                self.containers.retain(|id, _| id.runtime != runtime);
                self.containers.extend(containers.into_iter().map(|container| (container.id.clone(), container)));
            }
        }
    }
}

/// What has gone comes first, so that its number and id are free; then what has come, in the order in which it came,
/// which decides what twins are called however many are read at once.
fn in_order_of_arrival<T>(read: &mut [T], incarnation: impl Fn(&T) -> Option<Incarnation>) {
    read.sort_by_key(incarnation);
}
