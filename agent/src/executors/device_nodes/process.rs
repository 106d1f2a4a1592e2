//! The agent's side: one helper process for each visit, with a deadline.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::PathBuf;
use std::pin::pin;
use std::time::Duration;

use rustix::process::{Signal, pidfd_send_signal};
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::UnixStream;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, timeout, timeout_at};

use super::DeviceNodes;
use super::change::{Change, Outcome, PlacedNode};
use super::container::ContainerRef;
use super::descriptors;
use super::protocol::{Answer, Hello, MESSAGE_LIMIT, Request, Staging, Task};
use super::refusal::EntryError;
use super::server::Server;
use crate::readiness::Readable;

/// So long a visit may take before it no longer counts as one of [`HelperConfig::parallel`]. It is many times what one takes in a
/// container that answers.
const TURN: Duration = Duration::from_millis(100);
/// How often a helper is asked for that has ended without a word: a server may die just when it is asked.
const ATTEMPTS: usize = 2;

/// How helpers are run.
#[derive(Debug, Clone)]
pub struct HelperConfig {
    /// The executable that calls [`helper_main`](super::helper::helper_main) for [`ARGUMENT`](super::helper::ARGUMENT).
    pub executable: PathBuf,
    /// A procfs of the host's pid namespace.
    pub proc_root: PathBuf,
    /// The cgroup v2 hierarchy of the host.
    pub cgroup_root: PathBuf,
    /// After this long a visit is given up and its helper killed.
    pub deadline: Duration,
    /// How many visits are under way at once; the others wait for their turn, which is not part of their deadline. One that takes long
    /// no longer counts, so containers that do not answer keep no other waiting.
    pub parallel: usize,
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
            parallel: 16,
            staging: Staging::Automatic,
        }
    }
}

/// Why a visit brought no answer.
#[derive(Debug, thiserror::Error)]
pub enum VisitError {
    /// The process that forks helpers could not be started.
    #[error("start {}", executable.display())]
    Start {
        /// The executable.
        executable: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// No helper could be forked.
    #[error("fork a helper")]
    Fork(#[source] io::Error),
    /// Helpers, or the process that forks them, end before they have said a word. Nothing was asked of them yet.
    #[error("helpers end as soon as they are started")]
    NoHelper,
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
    #[error("the helper ended without an answer")]
    Died,
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
    server: Server,
    turns: Semaphore,
    /// Cgroup ids of the containers in which a killed helper still hangs.
    hanging: watch::Sender<BTreeSet<u64>>,
}

impl HelperProcesses {
    /// Nothing is started yet.
    pub fn new(config: HelperConfig) -> Self {
        let server = Server::new(config.executable.clone(), config.proc_root.clone());
        let turns = Semaphore::new(config.parallel.clamp(1, Semaphore::MAX_PERMITS));
        Self { config, server, turns, hanging: watch::Sender::default() }
    }

    /// The cgroup ids of the containers in which a killed helper still hangs.
    pub fn hanging(&self) -> watch::Receiver<BTreeSet<u64>> {
        self.hanging.subscribe()
    }

    /// The number of the process that forks helpers, if one has been started. It may have died since; then the next visit starts another.
    pub fn server_pid(&self) -> Option<u32> {
        self.server.pid()
    }

    async fn ask(&self, container: &ContainerRef, task: Task) -> Result<Answer, VisitError> {
        let cgroup_id = container.cgroup_id();
        if self.hanging.borrow().contains(&cgroup_id) {
            return Err(VisitError::Hanging);
        }
        let request = serde_json::to_vec(&Request {
            cgroup_root: self.config.cgroup_root.clone(),
            cgroup_id,
            seconds_to_live: u32::try_from(self.config.deadline.as_secs()).unwrap_or(u32::MAX).saturating_add(2),
            staging: self.config.staging,
            task,
        })
        .map_err(VisitError::Message)?;
        // Turns are never closed, so there is always one.
        let turn = self.turns.acquire().await;
        let mut visit = pin!(self.visit_now(container, &request));
        let answer = if let Ok(answer) = timeout(TURN, &mut visit).await {
            answer?
        } else {
            drop(turn);
            visit.await?
        };
        match answer {
            Answer::NotEntered(error) => Err(VisitError::NotEntered(error)),
            answer => Ok(answer),
        }
    }

    async fn visit_now(&self, container: &ContainerRef, request: &[u8]) -> Result<Answer, VisitError> {
        let deadline = self.config.deadline;
        let until = Instant::now() + deadline;
        // From here on it is killed when `helper` is dropped, whether it is given up below or the caller drops this future.
        let (socket, mut helper) = self.helper(container, until).await?;
        let exchange = async {
            let answer = converse(socket, request).await.map_err(VisitError::Talk)?;
            if answer.is_empty() {
                helper.ended().await.map_err(VisitError::Talk)?;
                return Err(VisitError::Died);
            }
            serde_json::from_slice(&answer).map_err(VisitError::Message)
        };
        let answer = timeout_at(until, exchange).await.unwrap_or(Err(VisitError::Deadline(deadline)))?;
        helper.leave();
        Ok(answer)
    }

    /// A helper that waits for its request.
    async fn helper(&self, container: &ContainerRef, until: Instant) -> Result<(UnixStream, Helper), VisitError> {
        for _ in 0..ATTEMPTS {
            let (ours, theirs) = StdUnixStream::pair().map_err(VisitError::Talk)?;
            ours.set_nonblocking(true).map_err(VisitError::Talk)?;
            let socket = UnixStream::from_std(ours).map_err(VisitError::Talk)?;
            let server = self.server.request(container, &OwnedFd::from(theirs))?;
            match timeout_at(until, hello(&socket)).await {
                Ok(Ok(Some(pidfd))) => return Ok((socket, self.guard(container, pidfd))),
                Ok(Ok(None)) => {}
                Ok(Err(error)) => return Err(error),
                Err(_) => {
                    // The container has no part in that.
                    self.server.give_up(&server);
                    return Err(VisitError::Deadline(self.config.deadline));
                }
            }
        }
        Err(VisitError::NoHelper)
    }

    fn guard(&self, container: &ContainerRef, pidfd: OwnedFd) -> Helper {
        let (cgroup_id, hanging) = (container.cgroup_id(), self.hanging.clone());
        Helper { pidfd: Some(pidfd), runtime: Handle::current(), cgroup_id, hanging }
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

/// Hears of a helper, by a pidfd of it; `None` if the server, or the helper, has ended before. Cancel-safe.
async fn hello(socket: &UnixStream) -> Result<Option<OwnedFd>, VisitError> {
    let mut said = [0; Hello::LENGTH];
    let heard = socket.async_io(Interest::READABLE, || descriptors::receive(socket, &mut said)).await;
    let (length, mut files) = match heard {
        Err(error) if is_end(&error) => return Ok(None),
        heard => heard.map_err(VisitError::Talk)?,
    };
    match (length, files.pop(), Hello::error(said)) {
        (0, ..) => Ok(None),
        (Hello::LENGTH, Some(pidfd), None) => Ok(Some(pidfd)),
        (Hello::LENGTH, None, Some(error)) => Err(VisitError::Fork(error)),
        _ => Err(VisitError::Unfit),
    }
}

/// Sends the request and reads the answer, which is empty if the helper ends without one.
async fn converse(mut socket: UnixStream, request: &[u8]) -> io::Result<Vec<u8>> {
    match socket.write_all(request).await {
        Err(error) if !is_end(&error) => return Err(error),
        _ => {}
    }
    match socket.shutdown().await {
        Err(error) if error.kind() != io::ErrorKind::NotConnected => return Err(error),
        _ => {}
    }
    let mut answer = Vec::new();
    match socket.take(MESSAGE_LIMIT).read_to_end(&mut answer).await {
        Err(error) if !is_end(&error) => Err(error),
        _ => Ok(answer),
    }
}

fn is_end(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

/// A running helper. Nobody ever waits for its end: one that hangs in the kernel may not end for days.
struct Helper {
    pidfd: Option<OwnedFd>,
    runtime: Handle,
    cgroup_id: u64,
    hanging: watch::Sender<BTreeSet<u64>>,
}

impl Helper {
    /// Waits for the end of a helper that has closed its socket. Cancel-safe: it can still be killed.
    async fn ended(&mut self) -> io::Result<()> {
        if let Some(pidfd) = &self.pidfd {
            ended(pidfd).await?;
        }
        self.leave();
        Ok(())
    }

    /// Lets a helper that has answered end by itself.
    fn leave(&mut self) {
        self.pidfd = None;
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        let Some(pidfd) = self.pidfd.take() else { return };
        match pidfd_send_signal(&pidfd, Signal::KILL) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => {}
            // Its alarm will end it.
            Err(error) => tracing::error!(%error, "cannot kill a helper"),
        }
        let (hanging, cgroup_id) = (self.hanging.clone(), self.cgroup_id);
        hanging.send_modify(|ids| _ = ids.insert(cgroup_id));
        self.runtime.spawn(async move {
            if let Err(error) = ended(&pidfd).await {
                tracing::error!(%error, "cannot wait for a helper that was killed");
            }
            hanging.send_modify(|ids| _ = ids.remove(&cgroup_id));
        });
    }
}

/// Waits for the end of a process. Cancel-safe.
async fn ended(pidfd: &OwnedFd) -> io::Result<()> {
    Readable::new(pidfd.as_fd().try_clone_to_owned()?)?.announced().await
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the agent makes of a first word.
    fn heard(say: impl FnOnce(StdUnixStream) -> io::Result<()>) -> io::Result<Result<Option<OwnedFd>, VisitError>> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let (ours, theirs) = StdUnixStream::pair()?;
            ours.set_nonblocking(true)?;
            say(theirs)?;
            Ok(hello(&UnixStream::from_std(ours)?).await)
        })
    }

    #[test]
    fn a_helper_is_known_by_its_pidfd_alone() -> io::Result<()> {
        let here = heard(|socket| descriptors::send(&socket, &Hello::HERE, &[socket.as_fd()]))?;
        assert!(matches!(here, Ok(Some(_))), "{here:?}");
        let without = heard(|socket| descriptors::send(&socket, &Hello::HERE, &[]))?;
        assert!(matches!(without, Err(VisitError::Unfit)), "{without:?}");
        let ended = heard(|_| Ok(()))?;
        assert!(matches!(ended, Ok(None)), "{ended:?}");
        Ok(())
    }

    #[test]
    fn a_fork_that_failed_says_why() -> io::Result<()> {
        let error = io::Error::from_raw_os_error(libc::EAGAIN);
        match heard(|socket| descriptors::send(&socket, &Hello::failed(&error), &[]))? {
            Err(VisitError::Fork(heard)) => assert_eq!(heard.raw_os_error(), Some(libc::EAGAIN)),
            other => panic!("{other:?}"),
        }
        Ok(())
    }
}
