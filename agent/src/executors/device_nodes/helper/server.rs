//! The resident process that helpers are forked from, so that a visit costs a fork and no exec.
//!
//! It is small and has a single thread, so a fork of it is safe, cheap and inherits nothing of the agent's. It reads no request,
//! enters no namespace, waits for no helper, and sleeps until the agent wants the next one. The kernel reaps helpers that have
//! ended, also one that hung for days. What it knows, so that not every helper must find it out, is what is mounted on the host.
//!
//! The agent passes the container's pidfd and one end of a conversation. The helper's first word there is a pidfd of itself
//! ([`Hello`]), and only then does the agent tell it what to do: whatever goes on in a container goes on in a process that the agent
//! can kill. The server ends when the agent's end of its socket is closed, which the kernel does when the agent dies. Helpers that
//! are at work then end when their time is over.

use std::env;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::rc::Rc;

use rustix::process::{PidfdFlags, getpid, pidfd_open};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};

use super::host_mounts::{HostMounts, HostTables};
use crate::executors::device_nodes::descriptors;
use crate::executors::device_nodes::protocol::Hello;

/// What helpers need on the host, see the list in [`device_nodes`](crate::executors::device_nodes).
const NEEDED: CapabilitySet = CapabilitySet::SYS_ADMIN
    .union(CapabilitySet::SYS_CHROOT)
    .union(CapabilitySet::SYS_PTRACE)
    .union(CapabilitySet::MKNOD)
    .union(CapabilitySet::CHOWN)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SETGID);

/// What a helper has at hand for its visit before it is told what to do.
pub(super) struct Visitor {
    /// The container's process.
    pub pidfd: OwnedFd,
    /// A procfs of the host's pid namespace.
    pub proc_root: PathBuf,
    /// What was mounted on the host when the helper was forked.
    pub host: io::Result<Rc<HostMounts>>,
}

/// Forks a helper for each message on standard input. Returns in the helper with its end of the conversation, or with `None` if there
/// is nothing to do any more, and in the server with `None` when the agent has gone.
pub(super) fn fork_helpers() -> io::Result<Option<(Visitor, OwnedFd)>> {
    let proc_root = PathBuf::from(env::args_os().nth(2).ok_or(io::ErrorKind::InvalidInput)?);
    close_what_was_inherited()?;
    let requests = io::stdin().as_fd().try_clone_to_owned()?;
    rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
    give_up_power()?;
    reap_by_kernel()?;
    let mut tables = HostTables::new(proc_root.clone());
    loop {
        let (length, files) = descriptors::receive(&requests, &mut [0])?;
        if length == 0 {
            return Ok(None);
        }
        let Ok([pidfd, conversation]) = <[OwnedFd; 2]>::try_from(files) else { continue };
        let host = tables.now();
        // SAFETY: this process has one thread, so no lock is held that the child would wait for.
        match unsafe { libc::fork() } {
            0 => {
                // If the server dies, the agent must see it at once, however long this helper lives.
                drop(requests);
                // A number of one's own is never another's.
                let own = pidfd_open(getpid(), PidfdFlags::empty())?;
                let heard = descriptors::send(&conversation, &Hello::HERE, &[own.as_fd()]);
                // An agent that has given the visit up meanwhile hears nothing.
                let visitor = Visitor { pidfd, proc_root, host };
                return Ok(heard.is_ok().then_some((visitor, conversation)));
            }
            -1 => {
                let error = io::Error::last_os_error();
                // As above.
                let _ = descriptors::send(&conversation, &Hello::failed(&error), &[]);
            }
            _ => {}
        }
    }
}

/// Closes all but the three standard files: of what the agent's parent left open, nothing belongs in a container.
fn close_what_was_inherited() -> io::Result<()> {
    let (first, last, flags) = (3_u32, u32::MAX, 0_u32);
    // SAFETY: this is the first thing that this process does, so nothing in it owns a descriptor but the standard files.
    match unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) } {
        0 => Ok(()),
        _ => match io::Error::last_os_error() {
            // Linux 5.8 does not know the call; then they stay open, as they do in the agent.
            error if error.raw_os_error() == Some(libc::ENOSYS) => Ok(()),
            error => Err(error),
        },
    }
}

/// The server outlives visits, so it keeps no more power than they need.
fn give_up_power() -> io::Result<()> {
    let sets = rustix::thread::capabilities(None)?;
    set_capabilities(
        None,
        CapabilitySets {
            effective: sets.effective & NEEDED,
            permitted: sets.permitted & NEEDED,
            inheritable: CapabilitySet::empty(),
        },
    )?;
    Ok(())
}

/// Lets the kernel reap helpers: the agent sees their end by their pidfd, and nobody has to wake up for it.
fn reap_by_kernel() -> io::Result<()> {
    // SAFETY: ignoring a signal installs no handler.
    match unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) } {
        libc::SIG_ERR => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
