//! An agent in a process of its own, which can be killed, stopped and hindered.
//!
//! It is the test executable itself, started with a hidden argument. It opens an enforcer and then does as it is told.

use std::{
    io::{self, BufRead, BufReader, Write},
    path::PathBuf,
    process::{Child, ChildStdin, ChildStdout, Command, ExitCode, ExitStatus, Stdio},
};

use anyhow::{Context, Result, bail};
use devgate::executors::enforcer::{CgroupRoot, Enforcer, EnforcerConfig, Grant, KernelEnforcer, Scope, Unguarded};
use devgate_abi::{Access, DeviceNumber, Policy};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use serde::{Deserialize, Serialize};

use crate::{cgroup::TestCgroup, give::Give, hindrance::Hindrance};

/// The hidden argument.
const ARGUMENT: &str = "--be-the-agent-of-a-test";

/// The process. It is killed with the value; what it has put into the kernel stays until the
/// [`Scratch`](crate::Scratch) goes.
#[derive(Debug)]
pub struct Agent {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

/// What became of an agent that only opens, activates and ends.
#[derive(Debug)]
pub struct Attempted {
    /// How it ended.
    pub status: ExitStatus,
    /// What it logged, and the chain of errors that it ended with.
    pub said: String,
}

/// How an agent is started.
#[derive(Debug, Serialize, Deserialize)]
struct Setup {
    ancestor: PathBuf,
    pin_root: PathBuf,
    run_dir: PathBuf,
    net_namespace: PathBuf,
    executable: PathBuf,
    unguarded: Unguarded,
    activate: bool,
    hindrances: Vec<Hindrance>,
}

/// What it is told. Each order is a line, and so is its answer, a `Result<String, String>`.
#[derive(Debug, Serialize, Deserialize)]
enum Order {
    Manage { cgroup: PathBuf, policy: u32 },
    Give { cgroup: PathBuf, device: u64, access: u32, hotplug: bool },
    Check,
}

impl Agent {
    /// Starts an agent; when this returns it enforces.
    pub fn start(config: &EnforcerConfig) -> Result<Self> {
        Self::spawn(&Setup::of(config, true, &[]))
    }

    /// Starts an agent that has opened its enforcer and has not activated it.
    pub fn start_inactive(config: &EnforcerConfig) -> Result<Self> {
        Self::spawn(&Setup::of(config, false, &[]))
    }

    /// Lets a hindered agent open, activate and end.
    pub fn attempt(config: &EnforcerConfig, hindrances: &[Hindrance]) -> Result<Attempted> {
        let mut command = command(&Setup::of(config, true, hindrances))?;
        let output = command.stdin(Stdio::null()).stdout(Stdio::null()).output().context("cannot start an agent")?;
        Ok(Attempted { status: output.status, said: String::from_utf8_lossy(&output.stderr).into_owned() })
    }

    fn spawn(setup: &Setup) -> Result<Self> {
        let mut child = command(setup)?
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot start an agent")?;
        let orders = child.stdin.take().context("the agent has no input")?;
        let answers = BufReader::new(child.stdout.take().context("the agent has no output")?);
        let mut agent = Self { child, orders, answers };
        agent.hear().context("the agent cannot enforce")?;
        Ok(agent)
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Takes a cgroup under management.
    pub fn manage(&mut self, cgroup: &TestCgroup, policy: Policy) -> Result<()> {
        self.tell(&Order::Manage { cgroup: cgroup.path().to_owned(), policy: policy.0 }).map(drop)
    }

    /// Reads the epoch and grants.
    pub fn give(&mut self, cgroup: &TestCgroup, device: DeviceNumber, access: Access, hotplug: bool) -> Result<()> {
        let cgroup = cgroup.path().to_owned();
        let outcome = self.tell(&Order::Give { cgroup, device: device.bits(), access: access.bits(), hotplug })?;
        if outcome == "Granted" { Ok(()) } else { bail!("the agent did not grant: {outcome}") }
    }

    /// Lets it check. Returns what it found.
    pub fn check(&mut self) -> Result<String> {
        self.tell(&Order::Check)
    }

    /// Ends it by SIGKILL, and waits until it has ended.
    pub fn kill(mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Stops it by SIGSTOP, and waits until it stands still.
    pub fn freeze(&self) -> Result<()> {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::STOP)?;
        waitid(WaitId::Pid(pid), WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT)?;
        Ok(())
    }

    /// Lets it go on.
    pub fn thaw(&self) -> Result<()> {
        Ok(kill_process(Pid::from_child(&self.child), Signal::CONT)?)
    }

    fn tell(&mut self, order: &Order) -> Result<String> {
        writeln!(self.orders, "{}", serde_json::to_string(order)?)?;
        self.hear()
    }

    fn hear(&mut self) -> Result<String> {
        let mut line = String::new();
        if self.answers.read_line(&mut line)? == 0 {
            bail!("the agent has ended");
        }
        serde_json::from_str::<Result<String, String>>(&line)?.map_err(anyhow::Error::msg)
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Setup {
    fn of(config: &EnforcerConfig, activate: bool, hindrances: &[Hindrance]) -> Self {
        Self {
            ancestor: config.ancestor.clone(),
            pin_root: config.pin_root.clone(),
            run_dir: config.run_dir.clone(),
            net_namespace: config.net_namespace.clone(),
            executable: config.executable.clone(),
            unguarded: config.unguarded,
            activate,
            hindrances: hindrances.to_vec(),
        }
    }

    fn open(self) -> Result<KernelEnforcer> {
        for hindrance in self.hindrances {
            hindrance.impose()?;
        }
        let mut enforcer = KernelEnforcer::open(EnforcerConfig {
            ancestor: self.ancestor,
            pin_root: self.pin_root,
            run_dir: self.run_dir,
            net_namespace: self.net_namespace,
            executable: self.executable,
            unguarded: self.unguarded,
            ..EnforcerConfig::default()
        })?;
        if self.activate {
            enforcer.activate()?;
        }
        Ok(enforcer)
    }
}

fn command(setup: &Setup) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(ARGUMENT).arg(serde_json::to_string(setup)?);
    Ok(command)
}

/// Is an agent until the test ends it, if the command line says so; else does nothing.
pub(crate) fn dispatch() -> Option<ExitCode> {
    let mut arguments = std::env::args().skip(1);
    if arguments.next()? != ARGUMENT {
        return None;
    }
    tracing_subscriber::fmt().with_writer(io::stderr).with_ansi(false).init();
    Some(match obey_all(&arguments.next()?) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    })
}

fn obey_all(setup: &str) -> Result<()> {
    let answer = |result: &Result<String, String>| -> Result<()> {
        let mut out = io::stdout().lock();
        writeln!(out, "{}", serde_json::to_string(result)?)?;
        Ok(out.flush()?)
    };
    let mut enforcer = match serde_json::from_str::<Setup>(setup)?.open() {
        Ok(enforcer) => enforcer,
        Err(error) => {
            answer(&Err(format!("{error:#}")))?;
            return Err(error);
        }
    };
    answer(&Ok("ready".to_owned()))?;
    for line in io::stdin().lines() {
        let result = obey(&mut enforcer, serde_json::from_str(&line?)?);
        answer(&result.map_err(|error| format!("{error:#}")))?;
    }
    Ok(())
}

fn obey(enforcer: &mut KernelEnforcer, order: Order) -> Result<String> {
    let root = CgroupRoot::find()?;
    Ok(match order {
        Order::Manage { cgroup, policy } => {
            enforcer.manage(&root.cgroup(&cgroup)?, Policy(policy))?;
            String::new()
        }
        Order::Give { cgroup, device, access, hotplug } => {
            let access = Access::from_bits(access);
            let grant = Grant { access, scope: Scope::Exact, hotplug, expires_at: None, rule_id: 1, generation: 1 };
            let outcome = enforcer.give(&root.cgroup(&cgroup)?, DeviceNumber::from_bits(device), &grant)?;
            format!("{outcome:?}")
        }
        Order::Check => {
            let drifts = enforcer.check()?;
            drifts.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
        }
    })
}
