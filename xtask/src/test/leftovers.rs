//! What tests must not leave on the host: everything that they make there carries [`PREFIX`] in its name.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use crate::mounts::{self, Mount};

/// How the names begin of what tests make outside their own namespaces.
const PREFIX: &str = "devgate-test";

/// The things that are there, each as a line that says where.
pub(crate) type Found = BTreeSet<String>;

/// What is there now.
pub(crate) fn find() -> Found {
    let mounts = mounts::list();
    let of_kind = |kind: &str| mounts.iter().filter(|mount| mount.kind == kind).cloned().collect::<Vec<_>>();
    let mut found = Found::new();
    for Mount { point, .. } in of_kind("cgroup2") {
        named_below(&point, "cgroup", &mut found);
    }
    for Mount { point, .. } in of_kind("bpf") {
        named_below(&point, "pin", &mut found);
    }
    named_in(Path::new("/run/netns"), "network namespace", &mut found);
    named_in(Path::new("/sys/class/net"), "network device", &mut found);
    named_in(&std::env::temp_dir(), "temporary file", &mut found);
    let mounted = mounts.iter().filter(|mount| mount.point.to_string_lossy().contains(PREFIX));
    found.extend(mounted.map(|mount| format!("mount {}", mount.point.display())));
    found
}

/// What is there and was not `before`. The kernel takes its time with some removals, hence waits for a moment.
pub(crate) fn new_since(before: &Found) -> Vec<String> {
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
fn named_in(folder: &Path, kind: &str, found: &mut Found) {
    found.extend(
        entries(folder).into_iter().filter(|path| is_named(path)).map(|path| format!("{kind} {}", path.display())),
    );
}

/// Adds what a test has made anywhere below `folder`. What is in one of these is not listed.
fn named_below(folder: &Path, kind: &str, found: &mut Found) {
    for path in entries(folder) {
        if is_named(&path) {
            found.insert(format!("{kind} {}", path.display()));
        } else if fs::symlink_metadata(&path).is_ok_and(|metadata| metadata.is_dir()) {
            named_below(&path, kind, found);
        }
    }
}

fn is_named(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(PREFIX))
}

/// The entries of a folder; none if it is gone or closed to us.
fn entries(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).map(|entries| entries.flatten().map(|entry| entry.path()).collect()).unwrap_or_default()
}
