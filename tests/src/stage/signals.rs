//! Signals that ask a program to end, taken when it has time for them.

use std::{
    io::{self, Read},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd},
};

use rustix::process::Signal;

/// Those that a terminal or a service manager sends.
const ENDING: [Signal; 4] = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT];

/// The signals, blocked: they wait in a descriptor.
#[derive(Debug)]
pub(super) struct Signals(OwnedFd);

impl Signals {
    /// Blocks them from here on.
    pub(super) fn block() -> io::Result<Self> {
        let set = set();
        mask(libc::SIG_BLOCK, &set)?;
        // SAFETY: the set was made above.
        let fd = unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// The next one.
    pub(super) fn next(&self) -> io::Result<Signal> {
        let mut info = [0_u8; size_of::<libc::signalfd_siginfo>()];
        std::fs::File::from(self.0.try_clone()?).read_exact(&mut info)?;
        // The number is the first word.
        let number = u32::from_ne_bytes([info[0], info[1], info[2], info[3]]);
        ENDING
            .into_iter()
            .find(|signal| signal.as_raw().cast_unsigned() == number)
            .ok_or_else(|| io::Error::other("a signal came that was not waited for"))
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Ends this process as the signal would have, so that a shell sees what happened.
pub(super) fn die_of(signal: Signal) -> ! {
    // SAFETY: nothing was ever caught: the signal's own effect is restored at most.
    unsafe { libc::signal(signal.as_raw(), libc::SIG_DFL) };
    // SAFETY: it stays pending until it is unblocked.
    unsafe { libc::raise(signal.as_raw()) };
    let _ = unblock();
    // Whatever kept it off, the status says the same.
    std::process::exit(128 + signal.as_raw())
}

/// Lets them through again: what is blocked stays so in processes that are started.
pub(super) fn unblock() -> io::Result<()> {
    mask(libc::SIG_UNBLOCK, &set())
}

fn set() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: the call fills the set.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    // SAFETY: the set has been filled.
    let mut set = unsafe { set.assume_init() };
    for signal in ENDING {
        // SAFETY: the set is valid, and so is the number.
        unsafe { libc::sigaddset(&raw mut set, signal.as_raw()) };
    }
    set
}

fn mask(how: libc::c_int, set: &libc::sigset_t) -> io::Result<()> {
    // SAFETY: the set is valid; the old one is not asked for.
    let result = unsafe { libc::sigprocmask(how, set, std::ptr::null_mut()) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
