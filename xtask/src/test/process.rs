//! Running a test executable with a deadline, and ending what it left running.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, getpid, kill_process, pidfd_open, pidfd_send_signal, set_child_subreaper,
    wait, waitpid,
};

/// How a test executable ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// None if it had to be killed at the deadline.
    pub(crate) status: Option<ExitStatus>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) time: Duration,
    /// The command lines of processes that it had started and that still ran; they are gone now.
    pub(crate) left: Vec<String>,
}

/// Makes this process the parent of all orphans below it, so that it sees what a test executable leaves running.
pub(crate) fn adopt_orphans() -> Result<()> {
    set_child_subreaper(Some(getpid())).context("cannot become the parent of orphaned processes")
}

/// Runs `command` to its end, or kills it after `deadline`. No other child of this process may run meanwhile.
///
/// The output goes to files named `output.*`: a process that outlives the executable cannot hold them up as it could a pipe.
pub(crate) fn run(command: &mut Command, output: &Path, deadline: Duration) -> Result<Ended> {
    let [stdout, stderr] = ["stdout", "stderr"].map(|stream| output.with_added_extension(stream));
    let create = |path: &Path| File::create(path).with_context(|| format!("cannot write {}", path.display()));
    let start = Instant::now();
    let child = command
        .stdin(std::process::Stdio::null())
        .stdout(create(&stdout)?)
        .stderr(create(&stderr)?)
        .spawn()
        .with_context(|| format!("cannot run {}", command.get_program().display()))?;
    let pid = Pid::from_child(&child);
    // Taken before anything can have waited for the process, so the number is its own.
    let descriptor = pidfd_open(pid, PidfdFlags::empty()).context("cannot watch a test executable")?;
    let reaper = thread::spawn(move || reap_until(pid));
    let in_time = ends_within(&descriptor, deadline).context("cannot wait for a test executable")?;
    if !in_time {
        pidfd_send_signal(&descriptor, Signal::KILL).context("cannot kill a test executable")?;
    }
    let status = match reaper.join() {
        Ok(status) => status.context("cannot wait for a test executable")?,
        Err(panic) => std::panic::resume_unwind(panic),
    };
    let time = start.elapsed();
    let left = end_orphans();
    let read = |path: &Path| {
        let bytes = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        anyhow::Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    Ok(Ended {
        status: in_time.then_some(status),
        // One that was killed could not clean up.
        left: if in_time { left } else { Vec::new() },
        stdout: read(&stdout)?,
        stderr: read(&stderr)?,
        time,
    })
}

/// Waits for the child `last`, and meanwhile for all orphans that end, as init would: tests look for processes that are gone.
fn reap_until(last: Pid) -> rustix::io::Result<ExitStatus> {
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid == last => return Ok(ExitStatus::from_raw(status.as_raw())),
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Kills the children of this process, and those that they leave in turn; returns their command lines.
fn end_orphans() -> Vec<String> {
    // A process that was told to end may still be about it.
    let deadline = Instant::now() + Duration::from_secs(2);
    let mut left = Vec::new();
    loop {
        let children = children();
        if children.is_empty() {
            return left;
        }
        for child in children {
            let rest = deadline.saturating_duration_since(Instant::now());
            let ended = pidfd_open(child, PidfdFlags::empty()).and_then(|descriptor| ends_within(&descriptor, rest));
            if !matches!(ended, Ok(true)) {
                left.push(command_line(child));
                // It is our child and not waited for yet: the number is still its own.
                let _ = kill_process(child, Signal::KILL);
            }
            // Fails only if it is no child any more.
            let _ = waitpid(Some(child), WaitOptions::empty());
        }
    }
}

/// Whether a process ends in `time`.
fn ends_within(process: &OwnedFd, time: Duration) -> rustix::io::Result<bool> {
    let deadline = Instant::now() + time;
    loop {
        let rest = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec { tv_sec: rest.as_secs().cast_signed(), tv_nsec: rest.subsec_nanos().into() };
        match poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&timeout)) {
            Err(Errno::INTR) => {}
            ended => return ended.map(|count| count > 0),
        }
    }
}

fn children() -> Vec<Pid> {
    let own = getpid().as_raw_nonzero().get();
    let Ok(processes) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    processes
        .flatten()
        .filter_map(|process| process.file_name().to_str()?.parse().ok())
        .filter(|pid| fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| parent(&stat) == Some(own)))
        .filter_map(Pid::from_raw)
        .collect()
}

/// The parent in `/proc/<pid>/stat`. The name before it is in brackets and may itself contain some.
fn parent(stat: &str) -> Option<i32> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

fn command_line(process: Pid) -> String {
    let line = fs::read(format!("/proc/{}/cmdline", process.as_raw_nonzero())).unwrap_or_default();
    format!("process {}: {}", process.as_raw_nonzero(), String::from_utf8_lossy(&line).replace('\0', " ").trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parent_is_found_behind_any_name() {
        assert_eq!(parent("42 (sh) S 7 42 42 0"), Some(7));
        assert_eq!(parent("42 (a) R 1 (b) S 7 42 42 0"), Some(7));
    }
}
