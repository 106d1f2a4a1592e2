//! Tells when something of the enforcement may have been taken away.

use std::{
    io,
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
};

use rustix::fs::inotify;

use super::error::EnforcerError;

/// Two descriptors that are readable when a check is due: pins or the ancestor were removed, or the guard process ended.
///
/// A link that somebody detaches by force gives no sign; a check at long intervals finds it.
#[derive(Debug)]
pub struct DriftWatch {
    files: OwnedFd,
    guard: OwnedFd,
}

impl DriftWatch {
    pub(super) fn new(pins: &[&Path], above: Option<&Path>, guard: OwnedFd) -> Result<Self, EnforcerError> {
        let failed = |path: &Path, error: rustix::io::Errno| EnforcerError::Folder(path.to_owned(), error.into());
        let files = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)
            .map_err(|error| EnforcerError::Call("inotify_init1", error.into()))?;
        let gone = inotify::WatchFlags::DELETE | inotify::WatchFlags::MOVED_FROM | inotify::WatchFlags::DELETE_SELF;
        for path in pins.iter().copied().chain(above) {
            inotify::add_watch(&files, path, gone).map_err(|error| failed(path, error))?;
        }
        Ok(Self { files, guard })
    }

    /// Readable when a pin or the ancestor was removed, or something beside them. If the folders of the pins themselves
    /// were removed, the new ones need a new watch.
    pub fn files(&self) -> BorrowedFd<'_> {
        self.files.as_fd()
    }

    /// Readable once the guard process has ended. The next guard needs a new watch.
    pub fn guard(&self) -> BorrowedFd<'_> {
        self.guard.as_fd()
    }

    /// Takes what is there to read from [`files`](Self::files).
    pub fn clear(&self) -> io::Result<()> {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut events = inotify::Reader::new(&self.files, &mut buffer);
        loop {
            match events.next() {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }
}
