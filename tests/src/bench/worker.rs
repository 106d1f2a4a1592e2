//! The process that asks.
//!
//! It is this program, started again: it moves into a cgroup, and then for each line on its input it asks a number of
//! times for some of its devices and answers with a line.

use std::{
    ffi::CString,
    fs::File,
    io::{BufRead, BufReader, Write},
    ops::Range,
    os::fd::AsFd,
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use anyhow::{Context, Result, bail, ensure};
use rustix::{
    event::{PollFd, PollFlags, poll},
    fs::{Access, AtFlags, accessat},
    io::Errno,
    process::setpriority_process,
    thread::{CpuSet, sched_getaffinity, sched_setaffinity},
    time::Timespec,
};

use super::random::Random;

/// The first argument that makes this program a worker.
pub const VERB: &str = "worker";

/// A worker that waits for orders. It ends when its input does.
pub(super) struct Worker {
    child: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

/// What a worker is told when it is started.
#[derive(Clone, Debug)]
pub(super) struct Place<'a> {
    /// The folder of the cgroup.
    pub(super) cgroup: &'a Path,
    /// The folder of the nodes.
    pub(super) folder: &'a Path,
    /// Which of them it asks for.
    pub(super) nodes: Range<usize>,
    /// Whether they must be allowed; else all must be denied.
    pub(super) allowed: bool,
}

/// What is to be asked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Order {
    /// How often.
    pub(super) questions: usize,
    /// For how many nodes, which are chosen at random.
    pub(super) nodes: usize,
    /// Decides which.
    pub(super) seed: u64,
}

impl Worker {
    pub(super) fn start(place: &Place<'_>) -> Result<Self> {
        let mut child = Command::new("/proc/self/exe")
            .arg(VERB)
            .args([place.cgroup, place.folder])
            .args([place.nodes.start.to_string(), place.nodes.end.to_string(), place.allowed.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start a worker")?;
        let orders = child.stdin.take();
        let answers = BufReader::new(child.stdout.take().context("a worker has no output")?);
        let mut worker = Self { child, orders, answers };
        worker.hear()?;
        Ok(worker)
    }

    /// Has it ask. Calls `meanwhile` again and again until that is done.
    pub(super) fn ask(&mut self, order: Order, mut meanwhile: impl FnMut()) -> Result<()> {
        let orders = self.orders.as_mut().context("the worker takes no orders any more")?;
        let Order { questions, nodes, seed } = order;
        writeln!(orders, "{questions} {nodes} {seed}").context("cannot tell a worker what to do")?;
        let pause = Timespec { tv_sec: 0, tv_nsec: 500_000 };
        loop {
            let fd = self.answers.get_ref().as_fd();
            let ready = poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&pause))?;
            meanwhile();
            if ready > 0 {
                return self.hear();
            }
        }
    }

    fn hear(&mut self) -> Result<()> {
        let mut line = String::new();
        self.answers.read_line(&mut line).context("cannot hear a worker")?;
        ensure!(line == "done\n", "a worker failed");
        Ok(())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.orders = None;
        if let Err(error) = self.child.wait() {
            eprintln!("cannot wait for a worker: {error}");
        }
    }
}

/// What a worker does.
pub fn main(arguments: &[String]) -> Result<()> {
    let [cgroup, folder, first, end, allowed] = arguments else { bail!("wrong arguments for a worker") };
    std::fs::write(Path::new(cgroup).join("cgroup.procs"), "0").context("cannot move into the cgroup")?;
    stay_on_last_cpu()?;
    // What else runs on this CPU drives our data out of its caches. Without the right to it, the figures are worse.
    let _ = setpriority_process(None, -20);
    let folder = File::open(folder).context("cannot open the folder of the nodes")?;
    let mut names = (first.parse::<usize>()?..end.parse()?)
        .map(|number| CString::new(number.to_string()).context("a number has a zero byte"))
        .collect::<Result<Vec<_>>>()?;
    let expected = if allowed == "true" { Ok(()) } else { Err(Errno::PERM) };
    println!("done");
    for line in std::io::stdin().lines() {
        let line = line?;
        let numbers = line.split(' ').map(str::parse).collect::<Result<Vec<u64>, _>>()?;
        let [questions, nodes, seed] = numbers[..] else { bail!("an order has three numbers") };
        let mut random = Random(seed);
        random.shuffle(&mut names);
        let chosen = &names[..names.len().min(nodes as usize)];
        for _ in 0..questions {
            let name = &chosen[random.below(chosen.len())];
            let answer = accessat(&folder, name, Access::READ_OK, AtFlags::empty());
            ensure!(answer == expected, "the node {name:?} answered {answer:?} and not {expected:?}");
        }
        println!("done");
    }
    Ok(())
}

/// All workers run where the one that gives the orders does not have to.
fn stay_on_last_cpu() -> Result<()> {
    let may = sched_getaffinity(None).context("cannot ask for the CPUs")?;
    let last = (0..CpuSet::MAX_CPU).rev().find(|&cpu| may.is_set(cpu)).context("there is no CPU")?;
    let mut only = CpuSet::new();
    only.set(last);
    sched_setaffinity(None, &only).context("cannot stay on one CPU")
}
