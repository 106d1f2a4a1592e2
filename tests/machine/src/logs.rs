//! What is kept of a machine whose test failed.

use std::{fs, path::Path};

use crate::Machine;

/// Files, and what prints them.
const LOGS: &[(&str, &str)] = &[
    ("journal.log", "journalctl --no-pager --output short-monotonic"),
    ("agent.log", "journalctl --no-pager --output short-monotonic --unit devgate"),
    ("containerd.log", "journalctl --no-pager --output short-monotonic --unit containerd"),
    ("kernel.log", "dmesg"),
    ("enforcer.log", "devgate enforcer status; bpftool cgroup tree; bpftool map"),
    ("devices.log", "udevadm info --export-db"),
    ("processes.log", "ps -eo pid,ppid,cgroup,stat,args; ctr containers ls; ctr tasks ls"),
];

impl Machine {
    /// Writes the machine's logs into a folder, as far as it still answers.
    pub(crate) fn keep_logs(&mut self, folder: &Path) {
        for (file, script) in LOGS {
            let log = match self.attempt(&format!("exec 2>&1; {script}")) {
                Ok(output) => output.output,
                // Each attempt would take as long as this one.
                Err(error) => return eprintln!("cannot keep {file}: {error:#}"),
            };
            if let Err(error) = fs::write(folder.join(file), log + "\n") {
                eprintln!("cannot keep {file}: {error}");
            }
        }
    }
}
