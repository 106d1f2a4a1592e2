//! What tests must not leave on the host: everything that they make there carries [`PREFIX`] in its name.

use std::collections::BTreeSet;
use std::env;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use crate::mounts::{self, Mount};

/// How the names begin of what tests make outside their own namespaces.
const PREFIX: &str = "devgate-test";

/// The things that are there.
pub(crate) type Found = BTreeSet<Thing>;

/// Something on the host that a test has made.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Thing {
    kind: Kind,
    path: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Mount,
    NetworkDevice,
    NetworkNamespace,
    Pin,
    Cgroup,
    TemporaryFile,
}

impl fmt::Display for Thing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            Kind::Mount => "mount",
            Kind::NetworkDevice => "network device",
            Kind::NetworkNamespace => "network namespace",
            Kind::Pin => "pin",
            Kind::Cgroup => "cgroup",
            Kind::TemporaryFile => "temporary file",
        };
        write!(f, "{kind} {}", self.path.display())
    }
}

impl Thing {
    /// Takes it away, if that is safe: of a test that was made to fail, one cannot ask that it cleans up.
    pub(crate) fn remove(&self) -> io::Result<()> {
        match self.kind {
            Kind::Cgroup => remove_cgroup(&self.path),
            // What is mounted in it may be the host's.
            Kind::Pin | Kind::TemporaryFile
                if !mounts::list().iter().any(|mount| mount.point.starts_with(&self.path)) =>
            {
                if fs::symlink_metadata(&self.path)?.is_dir() {
                    fs::remove_dir_all(&self.path)
                } else {
                    fs::remove_file(&self.path)
                }
            }
            _ => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}

/// What is there now.
pub(crate) fn find() -> Found {
    let mounts = mounts::list();
    let mut found = Found::new();
    for Mount { point, kind, .. } in &mounts {
        match kind.as_str() {
            "cgroup2" => named_below(point, Kind::Cgroup, &mut found),
            "bpf" => named_below(point, Kind::Pin, &mut found),
            _ => {}
        }
        if point.to_string_lossy().contains(PREFIX) {
            found.insert(Thing { kind: Kind::Mount, path: point.clone() });
        }
    }
    named_in(Path::new("/run/netns"), Kind::NetworkNamespace, &mut found);
    named_in(Path::new("/sys/class/net"), Kind::NetworkDevice, &mut found);
    named_in(&env::temp_dir(), Kind::TemporaryFile, &mut found);
    found
}

/// What is there and was not `before`. The kernel takes its time with some removals, hence waits for a moment.
pub(crate) fn new_since(before: &Found) -> Vec<Thing> {
    const PATIENCE: Duration = Duration::from_secs(5);
    const INTERVAL: Duration = Duration::from_millis(100);
    let start = Instant::now();
    loop {
        let new: Vec<_> = find().difference(before).cloned().collect();
        if new.is_empty() || start.elapsed() > PATIENCE {
            return new;
        }
        thread::sleep(INTERVAL);
    }
}

/// Adds the entries of `folder` that a test has made.
fn named_in(folder: &Path, kind: Kind, found: &mut Found) {
    found.extend(entries(folder).into_iter().filter(|path| is_named(path)).map(|path| Thing { kind, path }));
}

/// Adds what a test has made anywhere below `folder`. What is in one of these is not listed.
fn named_below(folder: &Path, kind: Kind, found: &mut Found) {
    for path in entries(folder) {
        if is_named(&path) {
            found.insert(Thing { kind, path });
        } else if is_folder(&path) {
            named_below(&path, kind, found);
        }
    }
}

/// Removes a cgroup and those below it. Their files are no obstacle; processes in them are.
fn remove_cgroup(folder: &Path) -> io::Result<()> {
    for path in entries(folder).iter().filter(|path| is_folder(path)) {
        remove_cgroup(path)?;
    }
    fs::remove_dir(folder)
}

fn is_folder(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_dir())
}

fn is_named(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(PREFIX))
}

/// The entries of a folder; none if it is gone or closed to us.
fn entries(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).map(|entries| entries.flatten().map(|entry| entry.path()).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_left_is_found_and_removed() {
        let path = env::temp_dir().join(format!("{PREFIX}-leftovers-{}", std::process::id()));
        let thing = Thing { kind: Kind::TemporaryFile, path: path.clone() };
        assert!(!find().contains(&thing));
        fs::create_dir_all(path.join("inner")).unwrap();
        assert!(find().contains(&thing));
        thing.remove().unwrap();
        assert!(!path.exists());
    }
}
