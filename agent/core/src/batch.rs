use std::sync::Arc;
use std::time::Duration;

use devgate_abi::DeviceNumber;

use crate::{CompiledClass, ContainerEvent, DevPath, Device, DeviceEvent, Event, Moment};

/// When a batch is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchTiming {
    /// How long it must be quiet after an event before a batch is taken. As long a silence also makes the next event
    /// one that is handled at once.
    pub quiet: Duration,
    /// How long the first event of a batch waits at most, however busy it is.
    pub max_delay: Duration,
}

impl Default for BatchTiming {
    fn default() -> Self {
        Self { quiet: Duration::from_millis(2), max_delay: Duration::from_millis(20) }
    }
}

/// Events that are handled together. Each list is in the order of the events, an entry standing where its last event
/// stood.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// Devices whose removal the kernel announced. A device that is in [`reread`](Self::reread) as well and is found
    /// there was *replaced*, which is not the same as *unchanged*: what was granted for it is void.
    pub removed: Vec<RemovedDevice>,
    /// Devices that have another path now: from, to.
    pub moved: Vec<(DevPath, DevPath)>,
    /// A complete list of the devices.
    pub listed: Option<Vec<Device>>,
    /// Devices that must be read again before the batch is applied, the removed ones among them: the news of a removal
    /// may be older than the device that is there now. They are read after `listed` was.
    pub reread: Vec<DevPath>,
    /// What the runtimes said, less what later news made void.
    pub containers: Vec<ContainerEvent>,
    /// The usable classes.
    pub classes: Option<Vec<Arc<CompiledClass>>>,
    /// When the first event came.
    pub first: Moment,
    /// How many events it stands for.
    pub events: usize,
}

/// A device that the kernel removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemovedDevice {
    /// Where it was.
    pub devpath: DevPath,
    /// The number it had, if the event said it.
    pub number: Option<DeviceNumber>,
}

impl Batch {
    fn push(&mut self, event: Event) {
        self.events += 1;
        match event {
            Event::Device(event) => self.push_device(event),
            Event::Container(event) => self.push_container(event),
            Event::Classes(classes) => self.classes = Some(classes),
        }
    }

    fn push_device(&mut self, event: DeviceEvent) {
        match event {
            DeviceEvent::Added { devpath } | DeviceEvent::Changed { devpath } => self.read_again(devpath),
            DeviceEvent::Removed { devpath, number } => {
                let removed = RemovedDevice { devpath, number };
                self.read_again(removed.devpath.clone());
                if !self.removed.contains(&removed) {
                    self.removed.push(removed);
                }
            }
            DeviceEvent::Moved { from, to } => {
                self.read_again(from.clone());
                self.read_again(to.clone());
                self.moved.push((from, to));
            }
            DeviceEvent::Listed(devices) => self.listed = Some(devices),
        }
    }

    fn read_again(&mut self, devpath: DevPath) {
        self.reread.retain(|known| *known != devpath);
        self.reread.push(devpath);
    }

    fn push_container(&mut self, event: ContainerEvent) {
        match &event {
            // What is complete makes void what was said before.
            ContainerEvent::Seen(container) => self.containers.retain(|known| match known {
                ContainerEvent::Seen(earlier) => earlier.id != container.id,
                ContainerEvent::Gone { id, .. } => *id != container.id,
                ContainerEvent::Listed { .. } => true,
            }),
            ContainerEvent::Listed { runtime, .. } => self.containers.retain(|known| match known {
                ContainerEvent::Seen(earlier) => earlier.id.runtime != *runtime,
                ContainerEvent::Gone { id, .. } => id.runtime != *runtime,
                ContainerEvent::Listed { runtime: earlier, .. } => earlier != runtime,
            }),
            // Whether it concerns the container that is known depends on the process, which the inventory compares.
            ContainerEvent::Gone { .. } => {}
        }
        self.containers.push(event);
    }
}

/// Collects events into batches and says when the next one is due.
#[derive(Debug)]
pub struct Batcher {
    timing: BatchTiming,
    pending: Option<Pending>,
    last_event: Option<Moment>,
}

#[derive(Debug)]
struct Pending {
    batch: Batch,
    due: Moment,
    /// An event that cannot wait is in it: further events do not put it off.
    urgent: bool,
}

impl Batcher {
    /// Nothing collected yet; the first event is handled at once.
    pub fn new(timing: BatchTiming) -> Self {
        Self { timing, pending: None, last_event: None }
    }

    /// Takes in an event that came `now`.
    pub fn push(&mut self, event: Event, now: Moment) {
        let after_silence =
            self.pending.is_none() && self.last_event.is_none_or(|last| now.saturating_sub(last) >= self.timing.quiet);
        let at_once = after_silence || matches!(event, Event::Device(DeviceEvent::Removed { .. }));
        self.last_event = Some(now);
        let pending = self.pending.get_or_insert_with(|| Pending {
            batch: Batch { first: now, ..Batch::default() },
            due: now,
            urgent: false,
        });
        pending.batch.push(event);
        if at_once && !pending.urgent {
            pending.urgent = true;
            pending.due = now;
        }
        if !pending.urgent {
            let latest = pending.batch.first.saturating_add(self.timing.max_delay);
            pending.due = now.saturating_add(self.timing.quiet).min(latest);
        }
    }

    /// When the batch that is being collected is due; `None` if nothing is.
    pub fn due(&self) -> Option<Moment> {
        self.pending.as_ref().map(|pending| pending.due)
    }

    /// The batch, if it is due.
    pub fn take(&mut self, now: Moment) -> Option<Batch> {
        self.pending.take_if(|pending| pending.due <= now).map(|pending| pending.batch)
    }
}
