//! A file that another process appends lines to, followed as it grows.

use std::{
    fs::{self, File},
    io::Read,
    os::fd::OwnedFd,
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
        Ok(Self { path: path.to_owned(), read: 0, changes })
    }

    /// The lines that came since the last call.
    pub fn news(&mut self) -> Result<Vec<String>> {
        let mut buffer = [0; 4096];
        while rustix::io::read(&self.changes, &mut buffer).is_ok_and(|length| length > 0) {}
        let mut file = File::open(&self.path)?;
        std::io::Seek::seek(&mut file, std::io::SeekFrom::Start(self.read))?;
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        // What has no end yet is still being written.
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        self.read += whole as u64;
        Ok(text[..whole].lines().map(str::to_owned).collect())
    }

    /// Waits for something in the lines that come; those before it are taken too, and so are those that were there
    /// behind it.
    pub fn wait<T>(&mut self, what: &str, mut find: impl FnMut(&str) -> Option<T>) -> Result<T> {
        let deadline = Instant::now() + PATIENCE;
        let mut seen = Vec::new();
        loop {
            let news = self.news()?;
            if let Some(found) = news.iter().find_map(|line| find(line)) {
                return Ok(found);
            }
            seen.extend(news);
            let rest = deadline.saturating_duration_since(Instant::now());
            if !wait_for(std::os::fd::AsFd::as_fd(&self.changes), PollFlags::IN, rest) {
                bail!("in vain waited for {what}; {} says:\n{}", self.path.display(), seen.join("\n"));
            }
        }
    }

    /// All that is in the file.
    pub fn text(&self) -> Result<String> {
        fs::read_to_string(&self.path).with_context(|| format!("cannot read {}", self.path.display()))
    }
}
