//! Waiting for conditions, never for time to pass.

use std::{
    os::fd::{AsFd, BorrowedFd},
    thread,
    time::{Duration, Instant},
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// What takes longer than this never comes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Looks again and again until the condition holds, for what the kernel offers nothing to wait on.
///
/// # Panics
///
/// If it does not come to hold; `what` then says what should have.
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "in vain waited until {what}");
        thread::yield_now();
    }
}

/// Waits until the descriptor can be read.
///
/// # Panics
///
/// If it never can; `what` then says what should have been there.
pub fn wait_readable(what: &str, fd: impl AsFd) {
    assert!(wait_for(fd.as_fd(), PollFlags::IN, PATIENCE), "in vain waited until {what}");
}

/// Whether the descriptor can be read now.
pub fn is_readable(fd: impl AsFd) -> bool {
    wait_for(fd.as_fd(), PollFlags::IN, Duration::ZERO)
}

/// Waits for an event on the descriptor; returns whether it came in time.
pub(crate) fn wait_for(fd: BorrowedFd<'_>, events: PollFlags, time: Duration) -> bool {
    let deadline = Instant::now() + time;
    loop {
        let rest = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec { tv_sec: rest.as_secs().cast_signed(), tv_nsec: rest.subsec_nanos().into() };
        match poll(&mut [PollFd::from_borrowed_fd(fd, events)], Some(&timeout)) {
            Err(rustix::io::Errno::INTR) => {}
            // At the end of its time poll looks once more, and may find what it was never woken for.
            result => {
                let found = result.expect("poll takes any descriptor") > 0;
                return found && (time.is_zero() || Instant::now() < deadline);
            }
        }
    }
}
