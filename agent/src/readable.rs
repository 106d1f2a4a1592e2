//! Waiting until a descriptor has something to read.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd, RawFd},
};

use tokio::io::{Interest, unix::AsyncFd};

/// A descriptor that the runtime watches for being readable.
#[derive(Debug)]
pub struct Readable(AsyncFd<Owned>);

#[derive(Debug)]
struct Owned(OwnedFd);

impl AsRawFd for Owned {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl Readable {
    /// Watches a duplicate of the descriptor. To be called within the runtime.
    pub fn new(fd: &impl AsFd) -> io::Result<Self> {
        let owned = Owned(fd.as_fd().try_clone_to_owned()?);
        // SAFETY: the descriptor is owned by the value, which never gives it away or changes it.
        let watched = unsafe { AsyncFd::register_with_interest(owned, Interest::READABLE) };
        Ok(Self(watched.map_err(|error| error.into_parts().1)?))
    }

    /// Waits until there is something to read that was not there at the last call. Read until there is no more
    /// afterwards, or nothing may be announced again. Cancel-safe.
    pub async fn wait(&self) -> io::Result<()> {
        self.0.readable().await?.clear_ready();
        Ok(())
    }
}
