//! The process that asks for device nodes.
//!
//! It is this program, started again: it moves into a cgroup, and then for each line on its input makes a number of
//! accesses to nodes in random order and answers with a line.

use std::{
    ffi::CString,
    fs::File,
    io::{BufRead, BufReader, Write},
    os::fd::AsFd,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use anyhow::{Context, Result, bail, ensure};
use rustix::{
    event::{PollFd, PollFlags, poll},
    fs::{Access, AtFlags, accessat},
    io::Errno,
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
pub(super) struct Place {
    /// The folder of the cgroup.
    pub(super) cgroup: PathBuf,
    /// The folder of the nodes.
    pub(super) nodes: PathBuf,
    /// How many there are.
    pub(super) count: usize,
    /// Whether the accesses must be allowed; else all must be denied.
    pub(super) allowed: bool,
}

impl Worker {
    pub(super) fn start(place: &Place) -> Result<Self> {
        let mut child = Command::new("/proc/self/exe")
            .arg(VERB)
            .args([&place.cgroup, &place.nodes])
            .args([place.count.to_string(), place.allowed.to_string()])
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

    /// Has it make `count` accesses. Calls `meanwhile` again and again until they are done.
    pub(super) fn ask(&mut self, count: usize, seed: u64, mut meanwhile: impl FnMut()) -> Result<()> {
        let orders = self.orders.as_mut().context("the worker takes no orders any more")?;
        writeln!(orders, "{count} {seed}").context("cannot tell a worker what to do")?;
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
    let [cgroup, nodes, count, allowed] = arguments else { bail!("wrong arguments for a worker") };
    std::fs::write(Path::new(cgroup).join("cgroup.procs"), "0").context("cannot move into the cgroup")?;
    stay_on_last_cpu()?;
    let folder = File::open(nodes).context("cannot open the folder of the nodes")?;
    let names: Vec<CString> = (0..count.parse::<usize>()?)
        .map(|index| CString::new(index.to_string()))
        .collect::<Result<_, _>>()
        .context("a name has a zero in it")?;
    let expected = if allowed == "true" { Ok(()) } else { Err(Errno::PERM) };
    println!("done");
    for line in std::io::stdin().lines() {
        let line = line?;
        let (count, seed) = line.split_once(' ').context("an order is two numbers")?;
        let (count, mut random) = (count.parse::<usize>()?, Random(seed.parse()?));
        for _ in 0..count {
            let name = &names[random.below(names.len())];
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
