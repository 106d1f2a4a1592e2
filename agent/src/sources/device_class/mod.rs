//! DeviceClasses in the YAML files of a folder, edited while the agent runs.
//!
//! **A class that becomes wrong keeps the last state in which it was right**, with a loud warning, until it is put right or
//! taken away. The alternative, to drop it, would take the devices from every container that holds it for a typing error; an
//! API server, too, refuses a bad update and leaves the object as it was. The price is that a revocation with a mistake in
//! it does not happen, which the warning says; `devgate check` finds the mistake before. Whoever wants a class gone takes
//! out the document or the file. Nothing is remembered over a restart of the agent: a class that is wrong then is absent,
//! and grants nothing.
//!
//! A file is read when its writer closes it, so half of a file is seen only if the agent starts, or the folder as a whole
//! comes, in that very moment; the rest follows within milliseconds. Where even that is too much, write another file and
//! rename it over the old one.

mod file;
mod folder;
mod set;
mod watch;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use devgate_core::{ClassName, CompiledClass, Event};
use tokio::sync::mpsc::Sender;

pub use file::{ClassDocument, ClassFile};
pub use folder::{read, read_all};
pub use set::{ClassProblem, ClassSet};

use watch::{FolderWatch, News};

/// Why the folder can no longer be watched.
#[derive(Debug, thiserror::Error)]
pub enum ClassSourceError {
    /// inotify is not to be had.
    #[error("cannot watch the folder of classes {}", folder.display())]
    Watch {
        /// The folder.
        folder: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

/// Sends the usable classes of `folder` at once and after each change, until the receiver is gone. The folder need not
/// exist. Dropping the future ends it.
pub async fn run(folder: PathBuf, events: Sender<Event>) -> Result<(), ClassSourceError> {
    let failed = |source| ClassSourceError::Watch { folder: folder.clone(), source };
    let mut source =
        Source { classes: ClassSet::default(), sent: None, told: BTreeSet::new(), kept: BTreeSet::new(), events };
    loop {
        let mut watch = FolderWatch::new(&folder).map_err(failed)?;
        source.read_all(&folder).await;
        loop {
            if source.send().await.is_none() {
                return Ok(());
            }
            match watch.news().await.map_err(failed)? {
                News::Files(names) => source.read(&folder, names).await,
                News::Folder => break,
            }
        }
    }
}

struct Source {
    classes: ClassSet,
    /// What was sent last.
    sent: Option<Vec<Arc<CompiledClass>>>,
    /// The problems that are in the log already.
    told: BTreeSet<ClassProblem>,
    /// The classes of which the log says that they are kept.
    kept: BTreeSet<ClassName>,
    events: Sender<Event>,
}

impl Source {
    async fn read_all(&mut self, folder: &Path) {
        match blocking(folder, read_all).await {
            Ok(files) => self.classes.replace(files),
            Err(error) => {
                let folder = folder.display();
                tracing::error!(%folder, %error, "the folder of classes cannot be read: the classes stay as they were");
            }
        }
    }

    async fn read(&mut self, folder: &Path, names: BTreeSet<OsString>) {
        for name in names {
            let path = folder.join(&name);
            let read = blocking(&path, |path| Ok(read(path))).await;
            self.classes.update(&path, read.unwrap_or_else(|error| Some(ClassFile::unreadable(&error))));
        }
    }

    /// `None` if nobody listens any more.
    async fn send(&mut self) -> Option<()> {
        let problems: BTreeSet<_> = self.classes.problems().into_iter().collect();
        for problem in problems.difference(&self.told) {
            tracing::warn!("{problem}");
        }
        let kept = self.classes.kept();
        for name in kept.difference(&self.kept) {
            tracing::warn!(class = %name, "the class is wrong now: what it was before stays in force");
        }
        (self.told, self.kept) = (problems, kept);
        let usable = self.classes.usable();
        if self.sent.as_ref() != Some(&usable) {
            tracing::info!(count = usable.len(), "classes in force");
            self.sent = Some(usable.clone());
            self.events.send(Event::Classes(usable)).await.ok()?;
        }
        Some(())
    }
}

/// Files can be on a file system that does not answer; that is no reason to keep others waiting.
async fn blocking<T: Send + 'static>(
    path: &Path,
    read: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let path = path.to_owned();
    tokio::task::spawn_blocking(move || read(&path)).await.map_err(io::Error::other)?
}
