//! What all runtimes have in common.

mod cgroup_path;
mod task;

use std::future::Future;

use devgate_core::Event;
use tokio::sync::mpsc;

pub use task::{FindTask, TaskFinder, TaskProblem};

/// A runtime that is watched: who runs, and what it wishes for.
///
/// Each source listens first, then lists, and lists again after a loss. What the runtime reports is a hint: the container
/// is read again before an event is sent, so that duplicates, another order and gaps cost time at most.
pub trait ContainerSource {
    /// The kind of runtime, as in [`RuntimeId::runtime`](devgate_core::RuntimeId::runtime).
    fn runtime(&self) -> &'static str;

    /// Sends events until `shutdown` is ready or nobody receives them any more. Trouble with the runtime is logged, once
    /// for each cause, and it is tried again.
    fn run(
        self,
        events: mpsc::Sender<Event>,
        shutdown: impl Future<Output = ()> + Send,
    ) -> impl Future<Output = ()> + Send;
}
