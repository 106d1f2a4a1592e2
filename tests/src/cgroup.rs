//! Cgroups that belong to a test.

use std::{
    fs::{self, File},
    io::{self, Write},
    ops::Deref,
    os::{fd::AsFd, unix::fs::FileExt},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use devgate::executors::enforcer::{Cgroup, CgroupRoot};
use rustix::event::PollFlags;

use crate::wait::{PATIENCE, wait_for};

/// A cgroup below a test's own; it goes with the [`Scratch`](crate::Scratch) that it was made in.
#[derive(Debug)]
pub struct TestCgroup {
    cgroup: Cgroup,
    folder: PathBuf,
}

impl TestCgroup {
    /// Makes a cgroup, by its path from the hierarchy's root.
    pub(crate) fn new(root: &CgroupRoot, path: &Path) -> Result<Self> {
        let folder = root.path().join(path.strip_prefix("/")?);
        fs::create_dir(&folder).with_context(|| format!("cannot make the cgroup {}", folder.display()))?;
        Ok(Self { cgroup: root.cgroup(path)?, folder })
    }

    /// Makes a cgroup below this one.
    pub fn child(&self, name: &str) -> Result<Self> {
        Self::new(&self.root()?, &self.path().join(name))
    }

    /// A cgroup below this one that somebody else has made.
    pub fn existing(&self, name: &str) -> Result<Self> {
        Self::open(&self.root()?, &self.path().join(name))
    }

    /// A cgroup that somebody else has made, by its path from the hierarchy's root.
    pub fn open(root: &CgroupRoot, path: &Path) -> Result<Self> {
        Ok(Self { cgroup: root.cgroup(path)?, folder: root.path().join(path.strip_prefix("/")?) })
    }

    fn root(&self) -> Result<CgroupRoot> {
        // The names of test cgroups are plain, so the hierarchy's root is where the path begins in the folder's.
        let depth = self.path().components().count() - 1;
        let root = self.folder.ancestors().nth(depth).context("the cgroup's folder is too short")?;
        Ok(CgroupRoot::open(root)?)
    }

    /// Where its files are.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Moves a process into it.
    pub fn take(&self, pid: u32) -> Result<()> {
        let file = self.folder.join("cgroup.procs");
        let mut procs = File::options().write(true).open(&file)?;
        procs.write_all(pid.to_string().as_bytes()).with_context(|| format!("cannot write {pid} to {}", file.display()))
    }

    /// Ends what runs in it and below, and removes it with all below.
    pub fn remove(self) -> Result<()> {
        remove(&self.folder)
    }
}

impl Deref for TestCgroup {
    type Target = Cgroup;

    fn deref(&self) -> &Cgroup {
        &self.cgroup
    }
}

/// Ends what runs in a test's cgroup and below, and removes it with all below. One that is gone already is no error.
pub(crate) fn remove(folder: &Path) -> Result<()> {
    match fs::write(folder.join("cgroup.kill"), "1") {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        result => result.with_context(|| format!("cannot end what runs in {}", folder.display()))?,
    }
    wait_until_empty(folder)?;
    remove_empty(folder).with_context(|| format!("cannot remove {}", folder.display()))
}

/// The kernel announces each change of `cgroup.events` as an exceptional condition of that file.
fn wait_until_empty(folder: &Path) -> Result<()> {
    let events = File::open(folder.join("cgroup.events"))?;
    loop {
        let mut text = [0; 256];
        let length = events.read_at(&mut text, 0)?;
        if String::from_utf8_lossy(&text[..length]).lines().any(|line| line == "populated 0") {
            return Ok(());
        }
        if !wait_for(events.as_fd(), PollFlags::PRI, PATIENCE) {
            bail!("processes in {} do not end", folder.display());
        }
    }
}

fn remove_empty(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_empty(&entry.path())?;
        }
    }
    fs::remove_dir(folder)
}
