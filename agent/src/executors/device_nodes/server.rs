//! The agent's hold on the process that forks helpers.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use tokio::process::Command;
use tokio::runtime::Handle;

use super::container::ContainerRef;
use super::descriptors;
use super::helper;
use super::process::VisitError;

/// Starts the server when it is needed, and again when it has died.
#[derive(Debug)]
pub(super) struct Server {
    executable: PathBuf,
    proc_root: PathBuf,
    running: Mutex<Option<Arc<Running>>>,
}

/// A server that was alive when it was last spoken to.
#[derive(Debug)]
pub(super) struct Running {
    /// Each message is a request for a helper. When this is closed the server ends.
    requests: OwnedFd,
    pid: u32,
}

impl Server {
    /// Nothing is started yet.
    pub(super) fn new(executable: PathBuf, proc_root: PathBuf) -> Self {
        Self { executable, proc_root, running: Mutex::default() }
    }

    /// Asks for a helper with this end of a conversation. If the server dies before it has forked one, the conversation is closed.
    pub(super) fn request(&self, container: &ContainerRef, conversation: &OwnedFd) -> Result<Arc<Running>, VisitError> {
        let descriptors = [container.as_fd(), conversation.as_fd()];
        let mut running = self.running();
        if let Some(server) = &*running
            && descriptors::send(&server.requests, b"?", &descriptors).is_ok()
        {
            return Ok(server.clone());
        }
        // It has died, or takes no request any more.
        *running = None;
        let server =
            self.start().map_err(|source| VisitError::Start { executable: self.executable.clone(), source })?;
        let server = running.insert(Arc::new(server));
        descriptors::send(&server.requests, b"?", &descriptors).map_err(VisitError::Talk)?;
        Ok(server.clone())
    }

    /// Lets a server go that does not do what it was asked. It ends as soon as it can, and the next request starts another.
    pub(super) fn give_up(&self, server: &Arc<Running>) {
        let mut running = self.running();
        if running.as_ref().is_some_and(|running| Arc::ptr_eq(running, server)) {
            *running = None;
        }
    }

    /// Its process number, if one has been started. It may have died since.
    pub(super) fn pid(&self) -> Option<u32> {
        self.running().as_ref().map(|running| running.pid)
    }

    fn start(&self) -> io::Result<Running> {
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let mut child = Command::new(&self.executable)
            .arg(helper::ARGUMENT)
            .arg(&self.proc_root)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .spawn()?;
        let pid = child.id().ok_or(io::ErrorKind::InvalidData)?;
        // It ends by itself; nobody waits for that but this.
        Handle::current().spawn(async move {
            match child.wait().await {
                Ok(status) if status.success() => {}
                Ok(status) => tracing::warn!(pid, %status, "the process that forks helpers has ended"),
                Err(error) => tracing::error!(pid, %error, "cannot wait for the process that forks helpers"),
            }
        });
        Ok(Running { requests: ours, pid })
    }

    fn running(&self) -> MutexGuard<'_, Option<Arc<Running>>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
