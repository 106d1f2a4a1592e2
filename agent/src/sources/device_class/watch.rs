//! Tells which files of the folder have changed.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::inotify::{self, ReadFlags, WatchFlags};
use rustix::io::Errno;

use super::folder::is_class_file;
use crate::readiness::Readable;

/// A watch on a folder that need not exist, by files and as a whole.
#[derive(Debug)]
pub(super) struct FolderWatch {
    inotify: Readable,
    path: PathBuf,
    /// The folder itself, if it exists.
    folder: Option<i32>,
    /// The nearest folder above that exists, and what in it leads to ours.
    above: Option<(i32, OsString)>,
}

/// What has changed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum News {
    /// These files, and nothing else.
    Files(BTreeSet<OsString>),
    /// Perhaps everything: a new watch is needed, then a look at all of it.
    Folder,
}

impl FolderWatch {
    /// Watches from now on.
    pub(super) fn new(path: &Path) -> io::Result<Self> {
        let inotify = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
        // A file is news when its writer has closed it, not when it is made: half a class can be a wider one.
        let files = WatchFlags::CLOSE_WRITE
            | WatchFlags::CREATE
            | WatchFlags::MOVED_TO
            | WatchFlags::MOVED_FROM
            | WatchFlags::DELETE
            | WatchFlags::ATTRIB
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF
            | WatchFlags::ONLYDIR;
        let gone = WatchFlags::DELETE_SELF | WatchFlags::MOVE_SELF | WatchFlags::ONLYDIR;
        let comes = gone | WatchFlags::CREATE | WatchFlags::MOVED_TO;
        let watch = |path: &Path, flags| match inotify::add_watch(&inotify, path, flags) {
            Ok(watch) => Ok(Some(watch)),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
            Err(error) => Err(io::Error::from(error)),
        };
        let mut above = None;
        // From the root downwards: whatever comes into being meanwhile is then seen by one watch or the other.
        let ancestors: Vec<_> = path.ancestors().collect();
        for (ancestor, next) in ancestors.iter().rev().zip(ancestors.iter().rev().skip(1)) {
            let Some(name) = next.file_name() else { continue };
            let Some(found) = watch(ancestor, comes)? else { break };
            if let Some((higher, _)) = above.replace((found, name.to_owned())) {
                // Only the last one needs to tell of what comes; the same watch number means the same folder.
                if higher != found {
                    watch(ancestor.parent().unwrap_or(ancestor), gone)?;
                }
            }
        }
        let folder = watch(path, files)?;
        Ok(Self { inotify: Readable::new(inotify)?, path: path.to_owned(), folder, above })
    }

    /// Waits until something has changed. Cancel-safe: once waiting is over nothing is waited for any more.
    pub(super) async fn news(&mut self) -> io::Result<News> {
        loop {
            self.inotify.announced().await?;
            match self.read()? {
                News::Files(files) if files.is_empty() => {}
                news => return Ok(news),
            }
        }
    }

    /// Reads all that is there.
    fn read(&self) -> io::Result<News> {
        let mut files = BTreeSet::new();
        let mut whole = false;
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut events = inotify::Reader::new(self.inotify.as_fd(), &mut buffer);
        loop {
            match events.next() {
                Ok(event) => {
                    let name = event.file_name().map(|name| OsStr::from_bytes(name.to_bytes()));
                    match self.judge(event.wd(), event.events(), name) {
                        Judgement::Nothing => {}
                        Judgement::File(name) => _ = files.insert(name),
                        Judgement::Whole => whole = true,
                    }
                }
                Err(Errno::AGAIN) => return Ok(if whole { News::Folder } else { News::Files(files) }),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn judge(&self, watch: i32, event: ReadFlags, name: Option<&OsStr>) -> Judgement {
        let lost = ReadFlags::QUEUE_OVERFLOW
            | ReadFlags::DELETE_SELF
            | ReadFlags::MOVE_SELF
            | ReadFlags::UNMOUNT
            | ReadFlags::IGNORED;
        if event.intersects(lost) {
            return Judgement::Whole;
        }
        let Some(name) = name else { return Judgement::Nothing };
        if self.above.as_ref().is_some_and(|(above, leads)| *above == watch && leads == name) {
            return Judgement::Whole;
        }
        if self.folder != Some(watch) {
            return Judgement::Nothing;
        }
        let path = self.path.join(name);
        let is_link = || path.symlink_metadata().is_ok_and(|found| found.is_symlink());
        if !is_class_file(name) {
            // All files of a mounted ConfigMap change when one link beside them does.
            let moved = event.intersects(ReadFlags::MOVED_TO | ReadFlags::CREATE);
            return if moved && is_link() { Judgement::Whole } else { Judgement::Nothing };
        }
        // Links of both kinds are made complete. Other new files are closed by those who write them.
        let linked = || {
            use std::os::unix::fs::MetadataExt;
            path.symlink_metadata().is_ok_and(|found| found.is_symlink() || found.nlink() > 1)
        };
        if event.contains(ReadFlags::CREATE) && !linked() {
            return Judgement::Nothing;
        }
        Judgement::File(name.to_owned())
    }
}

enum Judgement {
    Nothing,
    File(OsString),
    Whole,
}
