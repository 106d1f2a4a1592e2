//! Device nodes that appear in and vanish from running containers.
//!
//! A node is a *mount*: a node made on a small tmpfs of the host, bind-mounted on an empty file in the container's `/dev`.
//! This is the one form that works in every container. A node made directly in the `/dev` of a container with a user
//! namespace could not be opened (its superblock admits no devices). A container without `CAP_SYS_ADMIN` cannot remove ours.
//! The stable path of a class is a second such mount and not a symbolic link: the container could point a link elsewhere.
//!
//! Everything in a container is hostile. Its mount namespace is entered only by a short-lived single-threaded process
//! ([`helper`]) that has a deadline and can be killed, so a look-up that blocks for ever costs the agent nothing but that process.
//! What the helper creates, it creates only on the container's own tmpfs at `/dev`: never on a file system of the host,
//! never through a symbolic link, never over something that stands there.
//!
//! **What is found again** ([`DeviceNodes::list`]) needs no state file: the tmpfs has the source name [`SOURCE`], and the path of
//! the node inside it is `/<index>/<tag>`. A container that may mount can fake such a mount *in its own namespace*, so a listed
//! node is a statement about that namespace only. It decides what is removed from it and what need not be placed
//! in it again, and never what anybody is granted. Number, mode and owner are always read from the node itself.
//!
//! Needs Linux 5.8 (`STATX_MNT_ID`), `CAP_SYS_ADMIN`, `CAP_SYS_CHROOT`, `CAP_SYS_PTRACE`, `CAP_MKNOD`, `CAP_CHOWN`, `CAP_FOWNER`,
//! `CAP_DAC_OVERRIDE`, `CAP_SETUID`, `CAP_SETGID` and `CAP_KILL`, and the host's pid and cgroup namespaces.

mod cgroup;
mod change;
mod container;
mod descriptors;
mod fake;
pub mod helper;
mod number;
mod process;
mod protocol;
mod refusal;
mod server;

pub use cgroup::CgroupError;
pub use change::{Change, DevPath, InvalidName, NodeFacts, NodeTag, Outcome, Place, PlacedNode};
pub use container::{ContainerError, ContainerRef};
pub use fake::RecordingNodes;
pub use process::{HelperConfig, HelperProcesses, VisitError};
pub use protocol::Staging;
pub use refusal::{EntryError, FileKind, Refusal};

use std::future::Future;

/// Source name of every tmpfs that holds nodes of ours, as `/proc/<pid>/mountinfo` shows it.
pub const SOURCE: &str = "devgate";

/// Changes and lists the nodes of ours in running containers.
///
/// Visits to different containers may run in parallel. Visits to one container must follow one another.
pub trait DeviceNodes: Send + Sync + 'static {
    /// Carries out `changes` in their order and returns one outcome for each; a refused change does not stop the others.
    ///
    /// After an error any part of the changes may have been carried out: list before planning again.
    fn visit(
        &self,
        container: &ContainerRef,
        changes: Vec<Change>,
    ) -> impl Future<Output = Result<Vec<Outcome>, VisitError>> + Send;

    /// Finds every node of ours in the container, wherever its mount stands now.
    fn list(&self, container: &ContainerRef) -> impl Future<Output = Result<Vec<PlacedNode>, VisitError>> + Send;
}
