//! One task that listens, lists and reads, from one connection to the next.

use std::collections::BTreeMap;
use std::future;
use std::sync::Arc;

use containerd_client::types::Envelope;
use devgate_core::{ContainerEvent, Event, RuntimeId};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};
use tonic::Status;
use tracing::{info, warn};

use super::client::{CallError, Client};
use super::complaints::Complaints;
use super::hint::{self, Hint, Key};
use super::image::ImageCache;
use super::read::{AllKnown, Flaw, PARALLEL, Reader, Reading};
use super::retries::{Retries, random};
use super::schedule::{Outbox, Schedule, Task};
use super::{ContainerdConfig, RUNTIME};
use crate::executors::enforcer::CgroupError;
use crate::sources::container::FindTask;

/// Sends events until nobody receives them any more. `tasks` opens what containers' processes are found with.
///
/// May be dropped at any time: nothing is kept that is not read again.
pub(super) async fn watch<F: FindTask + Sync>(
    config: &ContainerdConfig,
    tasks: impl Fn() -> Result<F, CgroupError>,
    events: &mpsc::Sender<Event>,
) {
    let mut memory = Memory::new(config);
    let mut failures = 0;
    loop {
        let images = ImageCache::default();
        let lost = match tasks() {
            Ok(tasks) => session(config, &tasks, &images, events, &mut memory, &mut failures).await,
            Err(error) => Lost::Cgroups(error),
        };
        if matches!(lost, Lost::Listener) {
            return;
        }
        if let Some(cause) = memory.complaints.about(Subject::Connection, &lost) {
            warn!(socket = %config.socket.display(), "containerd is not listened to, and is tried again: {cause}");
        }
        failures += 1;
        sleep(config.backoff.delay(failures, random())).await;
    }
}

/// Why a session has ended.
#[derive(Debug, thiserror::Error)]
enum Lost {
    #[error("nobody wants events any more")]
    Listener,
    #[error("cgroups cannot be looked at")]
    Cgroups(#[source] CgroupError),
    #[error(transparent)]
    Call(#[from] CallError),
    #[error("the stream of events broke")]
    Broken(#[source] Box<Status>),
    #[error("the stream of events ended")]
    Ended,
}

/// What warnings are about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Subject {
    Connection,
    Container(Key),
    Task(Key),
    Image(Key),
}

/// What is known from one session to the next.
#[derive(Debug)]
struct Memory {
    /// As it was told last.
    known: AllKnown,
    retries: Retries,
    complaints: Complaints<Subject>,
}

async fn session<F: FindTask + Sync>(
    config: &ContainerdConfig,
    tasks: &F,
    images: &ImageCache,
    events: &mpsc::Sender<Event>,
    memory: &mut Memory,
    failures: &mut u32,
) -> Lost {
    let (client, mut stream) = match connect(config).await {
        Ok(connected) => connected,
        Err(error) => return error.into(),
    };
    let reader = Reader { client, tasks, images, config };
    let mut schedule = Schedule::new(PARALLEL);
    // What an earlier session had to tell and could not is in the listing.
    let mut outbox = Outbox::default();
    let mut listings = FuturesUnordered::new();
    let mut reads = FuturesUnordered::new();
    let mut relist_at = Instant::now() + config.relist;
    loop {
        while let Some(task) = schedule.begin() {
            match task {
                Task::List => listings.push(reader.all(memory.known.clone())),
                Task::Read(key) => {
                    let known = memory.known.get(&key).cloned();
                    let created = schedule.take_created(&key);
                    reads.push(reader.one(key, known, created));
                }
            }
        }
        // Each of these may be given up and asked again: a message is taken only if it comes, what is being read goes
        // on where it was, a permit that was not used is given back. Reading the stream never waits for whoever takes
        // the events: containerd keeps what is not read.
        tokio::select! {
            message = stream.message() => match message {
                Ok(Some(event)) => match hint::read(&event) {
                    Hint::Container(key) if config.tells_of(&key.namespace) => schedule.hint(key),
                    Hint::Created(key, pid) if config.tells_of(&key.namespace) => schedule.created(key, pid),
                    Hint::Container(_) | Hint::Created(..) | Hint::Nothing => {}
                    Hint::Unknown => schedule.want_listing(),
                },
                Ok(None) => return Lost::Ended,
                Err(status) => return Lost::Broken(Box::new(status)),
            },
            Some(listing) = listings.next() => {
                schedule.listed();
                let readings = match listing {
                    Ok(readings) => readings,
                    Err(error) => return error.into(),
                };
                outbox.push(memory.listed(readings));
                *failures = 0;
                relist_at = Instant::now() + config.relist;
            }
            Some(reading) = reads.next() => {
                schedule.read(&reading.key);
                if let Some(event) = memory.read(reading) {
                    outbox.push(event);
                }
            }
            permit = events.reserve(), if !outbox.is_empty() => match permit {
                Ok(permit) => if let Some(event) = outbox.pop() {
                    permit.send(Event::Container(event));
                },
                Err(_) => return Lost::Listener,
            },
            () = events.closed() => return Lost::Listener,
            () = sleep_until(relist_at) => {
                schedule.want_listing();
                relist_at = Instant::now() + config.relist;
            }
            () = at(memory.retries.next()) => {
                for key in memory.retries.take_due() {
                    schedule.hint(key);
                }
            }
        }
    }
}

async fn connect(config: &ContainerdConfig) -> Result<(Client, tonic::Streaming<Envelope>), CallError> {
    let client = Client::connect(&config.socket, config.deadline).await?;
    let stream = client.subscribe().await?;
    Ok((client, stream))
}

async fn at(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => future::pending().await,
    }
}

impl Memory {
    fn new(config: &ContainerdConfig) -> Self {
        Self { known: BTreeMap::new(), retries: Retries::new(config.backoff), complaints: Complaints::default() }
    }

    /// Takes in what was read of one container; returns what is to be told.
    fn read(&mut self, reading: Reading) -> Option<ContainerEvent> {
        self.judge(&reading);
        let Reading { key, found, flaws: _ } = reading;
        match found {
            // What was told stays until it is known better.
            Err(_) => None,
            Ok(None) => self.known.remove(&key).map(|_| ContainerEvent::Gone { id: runtime_id(key), pid: None }),
            Ok(Some(known)) => {
                let container = known.container.clone();
                let before = self.known.insert(key, Arc::new(known));
                let is_news = before.is_none_or(|before| before.container != container);
                is_news.then_some(ContainerEvent::Seen(container))
            }
        }
    }

    /// Takes in a listing; returns it as it is told.
    fn listed(&mut self, readings: Vec<Reading>) -> ContainerEvent {
        let mut before = std::mem::take(&mut self.known);
        for reading in readings {
            self.judge(&reading);
            let known = match reading.found {
                // A container that cannot be read now is most likely as it was.
                Err(_) => before.remove(&reading.key),
                Ok(known) => known.map(Arc::new),
            };
            self.known.extend(known.map(|known| (reading.key, known)));
        }
        for gone in before.keys().filter(|key| !self.known.contains_key(key)) {
            self.retries.settled(gone);
        }
        let (known, retries) = (&self.known, &self.retries);
        self.complaints.retain(|subject| match subject {
            Subject::Connection => true,
            Subject::Container(key) | Subject::Task(key) | Subject::Image(key) => {
                known.contains_key(key) || retries.contains(key)
            }
        });
        if self.complaints.settled(&Subject::Connection) {
            info!(containers = self.known.len(), "containerd is listened to again");
        }
        let containers = self.known.values().map(|known| known.container.clone()).collect();
        ContainerEvent::Listed { runtime: RUNTIME.to_owned(), containers }
    }

    /// Says what is wrong with a container, and arranges for another look where that may help.
    fn judge(&mut self, reading: &Reading) {
        let Reading { key, found, flaws } = reading;
        let [mut container, mut task, mut image] =
            [Subject::Container, Subject::Task, Subject::Image].map(|subject| Some(subject(key.clone())));
        if let Err(problem) = found {
            self.warn(container.take(), problem);
        }
        for flaw in flaws {
            self.warn(if matches!(flaw, Flaw::Task(_)) { task.take() } else { image.take() }, flaw);
        }
        for settled in [container, task, image].into_iter().flatten() {
            self.complaints.settled(&settled);
        }
        if found.is_err() || flaws.iter().any(Flaw::may_pass) {
            self.retries.failed(key.clone());
        } else {
            self.retries.settled(key);
        }
    }

    fn warn(&mut self, subject: Option<Subject>, error: &dyn std::error::Error) {
        let Some(subject) = subject else { return };
        let id = match &subject {
            Subject::Connection => return,
            Subject::Container(key) | Subject::Task(key) | Subject::Image(key) => runtime_id(key.clone()),
        };
        if let Some(cause) = self.complaints.about(subject, error) {
            warn!(container = %id, "{cause}");
        }
    }
}

/// How the core knows a container.
pub(super) fn runtime_id(key: Key) -> RuntimeId {
    RuntimeId { runtime: RUNTIME.to_owned(), namespace: key.namespace, id: key.id }
}
