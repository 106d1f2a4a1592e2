//! What agent and helper say to each other.
//!
//! The helper begins with [`Hello`]. Then one JSON document goes each way, each ended by closing the direction.

use std::io;
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

/// The first word of a helper, or of the server that could not fork it: an error number, in the machine's byte order. If it is 0 the
/// message carries a pidfd of the helper.
#[derive(Debug)]
pub(super) struct Hello;

impl Hello {
    pub(super) const LENGTH: usize = size_of::<i32>();
    pub(super) const HERE: [u8; Self::LENGTH] = [0; Self::LENGTH];

    /// Says that there is no helper.
    pub(super) fn failed(error: &io::Error) -> [u8; Self::LENGTH] {
        error.raw_os_error().unwrap_or(libc::EIO).to_ne_bytes()
    }

    /// Why there is no helper.
    pub(super) fn error(said: [u8; Self::LENGTH]) -> Option<io::Error> {
        let errno = i32::from_ne_bytes(said);
        (errno != 0).then(|| io::Error::from_raw_os_error(errno))
    }
}

/// Sent to the helper.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Request {
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
