//! What agent and helper say to each other: one JSON document each way, each ended by closing the direction.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::change::{Change, Outcome, PlacedNode};
use super::refusal::EntryError;

/// No message is longer, in bytes. A container can make lists long, never endless.
pub(super) const MESSAGE_LIMIT: u64 = 4 << 20;

/// How the tmpfs that nodes are made on is kept from the host's eyes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Staging {
    /// Detached, and if the kernel cannot clone from a detached mount (before 6.15), as below.
    #[default]
    Automatic,
    /// Attached in a mount namespace that lives as long as the helper. Copies the host's mount table.
    OwnNamespace,
}

/// Sent to the helper. The pidfd of the container's process is its standard input, this conversation its standard output.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Request {
    /// A procfs of the host's pid namespace.
    pub proc_root: PathBuf,
    /// The cgroup v2 hierarchy.
    pub cgroup_root: PathBuf,
    /// Cgroup in which, or below which, the process must be.
    pub cgroup_id: u64,
    /// The helper kills itself after this, in case that the agent is no longer there to do it.
    pub seconds_to_live: u32,
    pub staging: Staging,
    pub task: Task,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Task {
    Apply(Vec<Change>),
    List,
}

/// The helper's answer to [`Task`].
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    Applied(Vec<Outcome>),
    Listed(Vec<PlacedNode>),
    NotEntered(EntryError),
}
