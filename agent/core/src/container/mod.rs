//! Who runs, and what it wishes for.

mod cgroup;
mod claims;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::num::NonZeroU64;

use crate::ClassName;

pub use cgroup::Cgroup;

/// Labels of a container or of an image.
pub type Labels = BTreeMap<String, String>;

/// How a runtime knows a container. The same after a restart of the container, whose [`Task`] is then another.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RuntimeId {
    /// The container's id within its namespace. It comes first because it tells most containers apart: they are compared
    /// thousands of times in each round.
    pub id: String,
    /// The runtime's namespace, such as `default` or `k8s.io`; empty where the runtime has none.
    pub namespace: String,
    /// The kind of runtime, such as `containerd`.
    pub runtime: String,
}

impl fmt::Display for RuntimeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.runtime, self.namespace, self.id)
    }
}

/// The id of a cgroup in the v2 hierarchy (its inode number; never 0), not given to another one until the next boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CgroupId(pub u64);

impl fmt::Display for CgroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A container's first process and where it is. A restart makes a new one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// The process id on the host. It may be another process's by the time it is used: executors take a pidfd and
    /// compare the cgroup.
    pub pid: u32,
    /// The cgroup the process was found in.
    pub cgroup: Cgroup,
}

/// Where a container is in its life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ContainerState {
    /// The runtime has made cgroup and namespaces; nothing of the user's has run yet.
    Created(Task),
    /// It runs, or is paused.
    Running(Task),
    /// It has no process: not started yet, or ended.
    Stopped,
}

/// What a runtime says of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container {
    /// Who it is.
    pub id: RuntimeId,
    /// Where it is in its life.
    pub state: ContainerState,
    /// Its labels, as the runtime reports them: those of the image may be among them.
    pub labels: Labels,
    /// The labels in the configuration of its image; `None` if that could not be read, and then no label counts.
    pub image_labels: Option<Labels>,
    /// Wishes that the source learnt elsewhere than from labels.
    pub claims: Vec<Claim>,
}

impl Container {
    /// Its task, while it has one.
    pub fn task(&self) -> Option<&Task> {
        match &self.state {
            ContainerState::Created(task) | ContainerState::Running(task) => Some(task),
            ContainerState::Stopped => None,
        }
    }
}

/// A holder's wish for the devices of some classes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Claim {
    /// Who wishes.
    pub holder: RuntimeId,
    /// Where the wish was read.
    pub source: ClaimSource,
    /// The classes.
    pub classes: BTreeSet<ClassName>,
    /// When the wish ends, in nanoseconds of `CLOCK_BOOTTIME`. From then on the kernel no longer grants; its source
    /// withdraws it some time later.
    pub expires_at: Option<NonZeroU64>,
}

/// Where a wish was read. Each is a place where the container's author cannot write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ClaimSource {
    /// A label that whoever started the container gave it.
    Label,
    /// An annotation of the pod's sandbox.
    Annotation,
    /// kubelet, through the device plugin.
    DevicePlugin,
    /// The agent's command line or configuration.
    CommandLine,
}

/// Why a cgroup is not accepted as a container's. A rule in the wrong cgroup gives the device to someone else.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CgroupProblem {
    /// The root holds every task of the host.
    #[error("the cgroup of the task is the root of the hierarchy")]
    Root,
    /// The task left for a cgroup outside of the view, or the path was made up.
    #[error("the cgroup path {path:?} is not a plain absolute path")]
    NotPlain {
        /// The path.
        path: String,
    },
    /// Most likely the process id has passed to another process.
    #[error("the cgroup path {path:?} does not name the container {id:?}")]
    NotNamed {
        /// The path.
        path: String,
        /// The container's id.
        id: String,
    },
    /// A process inside of a container chose the path.
    #[error("the cgroup path {path:?} lies inside of the cgroup of {other}")]
    InsideOther {
        /// The path.
        path: String,
        /// The container whose cgroup it lies in.
        other: RuntimeId,
    },
    /// Another container is already known to be there.
    #[error("the cgroup {cgroup} is that of {other}")]
    Shared {
        /// The cgroup.
        cgroup: CgroupId,
        /// The other container.
        other: RuntimeId,
    },
}
