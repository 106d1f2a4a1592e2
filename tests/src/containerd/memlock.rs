//! crun raises its limit of locked memory before it attaches a program, as kernels before 5.11 wanted it, and gives up if
//! it may not. Where the tests themselves may not, that one system call is answered with success; newer kernels ignore the
//! limit anyway.

use std::{fs, io, os::unix::process::CommandExt, process::Command};

/// `CAP_SYS_RESOURCE` in `linux/capability.h`.
const CAP_SYS_RESOURCE: u32 = 24;

/// Offsets of `nr`, and of the lower halves of `args[1]` and `args[2]`, in `struct seccomp_data` of little-endian machines.
const NUMBER: u32 = 0;
const RESOURCE: u32 = 24;
const NEW_LIMIT: u32 = 32;

/// Sees to it that limits of locked memory can be set in the process that is started, and in all that it starts.
pub(super) fn pretend(command: &mut Command) {
    if may_set_limits() {
        return;
    }
    let filter = filter();
    let install = move || {
        let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
        // SAFETY: the program outlives the call, which copies it.
        let result = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    };
    // SAFETY: nothing is done between fork and exec but one system call.
    unsafe { command.pre_exec(install) };
}

fn may_set_limits() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).unwrap_or_default();
    effective & (1 << CAP_SYS_RESOURCE) != 0
}

/// Answers `prlimit64(_, RLIMIT_MEMLOCK, limit, _)` with 0 and lets all else through.
fn filter() -> [libc::sock_filter; 8] {
    let load = |offset| statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset);
    let unless = |value, skip| jump(value, 0, skip);
    [
        load(NUMBER),
        unless(libc::SYS_prlimit64 as u32, 5),
        load(RESOURCE),
        unless(libc::RLIMIT_MEMLOCK, 3),
        load(NEW_LIMIT),
        jump(0, 1, 0),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW),
    ]
}

fn statement(code: u32, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

/// Skips `yes` statements if the loaded value is `value`, else `no`.
fn jump(value: u32, yes: u8, no: u8) -> libc::sock_filter {
    libc::sock_filter { code: (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16, jt: yes, jf: no, k: value }
}
