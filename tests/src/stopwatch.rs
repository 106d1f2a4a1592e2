//! When things happen: what netlink tells of devices, and changes of a container's mounts.

use std::{
    fs::File,
    os::fd::{AsFd, OwnedFd},
    sync::mpsc::{self, Receiver, RecvTimeoutError},
    thread::{self, JoinHandle},
    time::Instant,
};

use anyhow::{Context, Result, bail};
use rustix::{
    event::{PollFd, PollFlags, poll},
    net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, netlink, recv, socket_with, sockopt},
    pipe::{PipeFlags, pipe_with},
};

use crate::{
    network::Network,
    wait::{PATIENCE, wait_for},
};

/// Who tells of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// The kernel, at once.
    Kernel,
    /// udev, when it has finished with the device.
    Udev,
}

/// A message about a device.
#[derive(Clone, Debug)]
pub struct Heard {
    /// When it came.
    pub at: Instant,
    text: String,
}

impl Heard {
    /// The value of one of its properties.
    pub fn property(&self, name: &str) -> Option<&str> {
        self.text.split('\0').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
    }
}

/// Notes when messages come in a network namespace, in a thread that runs before all others of the machine.
#[derive(Debug)]
pub struct Ear {
    heard: Receiver<Heard>,
    stop: Option<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Ear {
    /// Listens from here on.
    pub fn new(network: &Network, group: Group) -> Result<Self> {
        let socket = network.enter(|| {
            let protocol = Some(netlink::KOBJECT_UEVENT);
            let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, protocol)?;
            sockopt::set_socket_recv_buffer_size_force(&socket, 8 << 20)?;
            let number = match group {
                Group::Kernel => 1,
                Group::Udev => 2,
            };
            bind(&socket, &netlink::SocketAddrNetlink::new(0, number))?;
            Ok(socket)
        })?;
        let (stopped, stop) = pipe_with(PipeFlags::CLOEXEC)?;
        let (sender, heard) = mpsc::channel();
        let thread = thread::spawn(move || {
            run_first();
            listen(&socket, &stopped, &sender);
        });
        Ok(Self { heard, stop: Some(stop), thread: Some(thread) })
    }

    /// Waits for the message about an action in a subsystem; those before it are taken too.
    pub fn wait(&self, action: &str, subsystem: &str) -> Result<Heard> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.heard.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(heard)
                    if heard.property("ACTION") == Some(action) && heard.property("SUBSYSTEM") == Some(subsystem) =>
                {
                    return Ok(heard);
                }
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => bail!("in vain waited to hear of an `{action}` in {subsystem}"),
                Err(RecvTimeoutError::Disconnected) => bail!("nobody listens any more"),
            }
        }
    }
}

impl Drop for Ear {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
            && !thread::panicking()
        {
            panic!("the thread that listens has panicked");
        }
    }
}

fn listen(socket: &OwnedFd, stopped: &OwnedFd, sender: &mpsc::Sender<Heard>) {
    let mut message = [0; 8192];
    loop {
        let mut polled = [PollFd::new(socket, PollFlags::IN), PollFd::new(stopped, PollFlags::IN)];
        if poll(&mut polled, None).is_err() {
            continue;
        }
        if !polled[1].revents().is_empty() {
            return;
        }
        let at = Instant::now();
        // What was lost is missed by whoever waits for it.
        let Ok((length, _)) = recv(socket, &mut message[..], RecvFlags::empty()) else { continue };
        let text = String::from_utf8_lossy(&message[..length]).into_owned();
        if sender.send(Heard { at, text }).is_err() {
            return;
        }
    }
}

/// Lets this thread run as soon as it is woken, whatever else there is to do. Where that is not allowed, what it notes is
/// late, and what is measured from there on is too little by that much.
fn run_first() {
    let parameter = libc::sched_param { sched_priority: 1 };
    // SAFETY: the parameter is valid; the thread is this one.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameter) };
}

/// Does something in another thread while this one watches what comes of it.
pub fn meanwhile<A: Send, B>(
    act: impl FnOnce() -> Result<A> + Send,
    watch: impl FnOnce() -> Result<B>,
) -> Result<(A, B)> {
    thread::scope(|scope| {
        let acting = scope.spawn(act);
        let seen = watch();
        let acted = acting.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        Ok((acted?, seen?))
    })
}

/// The mounts of a container, watched by its mount namespace.
#[derive(Debug)]
pub struct Mounts(File);

impl Mounts {
    /// Watches the namespace of a process from here on.
    pub fn of(pid: u32) -> Result<Self> {
        let path = format!("/proc/{pid}/mountinfo");
        File::open(&path).map(Self).with_context(|| format!("cannot open {path}"))
    }

    /// Waits until the condition holds, and looks whenever a mount has been added or taken away.
    pub fn wait<T>(&self, what: &str, mut look: impl FnMut() -> Option<T>) -> Result<T> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(found) = look() {
                return Ok(found);
            }
            if !wait_for(self.0.as_fd(), PollFlags::PRI, deadline.saturating_duration_since(Instant::now())) {
                bail!("in vain waited until {what}");
            }
        }
    }
}

impl AsFd for Mounts {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}
