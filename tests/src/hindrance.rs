//! What an [`Agent`](crate::Agent) has to do without: a kernel that lacks a call, a right that it was not given.

use std::io;

use anyhow::{Context, Result};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};
use serde::{Deserialize, Serialize};

/// Commands of `bpf(2)`, as numbered in `include/uapi/linux/bpf.h`.
pub mod command {
    /// `BPF_PROG_LOAD`
    pub const PROG_LOAD: u32 = 5;
    /// `BPF_PROG_ATTACH`
    pub const PROG_ATTACH: u32 = 8;
    /// `BPF_PROG_TEST_RUN`
    pub const PROG_TEST_RUN: u32 = 10;
    /// `BPF_PROG_QUERY`
    pub const PROG_QUERY: u32 = 16;
    /// `BPF_LINK_CREATE`
    pub const LINK_CREATE: u32 = 28;
}

/// One thing that is missing.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum Hindrance {
    /// The bits of a [`CapabilitySet`] that the process does not have.
    Capabilities(u64),
    /// A command of `bpf(2)` that fails with an error number.
    Command {
        /// Which.
        command: u32,
        /// Fails only with attributes that have fewer bytes.
        shorter_than: u32,
        /// The error number.
        errno: u16,
    },
}

impl Hindrance {
    /// Lacks capabilities.
    pub fn without(capabilities: CapabilitySet) -> Self {
        Self::Capabilities(capabilities.bits())
    }

    /// A command of `bpf(2)` fails.
    pub fn failing(command: u32, errno: i32) -> Self {
        Self::failing_if_short(command, u32::MAX, errno)
    }

    /// A command of `bpf(2)` fails with a short attribute.
    pub fn failing_if_short(command: u32, shorter_than: u32, errno: i32) -> Self {
        Self::Command { command, shorter_than, errno: u16::try_from(errno).expect("an error number is small") }
    }

    /// Takes it away from this thread and the threads and processes that it starts.
    pub(crate) fn impose(self) -> Result<()> {
        match self {
            Self::Capabilities(bits) => give_up(CapabilitySet::from_bits_retain(bits)).context("cannot give up rights"),
            Self::Command { command, shorter_than, errno } => {
                refuse(command, shorter_than, errno).context("cannot install a filter of system calls")
            }
        }
    }
}

fn give_up(lost: CapabilitySet) -> io::Result<()> {
    let CapabilitySets { effective, permitted, inheritable } = capabilities(None)?;
    let rest = |set: CapabilitySet| set & !lost;
    set_capabilities(
        None,
        CapabilitySets { effective: rest(effective), permitted: rest(permitted), inheritable: rest(inheritable) },
    )?;
    Ok(())
}

/// A filter of `seccomp(2)`: the offsets are those of `struct seccomp_data`, whose arguments are 64 bits wide and here
/// small numbers in the byte order of x86-64 and arm64.
fn refuse(command: u32, shorter_than: u32, errno: u16) -> io::Result<()> {
    const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let step = |code, then, otherwise, value| libc::sock_filter { code, jt: then, jf: otherwise, k: value };
    let mut filter = [
        step(LOAD, 0, 0, 0),
        step(EQUAL, 0, 5, libc::SYS_bpf as u32),
        step(LOAD, 0, 0, 16),
        step(EQUAL, 0, 3, command),
        step(LOAD, 0, 0, 32),
        step(AT_LEAST, 1, 0, shorter_than),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ERRNO | u32::from(errno)),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the filter is valid and lives until the call returns; the kernel copies it.
    let result = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
