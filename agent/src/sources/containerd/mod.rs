//! The containers that containerd runs.
//!
//! ```text
//!          events          get, list           /proc, cgroups, image
//! containerd ──→ hint ──→ schedule ──→ read ──→ what is new ──→ Event
//! ```
//!
//! It listens before it lists, and lists again after each new connection, after an event that cannot be understood, and
//! from time to time. An event only says of which container something is to be read. What cannot be read stays as it was
//! told last and is tried again; it never holds up other containers.
//!
//! Nothing is asked of containerd that changes anything, except for one event that is published at each connection: it is
//! how the source learns that its subscription is in force (see `client.rs`).

mod client;
mod complaints;
mod config;
mod hint;
mod image;
mod json;
mod read;
mod record;
mod retries;
mod schedule;
mod session;

#[cfg(test)]
mod fake;
#[cfg(test)]
mod tests;

use std::future::Future;

use devgate_core::Event;
use tokio::sync::mpsc;

use super::container::{ContainerSource, TaskFinder};

pub use config::ContainerdConfig;

/// The kind of runtime, as in [`RuntimeId::runtime`](devgate_core::RuntimeId::runtime).
pub const RUNTIME: &str = "containerd";

/// containerd, behind one socket.
#[derive(Clone, Debug, Default)]
pub struct Containerd {
    /// Where it is and how it is asked.
    pub config: ContainerdConfig,
}

impl ContainerSource for Containerd {
    fn runtime(&self) -> &'static str {
        RUNTIME
    }

    async fn run(self, events: mpsc::Sender<Event>, shutdown: impl Future<Output = ()> + Send) {
        run(self.config, events, shutdown).await;
    }
}

/// Tells of containerd's containers until `shutdown` is ready or nobody receives the events any more.
///
/// The first event is a complete list. While containerd cannot be asked, nothing is told: what was told stays.
pub async fn run(config: ContainerdConfig, events: mpsc::Sender<Event>, shutdown: impl Future<Output = ()> + Send) {
    let tasks = || TaskFinder::open(&config.proc_root, config.cgroup_root.as_deref());
    tokio::select! {
        // Both may be dropped at any point: nothing outside of this process is changed, and all is read again.
        () = session::watch(&config, tasks, &events) => {}
        () = shutdown => {}
    }
}
