use std::sync::Arc;

use devgate_abi::DeviceNumber;

use crate::{CompiledClass, Container, DevPath, Device, RuntimeId};

/// Something that a source has seen. Every source listens first, then lists, and lists again after a loss; a listing
/// replaces all that was known from that source.
#[derive(Clone, Debug)]
pub enum Event {
    /// From the kernel or udev.
    Device(DeviceEvent),
    /// From a container runtime.
    Container(ContainerEvent),
    /// The usable classes, all of them: a class that is missing is gone.
    Classes(Vec<Arc<CompiledClass>>),
}

/// What happened to a device.
///
/// Only a removal counts at once. Everything else is a hint: the device is read again from sysfs and the udev database
/// when the batch is taken ([`Batch::reread`](crate::Batch::reread)), so a made-up event changes nothing.
#[derive(Clone, Debug)]
pub enum DeviceEvent {
    /// udev has finished with a new device.
    Added {
        /// The device.
        devpath: DevPath,
    },
    /// udev has finished with any other event of a device (`change`, `bind`, `online`, an unknown word).
    Changed {
        /// The device.
        devpath: DevPath,
    },
    /// The **kernel's** own group said `remove` or `offline`. What was granted for the number is void from here on,
    /// whatever is read afterwards.
    Removed {
        /// The device.
        devpath: DevPath,
        /// Its number, if the event says it.
        number: Option<DeviceNumber>,
    },
    /// The kernel's own group said `move`: the same stay of the same device under another path.
    Moved {
        /// `DEVPATH_OLD`.
        from: DevPath,
        /// `DEVPATH`.
        to: DevPath,
    },
    /// A complete list of the devices that have a node: at start, after a loss, when other attributes are asked for.
    Listed(Vec<Device>),
}

/// What a runtime says. The source reads the container again before it sends an event, so an event is complete and the
/// last one counts.
#[derive(Clone, Debug)]
pub enum ContainerEvent {
    /// A container that is new or has changed.
    Seen(Container),
    /// A container has ended or was deleted.
    Gone {
        /// The container.
        id: RuntimeId,
        /// The process whose end was reported. If it is given and the container is known with another one, the news is
        /// of an earlier life, or of a process that was started in it, and changes nothing.
        pid: Option<u32>,
    },
    /// A complete list of one runtime's containers: at start, after a reconnect, from time to time.
    Listed {
        /// The kind of runtime, as in [`RuntimeId::runtime`]. Containers of other runtimes are left alone.
        runtime: String,
        /// Its containers.
        containers: Vec<Container>,
    },
}

/// The answer for one path of [`Batch::reread`](crate::Batch::reread).
#[derive(Clone, Debug)]
pub struct Reread {
    /// The path that was read.
    pub devpath: DevPath,
    /// What is there; `None` if nothing that has a node.
    pub device: Option<Device>,
}
