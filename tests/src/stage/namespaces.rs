//! The namespaces of a stage.

use std::{io, os::unix::process::CommandExt, process::Command};

use anyhow::{Context, Result};
use rustix::{
    mount::{MountFlags, MountPropagationFlags, mount, mount_change},
    process::{Signal, set_parent_process_death_signal, setsid},
    thread::{UnshareFlags, unshare_unsafe},
};

use super::signals;

/// Where temporary files go: a place that exists on every machine and where nobody's programs are.
const TEMPORARY: &str = "/dev/shm";

/// Lets the command be the first process of a pid namespace, with mounts of its own, in a session of its own: a signal
/// from the terminal is the supervisor's. The process ends when this one does. Nothing else can be started afterwards.
pub(super) fn prepare(command: &mut Command) -> Result<()> {
    // SAFETY: the process has one thread, and no descriptors that it shares with others.
    unsafe { unshare_unsafe(UnshareFlags::NEWPID) }.context("cannot make a pid namespace")?;
    let enter = || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        setsid()?;
        signals::unblock()?;
        // SAFETY: the child has one thread, and descriptors of its own.
        unsafe { unshare_unsafe(UnshareFlags::NEWNS) }?;
        Ok::<_, io::Error>(())
    };
    command.env("TMPDIR", TEMPORARY);
    // SAFETY: only system calls are made between fork and exec.
    unsafe { command.pre_exec(enter) };
    Ok(())
}

/// Mounts what belongs to the stage alone, in the process that was started on it.
pub(super) fn furnish() -> Result<()> {
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .context("cannot keep mounts apart")?;
    let guarded = MountFlags::NOSUID | MountFlags::NODEV;
    let over = |kind: &str, at: &str, flags| {
        mount(kind, at, kind, flags, None).with_context(|| format!("cannot mount {kind} at {at}"))
    };
    over("proc", "/proc", guarded | MountFlags::NOEXEC)?;
    over("bpf", "/sys/fs/bpf", guarded | MountFlags::NOEXEC)?;
    over("tmpfs", TEMPORARY, guarded)
}
