//! The agent's side: one helper process for each visit, with a deadline.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::process::{Child, Command};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::timeout;

use super::DeviceNodes;
use super::change::{Change, Outcome, PlacedNode};
use super::container::ContainerRef;
use super::helper;
use super::protocol::{Answer, MESSAGE_LIMIT, Request, Staging, Task};
use super::refusal::EntryError;

/// How helpers are run.
#[derive(Debug, Clone)]
pub struct HelperConfig {
    /// The executable that calls [`helper::helper_main`] for [`helper::ARGUMENT`].
    pub executable: PathBuf,
    /// A procfs of the host's pid namespace.
    pub proc_root: PathBuf,
    /// The cgroup v2 hierarchy of the host.
    pub cgroup_root: PathBuf,
    /// After this long a visit is given up and its helper killed.
    pub deadline: Duration,
    /// How nodes are made.
    pub staging: Staging,
}

impl Default for HelperConfig {
    fn default() -> Self {
        Self {
            // Not a path: the agent may have been upgraded on disk since it was started.
            executable: "/proc/self/exe".into(),
            proc_root: "/proc".into(),
            cgroup_root: "/sys/fs/cgroup".into(),
            deadline: Duration::from_secs(2),
            staging: Staging::Automatic,
        }
    }
}

/// Why a visit brought no answer.
#[derive(Debug, thiserror::Error)]
pub enum VisitError {
    /// The helper could not be started.
    #[error("start {}", executable.display())]
    Start {
        /// The executable.
        executable: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The helper cannot be talked to.
    #[error("talk to the helper")]
    Talk(#[source] io::Error),
    /// The request could not be written or the answer not understood.
    #[error("message to or from the helper")]
    Message(#[source] serde_json::Error),
    /// The helper gave no answer in time and was killed. Part of the changes may have been carried out.
    #[error("no answer within {0:?}")]
    Deadline(Duration),
    /// An earlier helper has been killed in this container and still hangs in it: a file system there does not answer, not even to the
    /// kill. The container is left alone until it does, so that it costs one process at most.
    #[error("an earlier helper still hangs in the container")]
    Hanging,
    /// The helper ended without an answer.
    #[error("the helper ended with {0} and no answer")]
    Died(ExitStatus),
    /// The helper answered something else than was asked; the executable is of another version.
    #[error("the helper's answer does not fit the request")]
    Unfit,
    /// The container was not entered.
    #[error("the container was not entered")]
    NotEntered(#[source] EntryError),
}

/// Runs a helper process for each visit. Needs a tokio runtime with I/O and time.
#[derive(Debug)]
pub struct HelperProcesses {
    config: HelperConfig,
    /// Cgroup ids of the containers in which a killed helper still hangs.
    hanging: watch::Sender<BTreeSet<u64>>,
}

impl HelperProcesses {
    /// Nothing is started yet.
    pub fn new(config: HelperConfig) -> Self {
        Self { config, hanging: watch::Sender::default() }
    }

    /// The cgroup ids of the containers in which a killed helper still hangs.
    pub fn hanging(&self) -> watch::Receiver<BTreeSet<u64>> {
        self.hanging.subscribe()
    }

    async fn ask(&self, container: &ContainerRef, task: Task) -> Result<Answer, VisitError> {
        let cgroup_id = container.cgroup_id();
        if self.hanging.borrow().contains(&cgroup_id) {
            return Err(VisitError::Hanging);
        }
        let deadline = self.config.deadline;
        let request = serde_json::to_vec(&Request {
            proc_root: self.config.proc_root.clone(),
            cgroup_root: self.config.cgroup_root.clone(),
            cgroup_id,
            seconds_to_live: u32::try_from(deadline.as_secs()).unwrap_or(u32::MAX).saturating_add(2),
            staging: self.config.staging,
            task,
        })
        .map_err(VisitError::Message)?;
        let (socket, child) = self.start(container)?;
        let mut helper =
            Helper { child: Some(child), runtime: Handle::current(), cgroup_id, hanging: self.hanging.clone() };
        let exchange = async {
            let answer = converse(socket, &request).await.map_err(VisitError::Talk)?;
            if answer.is_empty() {
                return Err(VisitError::Died(helper.ended().await.map_err(VisitError::Talk)?));
            }
            serde_json::from_slice(&answer).map_err(VisitError::Message)
        };
        // A helper that is given up is killed when `helper` is dropped, and so it is if the caller drops this future.
        let answer = timeout(deadline, exchange).await.unwrap_or(Err(VisitError::Deadline(deadline)))?;
        helper.leave();
        match answer {
            Answer::NotEntered(error) => Err(VisitError::NotEntered(error)),
            answer => Ok(answer),
        }
    }

    fn start(&self, container: &ContainerRef) -> Result<(UnixStream, Child), VisitError> {
        let (ours, theirs) = StdUnixStream::pair().map_err(VisitError::Talk)?;
        ours.set_nonblocking(true).map_err(VisitError::Talk)?;
        let socket = UnixStream::from_std(ours).map_err(VisitError::Talk)?;
        let pidfd = container.as_fd().try_clone_to_owned().map_err(VisitError::Talk)?;
        let child = Command::new(&self.config.executable)
            .arg(helper::ARGUMENT)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::from(pidfd))
            .stdout(Stdio::from(std::os::fd::OwnedFd::from(theirs)))
            .spawn()
            .map_err(|source| VisitError::Start { executable: self.config.executable.clone(), source })?;
        Ok((socket, child))
    }
}

impl DeviceNodes for HelperProcesses {
    async fn visit(&self, container: &ContainerRef, changes: Vec<Change>) -> Result<Vec<Outcome>, VisitError> {
        let asked = changes.len();
        match self.ask(container, Task::Apply(changes)).await? {
            Answer::Applied(outcomes) if outcomes.len() == asked => Ok(outcomes),
            _ => Err(VisitError::Unfit),
        }
    }

    async fn list(&self, container: &ContainerRef) -> Result<Vec<PlacedNode>, VisitError> {
        match self.ask(container, Task::List).await? {
            Answer::Listed(nodes) => Ok(nodes),
            _ => Err(VisitError::Unfit),
        }
    }
}

/// Sends the request and reads the answer, which is empty if the helper ends without one.
async fn converse(mut socket: UnixStream, request: &[u8]) -> io::Result<Vec<u8>> {
    let ended = |error: &io::Error| matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset);
    match socket.write_all(request).await {
        Err(error) if !ended(&error) => return Err(error),
        _ => {}
    }
    match socket.shutdown().await {
        Err(error) if error.kind() != io::ErrorKind::NotConnected => return Err(error),
        _ => {}
    }
    let mut answer = Vec::new();
    match socket.take(MESSAGE_LIMIT).read_to_end(&mut answer).await {
        Err(error) if !ended(&error) => Err(error),
        _ => Ok(answer),
    }
}

/// A running helper. Nobody ever waits for its end: one that hangs in the kernel may not end for days.
struct Helper {
    child: Option<Child>,
    runtime: Handle,
    cgroup_id: u64,
    hanging: watch::Sender<BTreeSet<u64>>,
}

impl Helper {
    /// Waits for a helper that has closed its socket. Cancel-safe: the child is still there to be killed.
    async fn ended(&mut self) -> io::Result<ExitStatus> {
        match &mut self.child {
            Some(child) => child.wait().await,
            None => Ok(ExitStatus::default()),
        }
    }

    /// Lets a helper that has answered end by itself.
    fn leave(&mut self) {
        if let Some(mut child) = self.child.take() {
            self.runtime.spawn(async move { child.wait().await });
        }
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        // It fails only if the helper has ended and been waited for.
        let _ = child.start_kill();
        let (hanging, cgroup_id) = (self.hanging.clone(), self.cgroup_id);
        hanging.send_modify(|ids| _ = ids.insert(cgroup_id));
        self.runtime.spawn(async move {
            if let Err(error) = child.wait().await {
                tracing::error!(%error, "cannot wait for a helper that was killed");
            }
            hanging.send_modify(|ids| _ = ids.remove(&cgroup_id));
        });
    }
}
