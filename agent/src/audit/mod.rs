//! The audit log: what the kernel decided and what the agent did, one JSON object on each line.
//!
//! Nothing is left out silently: what the kernel could not write, what the rate limit of a container kept back, and what
//! could not be written to the file is counted and appears as a `gap`.

mod line;
mod losses;
mod sink;

use std::{io, os::fd::AsFd, time::Duration};

use devgate_abi::Record;
use tokio::sync::{mpsc, watch};

use crate::{
    executors::enforcer::AuditReader,
    readiness::Readable,
    reconciler::{Published, Report},
};

pub use sink::{Sink, SinkError};

use line::Clock;
use losses::LossBook;

/// How long losses without a further record wait before they are written.
const GAP_DELAY: Duration = Duration::from_secs(1);

/// How long the first records wait for the names of those that they are about.
const NAMES_DELAY: Duration = Duration::from_secs(5);

/// The task that writes the log.
pub struct AuditLog {
    reader: AuditReader,
    reports: mpsc::UnboundedReceiver<Report>,
    published: watch::Receiver<Published>,
    sink: Sink,
    losses: LossBook,
}

impl AuditLog {
    /// Ready to run.
    pub fn new(
        reader: AuditReader,
        reports: mpsc::UnboundedReceiver<Report>,
        published: watch::Receiver<Published>,
        sink: Sink,
    ) -> Self {
        Self { reader, reports, published, sink, losses: LossBook::default() }
    }

    /// Writes until the reconciler has ended and everything is written.
    pub async fn run(mut self) -> io::Result<()> {
        let readable = Readable::new(self.reader.as_fd().try_clone_to_owned()?)?;
        let mut gaps_due = None;
        self.names_are_known().await;
        loop {
            let mut count = self.drain();
            self.reader.sleep();
            // What was written before the reader announced that it sleeps, nobody announces.
            count += self.drain();
            self.write_gaps();
            if count > 0 {
                // Losses may go on after the last record that got through.
                gaps_due = Some(tokio::time::Instant::now() + GAP_DELAY);
            }
            self.sink.flush();
            // Each branch is cancel-safe: readiness and reports stay until they are taken.
            tokio::select! {
                ready = readable.announced() => ready?,
                report = self.reports.recv() => match report {
                    Some(report) => self.take_reports(&report),
                    None => break,
                },
                () = sleep_until(gaps_due) => gaps_due = None,
            }
            self.reader.wake();
        }
        self.drain();
        self.write_gaps();
        self.sink.flush();
        Ok(())
    }

    /// What was decided while no agent ran is in the ring buffer already, and would be written without names. A source
    /// that does not answer must not keep it there for long: the buffer fills up.
    async fn names_are_known(&mut self) {
        let known = self.published.wait_for(|published| published.complete);
        // Either way it goes on: too late, or without a reconciler, the names are missing.
        let _ = tokio::time::timeout(NAMES_DELAY, known).await;
    }

    fn drain(&mut self) -> usize {
        let Self { reader, published, sink, .. } = self;
        let names = published.borrow().names.clone();
        let clock = Clock::now();
        reader.drain(|record: &Record| sink.write(&line::verdict(record, &names, &clock)))
    }

    fn take_reports(&mut self, first: &Report) {
        self.sink.write(&line::report(first));
        while let Ok(report) = self.reports.try_recv() {
            self.sink.write(&line::report(&report));
        }
    }

    /// Writes what was lost since the last time.
    fn write_gaps(&mut self) {
        let names = self.published.borrow().names.clone();
        for gap in self.losses.news(self.reader.losses()) {
            self.sink.write(&line::gap(&gap, &names));
        }
    }
}

async fn sleep_until(due: Option<tokio::time::Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}
