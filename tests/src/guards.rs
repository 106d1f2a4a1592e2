//! Guard processes of agents, as a test sees them from outside.

use std::fs;

use anyhow::{Context, Result};
use devgate::executors::enforcer::{EnforcerConfig, status};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

use crate::wait::{wait_readable, wait_until};

/// The guard that is in charge.
pub fn in_charge(config: &EnforcerConfig) -> Result<Pid> {
    status(config)?.guards.uevent_process.and_then(Pid::from_raw).context("no guard is in charge")
}

/// All guards that live for this configuration, in charge or not.
pub fn all(config: &EnforcerConfig) -> Result<Vec<Pid>> {
    let argument = config.run_dir.join("guard.lock").display().to_string();
    let mut found = Vec::new();
    for process in fs::read_dir("/proc")?.flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw) else {
            continue;
        };
        // It may end while we look; one that has ended has no command line.
        let line = fs::read_to_string(process.path().join("cmdline")).unwrap_or_default();
        let mut arguments = line.split('\0').skip(1);
        if arguments.next() == Some("guard") && arguments.next() == Some(&argument) {
            found.push(pid);
        }
    }
    Ok(found)
}

/// A field of `/proc/PID/status`.
pub fn field(pid: Pid, name: &str) -> Result<String> {
    let text = fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero()))?;
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    Ok(value.with_context(|| format!("a process has no {name}"))?.trim().to_owned())
}

/// Ends the guard that is in charge by SIGKILL, and waits until it has ended.
pub fn kill(config: &EnforcerConfig) -> Result<()> {
    let guard = in_charge(config)?;
    let ended = pidfd_open(guard, PidfdFlags::empty())?;
    kill_process(guard, Signal::KILL)?;
    wait_readable("the guard has ended", &ended);
    Ok(())
}

/// A process that stands still until the value goes.
#[derive(Debug)]
pub struct Frozen(Pid);

/// Stops the guard that is in charge, and waits until it stands still.
pub fn freeze(config: &EnforcerConfig) -> Result<Frozen> {
    let guard = in_charge(config)?;
    kill_process(guard, Signal::STOP)?;
    let frozen = Frozen(guard);
    wait_until("the guard stands still", || field(guard, "State").is_ok_and(|state| state.starts_with('T')));
    Ok(frozen)
}

impl Drop for Frozen {
    fn drop(&mut self) {
        // It may have been killed.
        let _ = kill_process(self.0, Signal::CONT);
    }
}
