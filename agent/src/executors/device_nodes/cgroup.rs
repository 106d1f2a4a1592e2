//! Where a process stands in the cgroup v2 hierarchy, read without trusting it.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags, ResolveFlags, fstat, openat, openat2};

/// Why the cgroup of a process is unknown.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// `/proc/<pid>/cgroup` or the hierarchy cannot be read.
    #[error("read {path}")]
    Read {
        /// What was read.
        path: String,
        /// Why not.
        source: io::Error,
    },
    /// The process is in no cgroup of the v2 hierarchy.
    #[error("no cgroup v2 entry")]
    NoEntry,
    /// No container has the root cgroup: whatever is applied to it would hold for the whole machine.
    #[error("it is the root")]
    Root,
    /// The path leads out of what this process can see: it does not run in the host's cgroup namespace.
    #[error("{0} leads out of the cgroup namespace")]
    Outside(String),
}

/// The path of a process in the hierarchy, such as `/default/c1`. `process` is a directory of a procfs.
pub(super) fn path_of(process: impl AsFd) -> Result<String, CgroupError> {
    let read = |source| CgroupError::Read { path: "/proc/<pid>/cgroup".to_owned(), source };
    let file =
        openat(process, "cgroup", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map_err(|e| read(e.into()))?;
    let mut text = String::with_capacity(1 << 10);
    File::from(file).take(1 << 16).read_to_string(&mut text).map_err(read)?;
    parse(&text)
}

fn parse(text: &str) -> Result<String, CgroupError> {
    let path = text.lines().find_map(|line| line.strip_prefix("0::")).ok_or(CgroupError::NoEntry)?;
    if path == "/" {
        return Err(CgroupError::Root);
    }
    if !path.starts_with('/') || path.split('/').any(|component| component == "..") {
        return Err(CgroupError::Outside(path.to_owned()));
    }
    Ok(path.to_owned())
}

/// The ids of a cgroup and of its ancestors, innermost first, the root left out. The id is the inode number.
pub(super) fn ids_upwards(root: &Path, path: &str) -> Result<Vec<u64>, CgroupError> {
    let read =
        |path: &str, source: rustix::io::Errno| CgroupError::Read { path: path.to_owned(), source: source.into() };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root_fd = rustix::fs::open(root, flags, Mode::empty()).map_err(|e| read(&root.display().to_string(), e))?;
    let mut ids = Vec::new();
    let mut rest = path.trim_matches('/');
    while !rest.is_empty() {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
        let cgroup: OwnedFd = openat2(&root_fd, rest, flags, Mode::empty(), resolve).map_err(|e| read(rest, e))?;
        ids.push(fstat(&cgroup).map_err(|e| read(rest, e))?.st_ino);
        rest = rest.rsplit_once('/').map_or("", |(parent, _)| parent);
    }
    Ok(ids)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_and_what_leads_out_of_the_namespace_are_refused() {
        assert_eq!(parse("12:devices:/x\n0::/default/c1\n").expect("a path"), "/default/c1");
        assert!(matches!(parse("0::/\n"), Err(CgroupError::Root)));
        assert!(matches!(parse("0::/../../kubepods/x\n"), Err(CgroupError::Outside(_))));
        assert!(matches!(parse("0::\n"), Err(CgroupError::Outside(_))));
        assert!(matches!(parse("4:memory:/x\n"), Err(CgroupError::NoEntry)));
    }
}
