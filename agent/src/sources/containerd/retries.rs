//! What could not be read, and when it is tried again.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};

use devgate_core::Backoff;
use tokio::time::Instant;

use super::hint::Key;

/// The containers that could not be read.
#[derive(Debug)]
pub(super) struct Retries {
    backoff: Backoff,
    failed: BTreeMap<Key, Failed>,
}

#[derive(Debug, Default)]
struct Failed {
    failures: u32,
    /// `None` while it is being tried.
    due: Option<Instant>,
}

impl Retries {
    pub(super) fn new(backoff: Backoff) -> Self {
        Self { backoff, failed: BTreeMap::new() }
    }

    pub(super) fn failed(&mut self, key: Key) {
        let failed = self.failed.entry(key).or_default();
        failed.failures = failed.failures.saturating_add(1);
        failed.due = Some(Instant::now() + self.backoff.delay(failed.failures, random()));
    }

    pub(super) fn settled(&mut self, key: &Key) {
        self.failed.remove(key);
    }

    pub(super) fn contains(&self, key: &Key) -> bool {
        self.failed.contains_key(key)
    }

    /// When the next one is due.
    pub(super) fn next(&self) -> Option<Instant> {
        self.failed.values().filter_map(|failed| failed.due).min()
    }

    /// Those that are due.
    pub(super) fn take_due(&mut self) -> Vec<Key> {
        let now = Instant::now();
        let due = self.failed.iter_mut().filter(|(_, failed)| failed.due.is_some_and(|due| due <= now));
        due.map(|(key, failed)| {
            failed.due = None;
            key.clone()
        })
        .collect()
    }
}

/// Good enough to spread retries. The standard library seeds each of these anew.
pub(super) fn random() -> u64 {
    RandomState::new().hash_one(())
}
