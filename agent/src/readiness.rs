//! Waiting for descriptors that tokio has no type for.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use tokio::io::Interest;
use tokio::io::unix::{AsyncFd, AsyncFdReadyGuard};

/// A descriptor in non-blocking mode that is waited for until it can be read.
#[derive(Debug)]
pub(crate) struct Readable(AsyncFd<OwnedFd>);

impl Readable {
    /// Needs a tokio runtime with I/O.
    pub(crate) fn new(fd: OwnedFd) -> io::Result<Self> {
        // SAFETY: the descriptor is owned, open, and neither replaced nor closed before the registration ends, since
        // nothing but `&self` ever gets at it.
        let registered = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE | Interest::ERROR) };
        Ok(Self(registered?))
    }

    /// Waits until something can be read, or an error is there to be taken. Cancel-safe.
    pub(crate) async fn ready(&self) -> io::Result<Ready<'_>> {
        self.0.ready(Interest::READABLE | Interest::ERROR).await.map(Ready)
    }
}

impl AsFd for Readable {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.get_ref().as_fd()
    }
}

/// What is there can be read.
pub(crate) struct Ready<'a>(AsyncFdReadyGuard<'a, OwnedFd>);

impl Ready<'_> {
    /// Reads once. `None` if nothing was left: only then may readiness be waited for again, since the news of it comes
    /// once.
    pub(crate) fn read<T>(&mut self, read: impl FnOnce(BorrowedFd<'_>) -> io::Result<T>) -> Option<io::Result<T>> {
        self.0.try_io(|fd| read(fd.get_ref().as_fd())).ok()
    }
}
