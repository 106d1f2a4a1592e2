//! Waiting for descriptors that tokio has no type for.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A descriptor in non-blocking mode that is waited for until it can be read.
#[derive(Debug)]
pub(crate) struct Readable(AsyncFd<OwnedFd>);

impl Readable {
    /// An error that waits to be taken is something to read: a socket tells so that it lost messages.
    const INTEREST: Interest = Interest::READABLE.add(Interest::ERROR);

    /// Needs a tokio runtime with I/O.
    pub(crate) fn new(fd: OwnedFd) -> io::Result<Self> {
        // SAFETY: the descriptor is owned, open, and neither replaced nor closed before the registration ends, since
        // nothing but `&self` ever gets at it.
        let registered = unsafe { AsyncFd::register_with_interest(fd, Self::INTEREST) };
        Ok(Self(registered?))
    }

    /// Waits until there is something to read, and takes the news of it, which comes once: read until there is no more
    /// afterwards, or what is left is never announced. Cancel-safe.
    pub(crate) async fn announced(&self) -> io::Result<()> {
        self.0.ready(Self::INTEREST).await?.clear_ready();
        Ok(())
    }
}

impl AsFd for Readable {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.get_ref().as_fd()
    }
}
