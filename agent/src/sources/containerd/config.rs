use std::path::PathBuf;
use std::time::Duration;

use devgate_core::Backoff;

/// What can be configured of the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerdConfig {
    /// containerd's socket.
    pub socket: PathBuf,
    /// The namespaces whose containers are told of; all if empty.
    pub namespaces: Vec<String>,
    /// A procfs of the pid namespace that containerd runs in.
    pub proc_root: PathBuf,
    /// Where the cgroup v2 hierarchy is mounted; `None` to look at `/sys/fs/cgroup` and `/sys/fs/cgroup/unified`.
    pub cgroup_root: Option<PathBuf>,
    /// How long an answer may take; listing counts as one question for each namespace.
    pub deadline: Duration,
    /// After how long everything is listed again, since an event may have been lost on the way.
    pub relist: Duration,
    /// How long to wait before what failed is tried again.
    pub backoff: Backoff,
}

impl Default for ContainerdConfig {
    fn default() -> Self {
        Self {
            socket: "/run/containerd/containerd.sock".into(),
            namespaces: Vec::new(),
            proc_root: "/proc".into(),
            cgroup_root: None,
            deadline: Duration::from_secs(10),
            relist: Duration::from_mins(10),
            backoff: Backoff { first: Duration::from_millis(50), cap: Duration::from_secs(10) },
        }
    }
}

impl ContainerdConfig {
    /// Whether a namespace's containers are told of.
    pub fn tells_of(&self, namespace: &str) -> bool {
        self.namespaces.is_empty() || self.namespaces.iter().any(|it| it == namespace)
    }
}
