//! The guard: a small process that holds the socket whose filter voids the grants of removed devices, and the program
//! array without which grants of devices that can be unplugged are denied where that is configured.
//!
//! It reads nothing and never wakes: the filter drops every message. It outlives the agent, and the next agent puts a
//! guard of its own in its place: the new one hears uevents before the old one ends. A lock on a file names the present
//! guard.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read, Write},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::{fs::OpenOptionsExt, net::UnixStream},
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    fs::{FlockOperation, fcntl_lock},
    net::{AddressFamily, SocketFlags, SocketType, bind, netlink, socket_with, sockopt},
    process::{Flock, FlockType, Pid, PidfdFlags, Signal, fcntl_getlk, pidfd_open, pidfd_send_signal, setsid},
    thread::{CapabilitySet, CapabilitySets, LinkNameSpaceType, move_into_link_name_space, set_capabilities},
};

use super::{config::EnforcerConfig, error::EnforcerError, layout::private_folder, load::Programs};

/// How long a guard may take to start or to end.
const PATIENCE: Duration = Duration::from_secs(5);
/// The kernel's own group of uevents.
const KERNEL_GROUP: u32 = 1;
const HEARING: u8 = b'h';
const TAKE_CHARGE: u8 = b't';
const LOCKED: u8 = b'l';

/// The guard that this agent has started.
#[derive(Debug)]
pub(super) struct Guard {
    child: Child,
    line: UnixStream,
    lock: PathBuf,
    in_charge: bool,
}

impl Guard {
    /// Starts a guard. When this returns, the kernel voids the grants of whatever is removed.
    pub(super) fn start(config: &EnforcerConfig, programs: &mut Programs) -> Result<Self, EnforcerError> {
        private_folder(&config.run_dir)?;
        let socket = uevent_socket(&config.net_namespace, programs.uevent.as_fd()).map_err(EnforcerError::Guard)?;
        let guarded = programs.guarded.take();
        let lock = lock_path(&config.run_dir);
        let (line, theirs) = UnixStream::pair().map_err(EnforcerError::Guard)?;
        let child = Command::new(&config.executable)
            .arg("guard")
            .arg(&lock)
            .stdin(socket)
            .stdout(guarded.map_or_else(Stdio::null, Stdio::from))
            .stderr(Stdio::from(OwnedFd::from(theirs)))
            .current_dir("/")
            .env_clear()
            .spawn()
            .map_err(EnforcerError::Guard)?;
        let mut guard = Self { child, line, lock, in_charge: false };
        guard.hear(HEARING).map_err(EnforcerError::Guard)?;
        Ok(guard)
    }

    /// Ends the guard before this one, and waits until this one is known by the lock.
    pub(super) fn take_over(&mut self) -> Result<(), EnforcerError> {
        end(&self.lock, Some(self.child.id())).map_err(EnforcerError::Guard)?;
        if !self.in_charge {
            self.line.write_all(&[TAKE_CHARGE]).map_err(EnforcerError::Guard)?;
            self.hear(LOCKED).map_err(EnforcerError::Guard)?;
            self.in_charge = true;
        }
        Ok(())
    }

    /// A descriptor that becomes readable when the process ends.
    pub(super) fn pidfd(&self) -> io::Result<OwnedFd> {
        let pid = Pid::from_raw(self.child.id().cast_signed()).ok_or(io::ErrorKind::InvalidData)?;
        Ok(pidfd_open(pid, PidfdFlags::empty())?)
    }

    /// Whether it lives.
    pub(super) fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits for a word of the guard; whatever else it says is the text of an error.
    fn hear(&mut self, word: u8) -> io::Result<()> {
        wait_readable(self.line.as_fd())?;
        let mut said = [0];
        match self.line.read(&mut said)? {
            1 if said[0] == word => Ok(()),
            count => {
                let mut text = said[..count].to_vec();
                self.line.read_to_end(&mut text)?;
                Err(io::Error::other(format!("it said: {}", String::from_utf8_lossy(&text).trim())))
            }
        }
    }
}

/// A guard that never came into charge ends; another stays, and is only reaped if it has ended.
impl Drop for Guard {
    fn drop(&mut self) {
        if self.in_charge {
            let _ = self.child.try_wait();
        } else {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// The guard that holds the lock, if one lives.
pub(super) fn running(run_dir: &Path) -> io::Result<Option<Pid>> {
    holder(&lock_path(run_dir))
}

/// Ends the guard that holds the lock, if one lives.
pub(super) fn end_running(run_dir: &Path) -> io::Result<()> {
    end(&lock_path(run_dir), None)
}

fn lock_path(run_dir: &Path) -> PathBuf {
    run_dir.join("guard.lock")
}

fn holder(lock: &Path) -> io::Result<Option<Pid>> {
    let file = match OpenOptions::new().read(true).write(true).custom_flags(libc::O_NOFOLLOW).open(lock) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    Ok(fcntl_getlk(&file, &Flock::from(FlockType::WriteLock))?.and_then(|lock| lock.pid))
}

fn end(lock: &Path, but: Option<u32>) -> io::Result<()> {
    loop {
        let Some(pid) = holder(lock)? else { return Ok(()) };
        if but == Some(pid.as_raw_nonzero().get().cast_unsigned()) {
            return Ok(());
        }
        let pidfd = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(pidfd) => pidfd,
            Err(rustix::io::Errno::SRCH) => continue,
            Err(error) => return Err(error.into()),
        };
        // The number may have passed to another process before the descriptor was opened; not if it still has the lock.
        if holder(lock)? != Some(pid) {
            continue;
        }
        pidfd_send_signal(&pidfd, Signal::TERM)?;
        wait_readable(pidfd.as_fd())?;
    }
}

fn wait_readable(fd: BorrowedFd<'_>) -> io::Result<()> {
    let timeout = rustix::time::Timespec { tv_sec: PATIENCE.as_secs().cast_signed(), tv_nsec: 0 };
    match poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&timeout))? {
        0 => Err(io::Error::new(io::ErrorKind::TimedOut, format!("no answer in {} s", PATIENCE.as_secs()))),
        _ => Ok(()),
    }
}

/// Opens a socket for the kernel's uevents of a network namespace, with the filter in place before the first message.
fn uevent_socket(namespace: &Path, filter: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let namespace = File::open(namespace).map_err(|error| {
        let text = format!(
            "{}: {error}; it must be the host's network namespace, see `enforcer.netNamespace`",
            namespace.display()
        );
        io::Error::new(error.kind(), text)
    })?;
    // A thread of its own enters the namespace, so that no other thread leaves the agent's.
    thread::scope(|scope| {
        scope
            .spawn(|| {
                move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
                let protocol = Some(netlink::KOBJECT_UEVENT);
                let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, protocol)?;
                sockopt::set_socket_recv_buffer_size(&socket, 0)?;
                attach_filter(socket.as_fd(), filter)?;
                bind(&socket, &netlink::SocketAddrNetlink::new(0, KERNEL_GROUP))?;
                Ok(socket)
            })
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("the thread that opens the uevent socket panicked")))
    })
}

fn attach_filter(socket: BorrowedFd<'_>, filter: BorrowedFd<'_>) -> io::Result<()> {
    let filter = filter.as_raw_fd();
    // SAFETY: the option's value is a descriptor of the length given (socket(7), Linux 3.19).
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_BPF,
            (&raw const filter).cast(),
            size_of_val(&filter) as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The guard process: holds its descriptors 0 (socket) and 1 (program array, or nothing) until it is ended by a signal. Descriptor 2
/// is the line to its agent, until it is in charge.
pub fn guard_main(lock: &Path) -> io::Result<std::convert::Infallible> {
    close_others()?;
    // Out of the terminal's and the service manager's way. It fails only for a process that leads a session already.
    let _ = setsid();
    // The kernel should look for memory elsewhere first; without this the guard works too.
    let _ = std::fs::write("/proc/self/oom_score_adj", "-900");
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(lock)?;
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?;
    let mut reports = io::stderr();
    reports.write_all(&[HEARING])?;
    await_charge()?;
    fcntl_lock(&file, FlockOperation::LockExclusive)?;
    reports.write_all(&[LOCKED])?;
    rustix::stdio::dup2_stderr(File::open("/dev/null")?)?;
    loop {
        rustix::event::pause();
    }
}

/// Closes what an agent may have left open for its children: the guard would hold it long after the agent's end.
fn close_others() -> io::Result<()> {
    // SAFETY: this process has opened nothing yet but its three standard descriptors, which stay (Linux 5.9).
    let result = unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Until it is told to take charge the guard belongs to its agent and ends with it: one that waited for the lock would
/// come into charge with the programs of an agent that has never enforced.
fn await_charge() -> io::Result<()> {
    let mut told = [0];
    match rustix::io::retry_on_intr(|| rustix::io::read(rustix::stdio::stderr(), &mut told))? {
        1 if told[0] == TAKE_CHARGE => Ok(()),
        _ => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the agent ended before it enforced")),
    }
}
