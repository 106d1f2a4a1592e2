//! A file that another process appends lines to, followed as it grows.

use std::{
    collections::VecDeque,
    fs::{self, File},
    io::{Read, Seek, SeekFrom},
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
    time::Instant,
};

use anyhow::{Context, Result, bail};
use rustix::{
    event::PollFlags,
    fs::inotify::{self, CreateFlags, WatchFlags},
};

use crate::wait::{PATIENCE, wait_for};

/// The lines of a file from some point on.
#[derive(Debug)]
pub struct Lines {
    path: PathBuf,
    read: u64,
    /// Read and not taken yet.
    waiting: VecDeque<String>,
    changes: OwnedFd,
}

impl Lines {
    /// Those that come from now on. The file is made if it is not there.
    pub fn from_now(path: &Path) -> Result<Self> {
        let mut lines = Self::all(path)?;
        lines.read = fs::metadata(path)?.len();
        Ok(lines)
    }

    /// Those that are there too.
    pub fn all(path: &Path) -> Result<Self> {
        File::options().create(true).append(true).open(path)?;
        let changes = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        inotify::add_watch(&changes, path, WatchFlags::MODIFY)?;
        Ok(Self { path: path.to_owned(), read: 0, waiting: VecDeque::new(), changes })
    }

    /// The lines that came and were not taken yet.
    pub fn news(&mut self) -> Result<Vec<String>> {
        self.read()?;
        Ok(self.waiting.drain(..).collect())
    }

    /// Waits for something in a line. It is taken, and so are those before it; those behind it are not.
    pub fn wait<T>(&mut self, what: &str, mut find: impl FnMut(&str) -> Option<T>) -> Result<T> {
        let deadline = Instant::now() + PATIENCE;
        let mut passed = Vec::new();
        loop {
            self.read()?;
            while let Some(line) = self.waiting.pop_front() {
                if let Some(found) = find(&line) {
                    return Ok(found);
                }
                passed.push(line);
            }
            let rest = deadline.saturating_duration_since(Instant::now());
            if !wait_for(self.changes.as_fd(), PollFlags::IN, rest) {
                bail!("in vain waited for {what}; {} says:\n{}", self.path.display(), passed.join("\n"));
            }
        }
    }

    fn read(&mut self) -> Result<()> {
        // What changes from here on is announced again.
        let mut announced = [0; 4096];
        while rustix::io::read(&self.changes, &mut announced).is_ok_and(|length| length > 0) {}
        let mut file = File::open(&self.path)?;
        file.seek(SeekFrom::Start(self.read))?;
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        // What has no end yet is still being written.
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        self.read += whole as u64;
        self.waiting.extend(text[..whole].lines().map(str::to_owned));
        Ok(())
    }

    /// All that is in the file.
    pub fn text(&self) -> Result<String> {
        fs::read_to_string(&self.path).with_context(|| format!("cannot read {}", self.path.display()))
    }
}
