//! Asks the kernel itself: a process in a cgroup tries an access.

use std::{
    ffi::CStr,
    io,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

use rustix::process::{WaitId, WaitIdOptions, waitid};

/// What the process tries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// `faccessat` with a mode of `F_OK`, `R_OK` and `W_OK`: the whole chain of device programs is asked, and the device
    /// itself is not touched.
    Access(i32),
    /// `openat` with flags.
    Open(i32),
}

/// `CLONE_INTO_CGROUP` of `include/uapi/linux/sched.h`, which libc has in a type that is too narrow.
const CLONE_INTO_CGROUP: u64 = 1 << 33;

/// `struct clone_args` of Linux 5.7.
#[repr(C)]
#[derive(Default)]
struct CloneArguments {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

/// Starts a process in `cgroup` that asks for the node `name` in the folder `folder` and ends. Answers 0 or the error
/// number (Linux 5.7: `CLONE_INTO_CGROUP`).
pub fn ask(cgroup: BorrowedFd<'_>, folder: BorrowedFd<'_>, name: &CStr, question: Question) -> io::Result<i32> {
    let mut pidfd = -1_i32;
    let arguments = CloneArguments {
        flags: libc::CLONE_PIDFD as u64 | CLONE_INTO_CGROUP,
        pidfd: (&raw mut pidfd).addr() as u64,
        exit_signal: libc::SIGCHLD as u64,
        cgroup: u64::from(cgroup.as_raw_fd().cast_unsigned()),
        ..Default::default()
    };
    // SAFETY: the arguments are valid; the child has a copy of this memory and makes only system calls.
    let child = unsafe { libc::syscall(libc::SYS_clone3, &raw const arguments, size_of::<CloneArguments>()) };
    if child < 0 {
        return Err(io::Error::last_os_error());
    }
    if child == 0 {
        let errno = answer(folder.as_raw_fd(), name, question);
        // SAFETY: ends the child without running anything of the parent's.
        unsafe { libc::_exit(errno) };
    }
    // SAFETY: the kernel has written a new descriptor there.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    let status = loop {
        match waitid(WaitId::PidFd(std::os::fd::AsFd::as_fd(&pidfd)), WaitIdOptions::EXITED) {
            Err(rustix::io::Errno::INTR) => {}
            other => break other?,
        }
    };
    status
        .and_then(|status| status.exit_status())
        .ok_or_else(|| io::Error::other("the process that asks for an access was killed"))
}

/// Runs in the child. Other threads of the parent may have held any lock: nothing but system calls here.
fn answer(folder: i32, name: &CStr, question: Question) -> i32 {
    let result = match question {
        // SAFETY: the name ends with a zero.
        Question::Access(mode) => unsafe { libc::syscall(libc::SYS_faccessat, folder, name.as_ptr(), mode) },
        // SAFETY: as above.
        Question::Open(flags) => unsafe { libc::syscall(libc::SYS_openat, folder, name.as_ptr(), flags, 0) },
    };
    if result < 0 { io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO) } else { 0 }
}
