//! Wakes the reconciler when something of the enforcement may have been taken away.

use std::os::fd::AsFd;

use super::failure;
use crate::{
    executors::enforcer::{DriftWatch, Enforcer},
    readiness::Readable,
};

/// Watches what the enforcer says is to be watched.
pub(super) struct Alarm(Option<Watched>);

struct Watched {
    files: Readable,
    guard: Readable,
    watch: DriftWatch,
}

impl Alarm {
    /// Never sounds.
    pub(super) fn none() -> Self {
        Self(None)
    }

    /// Sounds when a check is due. If nothing can be watched, checks are made at long intervals alone.
    pub(super) fn new(enforcer: &impl Enforcer) -> Self {
        match enforcer.watch() {
            Ok(watch) => Self(watch.and_then(Watched::new)),
            Err(error) => {
                tracing::warn!(error = failure::chain(&error), "the enforcement cannot be watched");
                Self(None)
            }
        }
    }

    /// Waits until a check is due. Cancel-safe.
    pub(super) async fn sounded(&self) {
        let Some(Watched { files, guard, watch }) = &self.0 else { return std::future::pending().await };
        let result = tokio::select! {
            result = files.announced() => result.and_then(|()| watch.clear()),
            result = guard.announced() => result,
        };
        if let Err(error) = result {
            tracing::warn!(%error, "the enforcement cannot be watched");
        }
    }
}

impl Watched {
    fn new(watch: DriftWatch) -> Option<Self> {
        let readable = |fd: std::os::fd::BorrowedFd<'_>| Readable::new(fd.try_clone_to_owned()?);
        match (readable(watch.files().as_fd()), readable(watch.guard().as_fd())) {
            (Ok(files), Ok(guard)) => Some(Self { files, guard, watch }),
            (Err(error), _) | (_, Err(error)) => {
                tracing::warn!(%error, "the enforcement cannot be watched");
                None
            }
        }
    }
}
