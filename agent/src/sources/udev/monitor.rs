//! Turns uevents into events.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use devgate_core::{Asked, CompiledClass, DevPath, DeviceEvent, Event};
use tokio::sync::mpsc::{Receiver, Sender};
use tokio::time::{Instant, sleep_until};

use super::filter::Filter;
use super::message::Message;
use super::reader::UdevReader;
use super::socket::{self, Group, MAX_MESSAGE, Received, receive};
use super::{Database, UdevConfig, UdevError};
use crate::readiness::Readable;

/// So many messages are taken before what they say is sent on.
const AT_ONCE: usize = 256;
/// However often messages are lost, devices are listed no more often than this.
const BETWEEN_LISTINGS: Duration = Duration::from_millis(50);

/// Hears uevents.
#[derive(Debug)]
pub struct UdevSource {
    kernel: OwnedFd,
    udev: OwnedFd,
    database: Database,
    reader: UdevReader,
    counters: Arc<UdevCounters>,
}

/// What has happened since the start.
#[derive(Debug, Default)]
pub struct UdevCounters {
    overflows: AtomicU64,
    listings: AtomicU64,
    strangers: AtomicU64,
    unreadable: AtomicU64,
}

impl UdevCounters {
    /// How often the kernel said that it had lost messages.
    pub fn overflows(&self) -> u64 {
        self.overflows.load(Ordering::Relaxed)
    }

    /// How often all devices were listed.
    pub fn listings(&self) -> u64 {
        self.listings.load(Ordering::Relaxed)
    }

    /// How many messages came from somebody who has no business in their group.
    pub fn strangers(&self) -> u64 {
        self.strangers.load(Ordering::Relaxed)
    }

    /// How many messages were of a form that is not known.
    pub fn unreadable(&self) -> u64 {
        self.unreadable.load(Ordering::Relaxed)
    }
}

impl UdevSource {
    pub(super) fn open(config: &UdevConfig, reader: UdevReader) -> Result<Self, UdevError> {
        let UdevConfig { net_namespace, mount_namespace: _, receive_buffer, database } = config;
        let open = |group, filter| {
            socket::open(net_namespace, group, *receive_buffer, filter)
                .map_err(|source| UdevError::NetNamespace { path: PathBuf::clone(net_namespace), source })
        };
        let from_kernel = match database {
            Database::Required => Filter::of_removals(),
            Database::None => Filter::of_subsystems(None),
        };
        Ok(Self {
            kernel: open(Group::Kernel, from_kernel)?,
            udev: open(Group::Udev, Filter::of_subsystems(None))?,
            database: *database,
            reader,
            counters: Arc::default(),
        })
    }

    /// What has happened since the start, to be looked at while the source runs.
    pub fn counters(&self) -> Arc<UdevCounters> {
        self.counters.clone()
    }

    /// Sends what happens, and a complete list at first, until the receiver is gone. Needs a tokio runtime with I/O and
    /// time. Dropping the future ends it.
    ///
    /// `classes` brings [`Event::Classes`], which are handed on to `events` behind a listing of what they ask for. The
    /// first listing waits for them.
    pub async fn run(self, classes: Receiver<Event>, events: Sender<Event>) -> Result<(), UdevError> {
        let Self { kernel, udev, database, reader, counters } = self;
        let hear = |fd: OwnedFd, group| {
            let inbox = Inbox { group, lost: false, more: true, buffer: vec![0; MAX_MESSAGE] };
            Ok(Hearing { socket: Readable::new(fd).map_err(UdevError::Receive)?, inbox })
        };
        let monitor = Monitor {
            kernel: hear(kernel, Group::Kernel)?,
            udev: hear(udev, Group::Udev)?,
            database,
            reader,
            counters,
            events,
            classes_asked: None,
            listed: None,
            relist: None,
        };
        match monitor.run(classes).await {
            Ok(()) | Err(End::NobodyListens) => Ok(()),
            Err(End::Failed(error)) => Err(error),
        }
    }
}

/// Why it ends.
enum End {
    NobodyListens,
    Failed(UdevError),
}

impl From<UdevError> for End {
    fn from(error: UdevError) -> Self {
        Self::Failed(error)
    }
}

struct Monitor {
    kernel: Hearing,
    udev: Hearing,
    database: Database,
    reader: UdevReader,
    counters: Arc<UdevCounters>,
    events: Sender<Event>,
    /// What the classes ask for that were handed on last; `None` until there are any.
    classes_asked: Option<Asked>,
    /// When devices were listed last.
    listed: Option<Instant>,
    /// When they are to be listed again.
    relist: Option<Instant>,
}

/// One of the two sockets.
struct Hearing {
    socket: Readable,
    inbox: Inbox,
}

/// What is to know of one of the two groups.
struct Inbox {
    group: Group,
    /// Messages were lost, and what was heard before is not all taken yet.
    lost: bool,
    /// It was left with messages in it, which are not announced again.
    more: bool,
    buffer: Vec<u8>,
}

/// What was taken from a socket.
#[derive(Default)]
struct Heard {
    messages: Vec<Message>,
    /// Messages were lost, and the socket hears again.
    lost: bool,
}

impl Monitor {
    async fn run(mut self, mut classes: Receiver<Event>) -> Result<(), End> {
        let mut classes_come = true;
        loop {
            let relist = self.relist;
            tokio::select! {
                // Cancel-safe: the sender is not used up by waiting.
                () = self.events.closed() => return Err(End::NobodyListens),
                // Cancel-safe, as the next one: nothing is waited for once a message has been taken.
                heard = self.kernel.hear(&self.counters) => {
                    let heard = heard.map_err(UdevError::Receive)?;
                    self.take(heard, Heard::default()).await?;
                }
                heard = self.udev.hear(&self.counters) => {
                    let udev = heard.map_err(UdevError::Receive)?;
                    // What the kernel said of the same devices was said before.
                    let kernel = self.kernel.take(&self.counters).map_err(UdevError::Receive)?;
                    self.take(kernel, udev).await?;
                }
                // Cancel-safe: a message is taken only if this arm is chosen.
                event = classes.recv(), if classes_come => match event {
                    Some(Event::Classes(classes)) => {
                        self.take_classes(&classes).await?;
                        self.send(Event::Classes(classes)).await?;
                    }
                    Some(other) => self.send(other).await?,
                    None => classes_come = false,
                },
                // Cancel-safe: the time is kept in `self`.
                () = sleep_until(relist.unwrap_or_else(Instant::now)), if relist.is_some() => self.list().await?,
            }
        }
    }

    async fn take(&mut self, kernel: Heard, udev: Heard) -> Result<(), End> {
        for message in kernel.messages {
            self.take_kernel(message).await?;
        }
        for message in udev.messages {
            self.take_udev(message).await?;
        }
        if kernel.lost || udev.lost {
            tracing::warn!("uevents were lost: all devices are listed again");
            self.reader.stays().events_lost();
            self.list_soon();
        }
        Ok(())
    }

    async fn take_kernel(&mut self, message: Message) -> Result<(), End> {
        let Message { action, devpath, devpath_old, subsystem, number, sequence } = message;
        match action.as_str() {
            "remove" | "offline" => {
                // Without a node there is nothing that anybody could have been granted.
                let Some(number) = number else { return Ok(()) };
                self.reader.stays().removed(number, sequence);
                self.send_device(DeviceEvent::Removed { devpath, number: Some(number) }).await
            }
            "move" => {
                let Some(from) = devpath_old else { return Ok(()) };
                let with_it = self.reader.stays().moved_with(&from, &devpath);
                if number.is_some() {
                    self.send_device(DeviceEvent::Moved { from, to: devpath }).await?;
                }
                for (from, to) in with_it {
                    self.send_device(DeviceEvent::Moved { from, to }).await?;
                }
                Ok(())
            }
            // Where there is no udev the kernel's word is all there is.
            _ if self.database == Database::None && number.is_some() && self.wants(subsystem.as_deref()) => {
                self.send_device(hint(&action, devpath)).await
            }
            _ => Ok(()),
        }
    }

    async fn take_udev(&mut self, message: Message) -> Result<(), End> {
        let Message { action, devpath, devpath_old: _, subsystem, number, sequence } = message;
        let Some(number) = number.filter(|_| self.wants(subsystem.as_deref())) else { return Ok(()) };
        if action != "remove" {
            self.reader.stays().handled(number, sequence);
        }
        self.send_device(hint(&action, devpath)).await
    }

    /// Whether a class that is in force can match devices of a subsystem.
    fn wants(&self, subsystem: Option<&str>) -> bool {
        let asked = self.reader.asked();
        self.classes_asked.is_some()
            && subsystem.is_some_and(|name| asked.subsystems.as_ref().is_none_or(|asked| asked.contains(name)))
    }

    /// Sees that what classes ask for is heard, then read. What those before them ask for is read too, for as long as they
    /// may still be in force.
    async fn take_classes(&mut self, classes: &[Arc<CompiledClass>]) -> Result<(), End> {
        let wanted = Asked::by(classes.iter());
        let before = self.classes_asked.replace(wanted.clone());
        let asked = match &before {
            Some(before) => union(before, &wanted),
            None => wanted.clone(),
        };
        if before.as_ref() == Some(&wanted) {
            return Ok(());
        }
        let mut filter = Filter::of_subsystems(asked.subsystems.as_ref());
        filter.attach(self.udev.socket.as_fd()).map_err(UdevError::Filter)?;
        self.reader.ask(asked);
        self.list().await
    }

    async fn list(&mut self) -> Result<(), End> {
        self.relist = None;
        self.listed = Some(Instant::now());
        let devices = self.reader.list().await?;
        self.counters.listings.fetch_add(1, Ordering::Relaxed);
        tracing::debug!(count = devices.len(), "devices listed");
        self.send_device(DeviceEvent::Listed(devices)).await
    }

    fn list_soon(&mut self) {
        // Before there are classes nothing was listed that could be wrong.
        if self.classes_asked.is_some() && self.relist.is_none() {
            let now = Instant::now();
            self.relist = Some(self.listed.map_or(now, |listed| now.max(listed + BETWEEN_LISTINGS)));
        }
    }

    async fn send_device(&self, event: DeviceEvent) -> Result<(), End> {
        self.send(Event::Device(event)).await
    }

    async fn send(&self, event: Event) -> Result<(), End> {
        self.events.send(event).await.map_err(|_| End::NobodyListens)
    }
}

impl Hearing {
    /// Waits for messages and takes them. Cancel-safe: once waiting is over nothing is waited for any more.
    async fn hear(&mut self, counters: &UdevCounters) -> io::Result<Heard> {
        if !self.inbox.more {
            self.socket.announced().await?;
        }
        self.take(counters)
    }

    /// Takes the messages that are there.
    fn take(&mut self, counters: &UdevCounters) -> io::Result<Heard> {
        self.inbox.take(self.socket.as_fd(), counters)
    }
}

impl Inbox {
    /// Takes messages until there is none, or [`AT_ONCE`].
    fn take(&mut self, socket: BorrowedFd<'_>, counters: &UdevCounters) -> io::Result<Heard> {
        let mut heard = Heard::default();
        self.more = true;
        for _ in 0..AT_ONCE {
            match receive(socket, &mut self.buffer) {
                Ok(received) => self.open(received, counters, &mut heard),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.more = false;
                    // Until the socket is empty the kernel drops what comes without saying so again: a list made before
                    // could miss it.
                    heard.lost |= std::mem::take(&mut self.lost);
                    break;
                }
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                    counters.overflows.fetch_add(1, Ordering::Relaxed);
                    self.lost = true;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(heard)
    }

    fn open(&self, received: Received, counters: &UdevCounters, heard: &mut Heard) {
        if !received.is_from(self.group) {
            counters.strangers.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let bytes = &self.buffer[..received.length];
        let message = match self.group {
            Group::Kernel => Message::of_kernel(bytes),
            Group::Udev => Message::of_udev(bytes),
        };
        match message {
            Some(message) if !received.cut => heard.messages.push(message),
            _ => {
                // Whatever it was about is found in a list.
                counters.unreadable.fetch_add(1, Ordering::Relaxed);
                heard.lost = true;
            }
        }
    }
}

/// What udev says, whatever the word, makes somebody look.
fn hint(action: &str, devpath: DevPath) -> DeviceEvent {
    if action == "add" { DeviceEvent::Added { devpath } } else { DeviceEvent::Changed { devpath } }
}

fn union(one: &Asked, other: &Asked) -> Asked {
    let both = |one: &BTreeSet<String>, other| one.union(other).cloned().collect();
    Asked {
        subsystems: one.subsystems.as_ref().zip(other.subsystems.as_ref()).map(|(one, other)| both(one, other)),
        attributes: both(&one.attributes, &other.attributes),
        parent_attributes: both(&one.parent_attributes, &other.parent_attributes),
    }
}
