//! A process in a cgroup that tries accesses and tells what the kernel answered.
//!
//! It is the test executable itself, started with a hidden argument, and moved into the cgroup before the first attempt.

mod answer;
mod child;
mod order;
mod run;
mod shared;

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    process::{Child, Command, Stdio},
    sync::{Arc, atomic::Ordering::Relaxed},
};

use anyhow::{Context, Result};
use devgate_abi::{Access, DeviceNumber};

pub use answer::{ALLOWED, Answer, DENIED, NO_DEVICE};
pub use child::dispatch;
pub use run::{Attempt, Counts, Run};

use crate::{cgroup::TestCgroup, nodes::Nodes};
use order::{Line, Order};
use shared::Shared;

/// The name of a prober's thread, which audit records carry.
pub const COMM: &str = "devgate-prober";

/// The hidden argument.
const ARGUMENT: &str = "--be-the-prober-of-a-test";

/// The process. It ends with the value.
///
/// Its methods panic if the process has ended, which only a fault of the harness makes it do.
#[derive(Debug)]
pub struct Prober {
    child: Child,
    line: Line,
    shared: Arc<Shared>,
    nodes: OwnedFd,
}

/// The questions of a [survey](Prober::survey): all that can be asked about a device without touching it.
pub const QUESTIONS: [Access; 5] = [Access::NONE, Access::READ, Access::WRITE, Access::READ_WRITE, Access::MKNOD];

/// A descriptor that a prober keeps open.
#[derive(Debug)]
pub struct Held(i32);

impl Prober {
    /// Starts the process.
    pub fn start(cgroup: &TestCgroup, nodes: &Nodes) -> Result<Self> {
        let (line, theirs) = Line::pair()?;
        let (shared, memory) = Shared::new()?;
        let child = Command::new(std::env::current_exe()?)
            .arg(ARGUMENT)
            .stdin(theirs)
            .stdout(Stdio::null())
            .spawn()
            .context("cannot start a prober")?;
        let mut prober = Self { child, line, shared: Arc::new(shared), nodes: nodes.as_fd().try_clone_to_owned()? };
        prober.line.send_fds([nodes.as_fd(), memory.as_fd()]).context("cannot set up a prober")?;
        prober.move_to(cgroup)?;
        Ok(prober)
    }

    /// Moves the process to another cgroup.
    pub fn move_to(&mut self, cgroup: &TestCgroup) -> Result<()> {
        cgroup.take(self.pid())
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Opens a device's node for reading, writing or both, and closes it.
    pub fn open(&mut self, device: DeviceNumber, access: Access) -> Answer {
        self.open_with(device, open_flags(access))
    }

    /// Opens a device's node with flags of `open(2)`, and closes it.
    pub fn open_with(&mut self, device: DeviceNumber, flags: i32) -> Answer {
        let name = self.node(device);
        self.ask(&Order::Open { name, flags })
    }

    /// Opens the file at a path, whatever it is, and closes it.
    pub fn open_path(&mut self, path: &str, access: Access) -> Answer {
        self.ask(&Order::Open { name: path.to_owned(), flags: open_flags(access) })
    }

    /// Asks by `access(2)`; for nothing (`F_OK`) with [`Access::NONE`].
    pub fn access(&mut self, device: DeviceNumber, access: Access) -> Answer {
        let name = self.node(device);
        self.ask(&Order::Access { name, mode: access_mode(access) })
    }

    /// Makes a node and removes it again.
    pub fn mknod(&mut self, device: DeviceNumber) -> Answer {
        self.ask(&Order::MakeNode { device: device.bits() })
    }

    /// Puts a watch of `inotify(7)` on a device's node, and removes it.
    pub fn watch(&mut self, device: DeviceNumber) -> Answer {
        let name = self.node(device);
        self.ask(&Order::Watch { name })
    }

    /// Looks at a device's node by `stat(2)`.
    pub fn stat(&mut self, device: DeviceNumber) -> Answer {
        let name = self.node(device);
        self.ask(&Order::Stat { name })
    }

    /// Opens a device's node and asks the device which it is: [`Answer::of_device`] with the name that a
    /// [`LoopDevice`](crate::loops::LoopDevice) was loaded or a device of [`Taps`](crate::network::Taps) plugged with.
    /// The number of a node says nothing of that.
    pub fn which(&mut self, device: DeviceNumber) -> Answer {
        let name = self.node(device);
        self.ask(&Order::Which { name })
    }

    /// The same of the node at a path.
    pub fn which_path(&mut self, path: &str) -> Answer {
        self.ask(&Order::Which { name: path.to_owned() })
    }

    /// Opens the file at a path, and keeps it open. Closing a device may take its driver much longer than opening it.
    pub fn hold_path(&mut self, path: &str, access: Access) -> Result<Held, Answer> {
        self.hold_named(path.to_owned(), open_flags(access))
    }

    /// Opens a device's node with flags of `open(2)`, and keeps it open.
    pub fn hold(&mut self, device: DeviceNumber, flags: i32) -> Result<Held, Answer> {
        let name = self.node(device);
        self.hold_named(name, flags)
    }

    fn hold_named(&mut self, name: String, flags: i32) -> Result<Held, Answer> {
        let fd = self.number(&Order::Hold { name, flags });
        if fd < 0 { Err(Answer(-fd)) } else { Ok(Held(fd)) }
    }

    /// Opens what it holds anew, through `/proc/self/fd`, and closes it.
    pub fn reopen(&mut self, held: &Held, access: Access) -> Answer {
        self.ask(&Order::Reopen { fd: held.0, flags: open_flags(access) })
    }

    /// Reads from what it holds, whatever comes of it: not more than one byte.
    pub fn read(&mut self, held: &Held) -> Answer {
        self.ask(&Order::Read { fd: held.0 })
    }

    /// Writes a zero byte to what it holds.
    pub fn write(&mut self, held: &Held) -> Answer {
        self.ask(&Order::Write { fd: held.0 })
    }

    /// Closes what it holds.
    pub fn close(&mut self, Held(fd): Held) {
        self.ask(&Order::Close { fd });
    }

    /// Tries again and again, as fast as it can, until the [`Run`] is stopped.
    pub fn run(&mut self, device: DeviceNumber, attempt: Attempt) -> Run<'_> {
        let name = self.node(device);
        Run::start(self, name, attempt, 0)
    }

    /// The same with the node at a path.
    pub fn run_path(&mut self, path: &str, attempt: Attempt) -> Run<'_> {
        Run::start(self, path.to_owned(), attempt, 0)
    }

    /// Tries so many times, as fast as it can, and returns what came of it.
    pub fn repeat(&mut self, device: DeviceNumber, attempt: Attempt, times: u64) -> Counts {
        let name = self.node(device);
        Run::start(self, name, attempt, times).finish()
    }

    /// Asks all [`QUESTIONS`] about each of `count` devices whose numbers follow each other, one device after the other,
    /// each by one call that runs the device programs once. Returns the answers in that order.
    pub fn survey(&mut self, first: DeviceNumber, count: u32) -> Vec<Answer> {
        for device in order::following(first, count) {
            self.node(device);
        }
        self.ask(&Order::Survey { first: first.bits(), count });
        let answers = &self.shared.answers[..count as usize * QUESTIONS.len()];
        answers.iter().map(|answer| Answer(i32::from(answer.load(Relaxed)))).collect()
    }

    /// Makes sure that the device has a node.
    fn node(&self, device: DeviceNumber) -> String {
        crate::nodes::ensure(self.nodes.as_fd(), device).expect("a node of any number can be made")
    }

    fn ask(&mut self, order: &Order) -> Answer {
        Answer(self.number(order))
    }

    fn number(&mut self, order: &Order) -> i32 {
        self.say(order);
        self.hear()
    }

    fn say(&self, order: &Order) {
        self.line.send(order).expect("the prober lives");
    }

    fn hear(&self) -> i32 {
        self.line.receive().expect("the prober lives").expect("the prober lives")
    }
}

impl Drop for Prober {
    fn drop(&mut self) {
        // It may be about anything, and has nothing to clean up.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Never waits for a device and never makes it a terminal.
fn open_flags(access: Access) -> i32 {
    let mode = match (access.contains(Access::READ), access.contains(Access::WRITE)) {
        (_, false) => libc::O_RDONLY,
        (false, true) => libc::O_WRONLY,
        (true, true) => libc::O_RDWR,
    };
    mode | libc::O_NONBLOCK | libc::O_NOCTTY
}

fn access_mode(access: Access) -> i32 {
    let bit = |of, mode| if access.contains(of) { mode } else { libc::F_OK };
    bit(Access::READ, libc::R_OK) | bit(Access::WRITE, libc::W_OK)
}

/// The error number of the last call, or 0.
fn outcome(result: i32) -> i32 {
    if result < 0 { io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO) } else { 0 }
}
