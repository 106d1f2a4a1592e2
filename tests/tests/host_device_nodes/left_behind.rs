//! That the tests leave the host as it was.

use std::collections::BTreeSet;
use std::fs;

use crate::container::{cgroup_root, test_prefix};

/// What tests could leave on the host.
pub(crate) struct HostState {
    things: BTreeSet<String>,
}

impl HostState {
    pub(crate) fn read() -> Self {
        Self { things: things() }
    }

    /// What is there now and was not before, once every child process has ended; after ten seconds the alarm ends the test.
    pub(crate) fn difference(&self) -> Vec<String> {
        // SAFETY: sets a timer whose signal ends this process.
        unsafe { libc::alarm(10) };
        // SAFETY: a null status is allowed.
        while unsafe { libc::waitpid(-1, std::ptr::null_mut(), 0) } > 0 {}
        // SAFETY: takes the timer back.
        unsafe { libc::alarm(0) };
        things().difference(&self.things).cloned().collect()
    }
}

/// Other programs mount and make devices too, so only what is known by its name counts.
fn things() -> BTreeSet<String> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let ours = |line: &&str| line.contains(&test_prefix()) || line.contains(" tmpfs devgate ");
    let mut things: BTreeSet<String> = mounts.lines().filter(ours).map(|line| format!("mount {line}")).collect();
    let mut directories = vec![std::path::PathBuf::from("/dev"), std::env::temp_dir()];
    directories.extend(cgroup_root());
    for directory in directories {
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with("devgate-test-node") {
                things.insert(entry.path().display().to_string());
            }
        }
    }
    things
}
