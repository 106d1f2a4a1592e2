//! The device source with somebody who listens to it, as the reconciler would.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use devgate::sources::device_class::ClassFile;
use devgate::sources::udev::{self, UdevConfig, UdevCounters, UdevError, UdevReader};
use devgate_core::{DevPath, Device, DeviceEvent, Event};
use devgate_tests::UdevHost;
use tokio::runtime::Runtime;
use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// What takes longer never comes.
const PATIENCE: Duration = Duration::from_secs(20);

/// The source runs only while something is waited for; in between all that comes waits in its sockets.
pub(crate) struct Listener {
    runtime: Runtime,
    classes: Sender<Event>,
    events: Receiver<Event>,
    reader: UdevReader,
    counters: Arc<UdevCounters>,
    task: JoinHandle<Result<(), UdevError>>,
}

impl Listener {
    pub(crate) fn new(host: &UdevHost) -> Result<Self> {
        Self::with(&host.config())
    }

    pub(crate) fn with(config: &UdevConfig) -> Result<Self> {
        let (source, reader) = udev::open(config)?;
        let (classes, from_classes) = mpsc::channel(4);
        let (to_us, events) = mpsc::channel(64);
        let counters = source.counters();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let task = runtime.spawn(source.run(from_classes, to_us));
        Ok(Self { runtime, classes, events, reader, counters, task })
    }

    pub(crate) fn counters(&self) -> &UdevCounters {
        &self.counters
    }

    /// Brings the classes into force, all that there are.
    pub(crate) fn classes(&self, classes: &[String]) {
        let file = ClassFile::read(classes.concat().as_bytes());
        let classes = file.documents.into_iter().map(|document| document.class.expect("a class")).collect();
        self.classes.try_send(Event::Classes(classes)).expect("the source takes classes");
    }

    pub(crate) fn next(&mut self) -> Event {
        let next = self.runtime.block_on(async { timeout(PATIENCE, self.events.recv()).await });
        let event = next.expect("no event came");
        event.unwrap_or_else(|| panic!("the source has ended: {:?}", self.runtime.block_on(&mut self.task)))
    }

    /// The first thing about a device that `find` finds something in. The host's own devices are heard too.
    pub(crate) fn wait_for<T>(&mut self, mut find: impl FnMut(&DeviceEvent) -> Option<T>) -> T {
        loop {
            if let Event::Device(event) = self.next()
                && let Some(found) = find(&event)
            {
                return found;
            }
        }
    }

    pub(crate) fn next_listed(&mut self) -> Vec<Device> {
        self.wait_for(|event| match event {
            DeviceEvent::Listed(devices) => Some(devices.clone()),
            _ => None,
        })
    }

    pub(crate) fn read(&self, devpath: &DevPath) -> Option<Device> {
        let mut read = self.runtime.block_on(self.reader.reread(vec![devpath.clone()])).expect("the reader answers");
        let answer = read.pop().expect("the path can be read");
        assert_eq!(answer.devpath, *devpath);
        answer.device
    }

    pub(crate) fn remains(&self, device: &Device) -> bool {
        let asked = vec![(device.devpath.clone(), device.incarnation)];
        let remaining = self.runtime.block_on(self.reader.remain(asked.clone())).expect("the reader answers");
        remaining == asked
    }

    /// Keeps account of the devices as the events say, until they are as they should be.
    pub(crate) fn follow_until(&mut self, right: impl Fn(&BTreeMap<DevPath, Device>) -> bool) {
        let mut devices = BTreeMap::new();
        while !right(&devices) {
            let Event::Device(event) = self.next() else { continue };
            match event {
                DeviceEvent::Listed(listed) => {
                    devices = listed.into_iter().map(|device| (device.devpath.clone(), device)).collect();
                }
                DeviceEvent::Added { devpath }
                | DeviceEvent::Changed { devpath }
                | DeviceEvent::Removed { devpath, .. } => match self.read(&devpath) {
                    Some(device) => _ = devices.insert(devpath, device),
                    None => _ = devices.remove(&devpath),
                },
                DeviceEvent::Moved { from, to } => {
                    devices.remove(&from);
                    devices.extend(self.read(&to).map(|device| (to, device)));
                }
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A class of all macvtap devices.
pub(crate) fn of_macvtap(name: &str) -> String {
    format!(
        "---\napiVersion: devgate.dev/v1alpha1\nkind: DeviceClass\nmetadata: {{ name: {name} }}\nspec:\n  match: [ {{ \
         subsystem: macvtap }} ]\n  allocation: {{ kind: All }}\n"
    )
}

/// A message as udev would send it.
pub(crate) fn udev_message(subsystem: &str, pairs: &str) -> Vec<u8> {
    let mut message = b"libudev\0".to_vec();
    message.extend(0xfeed_cafe_u32.to_be_bytes());
    for word in [40, 40, pairs.len() as u32] {
        message.extend(word.to_ne_bytes());
    }
    message.extend(udev::subsystem_hash(subsystem).to_be_bytes());
    message.extend([0; 12]);
    message.extend(pairs.as_bytes());
    message
}
