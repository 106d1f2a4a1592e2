//! Attempts without pause.

use std::{
    collections::BTreeMap,
    sync::atomic::Ordering::Relaxed,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};

use super::{Prober, answer::Answer, order::Order};
use crate::wait::wait_until;

/// What is tried.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum Attempt {
    /// `open(2)` with flags, and `close(2)`.
    Open(i32),
    /// `access(2)` with a mode.
    Access(i32),
    /// Opens the device and asks it [which it is](Prober::which).
    Which,
}

/// How often each answer was given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts(pub BTreeMap<Answer, u64>);

impl Counts {
    /// How often this answer was given.
    pub fn of(&self, answer: Answer) -> u64 {
        self.0.get(&answer).copied().unwrap_or(0)
    }

    /// How many attempts there were.
    pub fn total(&self) -> u64 {
        self.0.values().sum()
    }
}

/// A prober that tries without pause. It stops with the value.
#[derive(Debug)]
pub struct Run<'a> {
    prober: &'a mut Prober,
    started: Instant,
    ended: bool,
}

impl<'a> Run<'a> {
    pub(super) fn start(prober: &'a mut Prober, name: String, attempt: Attempt, times: u64) -> Self {
        prober.shared.clear();
        prober.say(&Order::Run { name, attempt, times });
        Self { prober, started: Instant::now(), ended: false }
    }

    /// What was answered up to now.
    pub fn counts(&self) -> Counts {
        let counts = self.prober.shared.counts.iter().zip(0..);
        Counts(
            counts
                .filter_map(|(count, errno)| match count.load(Relaxed) {
                    0 => None,
                    count => Some((Answer(errno), count)),
                })
                .collect(),
        )
    }

    /// Waits until it has tried at least so many times more: attempts that began before are over then, if there are two
    /// or more.
    pub fn go_on(&self, times: u64) {
        let target = self.counts().total() + times;
        wait_until("the prober has tried on", || self.counts().total() >= target);
    }

    /// How long it has been running.
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Stops it. Returns what was answered.
    pub fn stop(mut self) -> Counts {
        self.end();
        self.counts()
    }

    /// Waits until it has come to its end by itself. Returns what was answered.
    pub(super) fn finish(mut self) -> Counts {
        self.prober.hear();
        self.ended = true;
        self.counts()
    }

    fn end(&mut self) {
        if !self.ended {
            self.ended = true;
            self.prober.shared.stop.store(1, Relaxed);
            self.prober.hear();
        }
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        // While a test panics the prober may be gone; its own end follows anyway.
        if !std::thread::panicking() {
            self.end();
        }
    }
}
