//! The prober's own side.

use std::{
    ffi::CString,
    io,
    os::fd::{AsFd, AsRawFd, FromRawFd, IntoRawFd, OwnedFd},
    process::ExitCode,
    sync::atomic::Ordering::Relaxed,
};

use anyhow::Result;
use devgate_abi::{Access, DeviceNumber};
use rustix::{
    fs::{
        AtFlags, CWD, FileType, Mode, OFlags, fstat,
        inotify::{self, CreateFlags, WatchFlags},
        openat, statat, unlinkat,
    },
    io::Errno,
};

use super::{
    ARGUMENT, Answer, COMM, QUESTIONS, access_mode,
    order::{Line, Order, following},
    outcome,
    run::Attempt,
    shared::Shared,
};
use crate::{loops, network, nodes};

/// After how many attempts a running prober looks whether its test still lives.
const LOOK_UP: u64 = 1 << 16;

/// Is a prober until the test ends it, if the command line says so; else does nothing.
pub fn dispatch() -> Option<ExitCode> {
    if std::env::args().nth(1)? != ARGUMENT {
        return None;
    }
    Some(match obey_all() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("prober: {error:#}");
            ExitCode::FAILURE
        }
    })
}

struct Child {
    nodes: OwnedFd,
    shared: Shared,
    parent: Option<rustix::process::Pid>,
}

fn obey_all() -> Result<()> {
    rustix::thread::set_name(&CString::new(COMM)?)?;
    let line = Line::of(io::stdin().as_fd().try_clone_to_owned()?);
    let [nodes, memory] = line.receive_fds()?;
    let child = Child { nodes, shared: Shared::map(memory.as_fd())?, parent: rustix::process::getppid() };
    while let Some(order) = line.receive()? {
        line.send(&child.obey(order))?;
    }
    Ok(())
}

impl Child {
    fn obey(&self, order: Order) -> i32 {
        match order {
            Order::Open { name, flags } => errno(self.open(&name, flags).map(drop)),
            Order::Access { name, mode } => self.access(&c_string(name), mode),
            Order::MakeNode { device } => errno(self.make_node(DeviceNumber::from_bits(device))),
            Order::Watch { name } => errno(self.watch(&name)),
            Order::Stat { name } => errno(statat(&self.nodes, &name, AtFlags::SYMLINK_NOFOLLOW).map(drop)),
            Order::Which { name } => self.which(&name),
            Order::Hold { name, flags } => {
                self.open(&name, flags).map_or_else(|error| -error.raw_os_error(), IntoRawFd::into_raw_fd)
            }
            Order::Reopen { fd, flags } => {
                let path = format!("/proc/self/fd/{fd}");
                errno(openat(CWD, path, OFlags::from_bits_retain(flags.cast_unsigned()), Mode::empty()).map(drop))
            }
            Order::Read { fd } => {
                let mut byte = 0_u8;
                // SAFETY: there is room for the one byte.
                outcome(unsafe { libc::read(fd, (&raw mut byte).cast(), 1) } as i32)
            }
            Order::Write { fd } => {
                // SAFETY: there is the one byte.
                outcome(unsafe { libc::write(fd, (&raw const ZERO).cast(), 1) } as i32)
            }
            Order::Close { fd } => {
                // SAFETY: the descriptor is one that `Hold` has given away.
                drop(unsafe { OwnedFd::from_raw_fd(fd) });
                0
            }
            Order::Survey { first, count } => self.survey(DeviceNumber::from_bits(first), count),
            Order::Run { name, attempt, times } => self.run(&c_string(name), attempt, times),
        }
    }

    fn open(&self, name: &str, flags: i32) -> Result<OwnedFd, Errno> {
        openat(&self.nodes, name, OFlags::from_bits_retain(flags.cast_unsigned()) | OFlags::CLOEXEC, Mode::empty())
    }

    fn access(&self, name: &CString, mode: i32) -> i32 {
        // SAFETY: the name ends with a zero.
        outcome(unsafe { libc::faccessat(self.nodes.as_raw_fd(), name.as_ptr(), mode, 0) })
    }

    fn make_node(&self, device: DeviceNumber) -> Result<(), Errno> {
        let name = format!("made-by-{}", std::process::id());
        nodes::make(self.nodes.as_fd(), &name, device)?;
        unlinkat(&self.nodes, &name, AtFlags::empty())
    }

    fn watch(&self, name: &str) -> Result<(), Errno> {
        let watcher = inotify::init(CreateFlags::CLOEXEC)?;
        let path = format!("/proc/self/fd/{}/{name}", self.nodes.as_raw_fd());
        inotify::add_watch(&watcher, path, WatchFlags::ATTRIB).map(drop)
    }

    fn survey(&self, first: DeviceNumber, count: u32) -> i32 {
        let mut answers = self.shared.answers.iter();
        for device in following(first, count) {
            let name = c_string(device.to_string());
            for access in QUESTIONS {
                let answer = if access == Access::MKNOD {
                    errno(self.make_node(device))
                } else {
                    self.access(&name, access_mode(access))
                };
                match answers.next() {
                    // Error numbers of Linux are small.
                    Some(place) => place.store(u8::try_from(answer).unwrap_or(u8::MAX), Relaxed),
                    None => return libc::E2BIG,
                }
            }
        }
        0
    }

    fn which(&self, name: &str) -> i32 {
        let opened = self.open(name, libc::O_RDONLY | libc::O_NONBLOCK);
        let identity = opened.and_then(|device| match FileType::from_raw_mode(fstat(&device)?.st_mode) {
            FileType::BlockDevice => loops::identity(&device),
            _ => network::identity(&device),
        });
        identity.map_or_else(Errno::raw_os_error, |name| Answer::of_device(name).0)
    }

    fn run(&self, name: &CString, attempt: Attempt, times: u64) -> i32 {
        let mut count = 0;
        while self.shared.stop.load(Relaxed) == 0 {
            let errno = match attempt {
                Attempt::Open(flags) => self.open_and_close(name, flags),
                Attempt::Access(mode) => self.access(name, mode),
                Attempt::Which => self.which(name.to_str().expect("names of nodes are plain")),
            };
            self.shared.count(errno);
            count += 1;
            // Without its test nobody would ever stop it.
            if count == times || (count % LOOK_UP == 0 && rustix::process::getppid() != self.parent) {
                break;
            }
        }
        0
    }

    fn open_and_close(&self, name: &CString, flags: i32) -> i32 {
        // SAFETY: the name ends with a zero.
        let fd = unsafe { libc::openat(self.nodes.as_raw_fd(), name.as_ptr(), flags | libc::O_CLOEXEC) };
        if fd >= 0 {
            // SAFETY: the descriptor is ours alone.
            unsafe { libc::close(fd) };
        }
        outcome(fd)
    }
}

static ZERO: u8 = 0;

fn c_string(name: String) -> CString {
    CString::new(name).expect("names of nodes have no zero")
}

fn errno(result: Result<(), Errno>) -> i32 {
    result.map_or_else(Errno::raw_os_error, |()| 0)
}
