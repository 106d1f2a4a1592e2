//! What is to be read when. Hints come in any number and order; what they lead to is bounded by the number of containers.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use devgate_core::{ContainerEvent, RuntimeId};

use super::hint::Key;

/// What is to be read.
///
/// A container is read by one at a time, and again if a hint came meanwhile. A listing is alone: what is read beside it
/// could be older or newer than what it says.
#[derive(Debug)]
pub(super) struct Schedule {
    limit: usize,
    hinted: BTreeSet<Key>,
    /// The first processes of those of which nothing else was heard since.
    created: BTreeMap<Key, u32>,
    reading: BTreeSet<Key>,
    listing: Listing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Listing {
    No,
    Wanted,
    Running { again: bool },
}

/// What is to be begun.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Task {
    List,
    Read(Key),
}

impl Schedule {
    /// Begins with a listing. No more than `limit` containers are read at the same time.
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit,
            hinted: BTreeSet::new(),
            created: BTreeMap::new(),
            reading: BTreeSet::new(),
            listing: Listing::Wanted,
        }
    }

    /// Something has happened to a container.
    pub(super) fn hint(&mut self, key: Key) {
        self.created.remove(&key);
        self.hinted.insert(key);
    }

    /// A container has got its first process.
    pub(super) fn created(&mut self, key: Key, pid: u32) {
        self.hinted.insert(key.clone());
        self.created.insert(key, pid);
    }

    /// The first process of a container that is about to be read, if it was only just told of.
    pub(super) fn take_created(&mut self, key: &Key) -> Option<u32> {
        self.created.remove(key)
    }

    /// Everything is to be read again.
    pub(super) fn want_listing(&mut self) {
        self.listing = match self.listing {
            Listing::No | Listing::Wanted => Listing::Wanted,
            Listing::Running { .. } => Listing::Running { again: true },
        };
    }

    /// The next thing to begin now, which is then taken as begun.
    pub(super) fn begin(&mut self) -> Option<Task> {
        match self.listing {
            Listing::Wanted if self.reading.is_empty() => {
                self.listing = Listing::Running { again: false };
                // What happened before the listing is in it.
                self.hinted.clear();
                self.created.clear();
                Some(Task::List)
            }
            Listing::No if self.reading.len() < self.limit => {
                let key = self.hinted.iter().find(|key| !self.reading.contains(key)).cloned()?;
                self.hinted.remove(&key);
                self.reading.insert(key.clone());
                Some(Task::Read(key))
            }
            Listing::No | Listing::Wanted | Listing::Running { .. } => None,
        }
    }

    /// A container has been read.
    pub(super) fn read(&mut self, key: &Key) {
        self.reading.remove(key);
    }

    /// The listing is complete.
    pub(super) fn listed(&mut self) {
        self.listing = if self.listing == (Listing::Running { again: true }) { Listing::Wanted } else { Listing::No };
    }
}

/// What is to be sent. While nobody takes it, only the last word on each container is kept.
#[derive(Debug, Default)]
pub(super) struct Outbox(VecDeque<ContainerEvent>);

impl Outbox {
    pub(super) fn push(&mut self, event: ContainerEvent) {
        match container(&event).cloned() {
            Some(id) => self.0.retain(|earlier| container(earlier) != Some(&id)),
            None => self.0.clear(),
        }
        self.0.push_back(event);
    }

    pub(super) fn pop(&mut self) -> Option<ContainerEvent> {
        self.0.pop_front()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

fn container(event: &ContainerEvent) -> Option<&RuntimeId> {
    match event {
        ContainerEvent::Seen(container) => Some(&container.id),
        ContainerEvent::Gone { id, pid: _ } => Some(id),
        ContainerEvent::Listed { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(id: &str) -> Key {
        Key { namespace: "default".into(), id: id.into() }
    }

    fn listed() -> Schedule {
        let mut schedule = Schedule::new(2);
        assert_eq!(schedule.begin(), Some(Task::List));
        schedule.listed();
        schedule
    }

    // Fault: agent/src/sources/containerd/schedule.rs
    // - let key = self.hinted.iter().find(|key| !self.reading.contains(key)).cloned()?;
    // + let key = self.hinted.iter().next().cloned()?;
    #[test]
    fn a_container_is_read_by_one_at_a_time_and_again_if_something_happened_meanwhile() {
        let mut schedule = listed();
        schedule.hint(key("a"));
        assert_eq!(schedule.begin(), Some(Task::Read(key("a"))));
        schedule.hint(key("a"));
        schedule.hint(key("a"));
        assert_eq!(schedule.begin(), None);
        schedule.read(&key("a"));
        assert_eq!(schedule.begin(), Some(Task::Read(key("a"))));
        schedule.read(&key("a"));
        assert_eq!(schedule.begin(), None);
    }

    #[test]
    fn no_more_than_so_many_are_read_at_a_time() {
        let mut schedule = listed();
        for id in ["a", "b", "c"] {
            schedule.hint(key(id));
        }
        assert_eq!([schedule.begin(), schedule.begin()], [Some(Task::Read(key("a"))), Some(Task::Read(key("b")))]);
        assert_eq!(schedule.begin(), None);
        schedule.read(&key("a"));
        assert_eq!(schedule.begin(), Some(Task::Read(key("c"))));
    }

    // Fault: agent/src/sources/containerd/schedule.rs
    // - self.created.remove(&key);
    // + let _ = &self.created;
    #[test]
    fn a_first_process_is_forgotten_when_anything_else_is_heard() {
        let mut schedule = listed();
        schedule.created(key("a"), 7);
        assert_eq!(schedule.begin(), Some(Task::Read(key("a"))));
        assert_eq!(schedule.take_created(&key("a")), Some(7));
        schedule.created(key("b"), 8);
        schedule.hint(key("b"));
        assert_eq!(schedule.begin(), Some(Task::Read(key("b"))));
        assert_eq!(schedule.take_created(&key("b")), None);
    }

    // Fault: agent/src/sources/containerd/schedule.rs
    // - Listing::Wanted if self.reading.is_empty() => {
    // + Listing::Wanted => {
    #[test]
    fn a_listing_is_alone() {
        let mut schedule = listed();
        schedule.hint(key("a"));
        assert_eq!(schedule.begin(), Some(Task::Read(key("a"))));
        schedule.hint(key("b"));
        schedule.want_listing();
        assert_eq!(schedule.begin(), None);
        schedule.read(&key("a"));
        assert_eq!(schedule.begin(), Some(Task::List));
        schedule.hint(key("c"));
        schedule.want_listing();
        assert_eq!(schedule.begin(), None);
        schedule.listed();
        assert_eq!(schedule.begin(), Some(Task::List));
        schedule.hint(key("d"));
        schedule.listed();
        assert_eq!(schedule.begin(), Some(Task::Read(key("d"))));
        assert_eq!(schedule.begin(), None);
    }

    #[test]
    fn the_last_word_on_a_container_is_kept() {
        let id = |id: &str| RuntimeId { runtime: "containerd".into(), namespace: "default".into(), id: id.into() };
        let gone = |name: &str, pid| ContainerEvent::Gone { id: id(name), pid };
        let mut outbox = Outbox::default();
        outbox.push(gone("a", Some(1)));
        outbox.push(ContainerEvent::Listed { runtime: "containerd".into(), containers: Vec::new() });
        outbox.push(gone("a", Some(2)));
        outbox.push(gone("b", None));
        outbox.push(gone("a", Some(3)));
        assert!(matches!(outbox.pop(), Some(ContainerEvent::Listed { .. })));
        assert!(matches!(outbox.pop(), Some(ContainerEvent::Gone { id, .. }) if id.id == "b"));
        assert!(matches!(outbox.pop(), Some(ContainerEvent::Gone { pid: Some(3), .. })));
        assert!(outbox.is_empty());
    }
}
