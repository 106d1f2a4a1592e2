//! The agent itself: `devgate run` in a process of its own.

use std::{
    ffi::OsString,
    fs::{self, File},
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

use crate::{lines::Lines, wait::wait_until};

/// What the agent logs once all sources have listed and what follows is in the kernel.
const READY: &str = "everything is known and in force";

/// A running agent. It is killed with the value, as by a crash: what it has done stays.
#[derive(Debug)]
pub struct RunningAgent {
    child: Child,
    log: Lines,
}

impl RunningAgent {
    /// Starts it with a configuration, and waits for nothing. `program` is the agent, with what starts it before it.
    pub(crate) fn launch(program: &[OsString], config: &Path, log: &Path) -> Result<Self> {
        let lines = Lines::from_now(log)?;
        let (first, rest) = program.split_first().context("a program is needed")?;
        let mut command = Command::new(first);
        command.args(rest).args(["run", "--config"]).arg(config).stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(File::options().append(true).open(log)?);
        let child = command.spawn().with_context(|| format!("cannot start {}", first.display()))?;
        Ok(Self { child, log: lines })
    }

    /// Waits until it knows everything and has carried it out in the kernel.
    pub fn until_ready(&mut self) -> Result<()> {
        self.until_logged(READY).map(drop)
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it logs a line with this in it.
    pub fn until_logged(&mut self, text: &str) -> Result<String> {
        self.log.wait(&format!("the agent logs {text:?}"), |line| line.contains(text).then(|| line.to_owned()))
    }

    /// All that was logged by it and by those before it.
    pub fn log(&self) -> Result<String> {
        self.log.text()
    }

    /// Ends it by SIGKILL, and waits until it has ended.
    pub fn kill(mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Asks it to end, and waits until it has.
    pub fn terminate(mut self) -> Result<ExitStatus> {
        kill_process(Pid::from_child(&self.child), Signal::TERM)?;
        Ok(self.child.wait()?)
    }

    /// Waits until it ends by itself.
    pub fn ended(mut self) -> Result<ExitStatus> {
        Ok(self.child.wait()?)
    }

    /// Stops it by SIGSTOP, and waits until it stands still.
    pub fn freeze(&self) -> Result<()> {
        kill_process(Pid::from_child(&self.child), Signal::STOP)?;
        let stat = format!("/proc/{}/stat", self.pid());
        wait_until("the agent stands still", || fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") T ")));
        Ok(())
    }

    /// Lets it go on.
    pub fn thaw(&self) -> Result<()> {
        Ok(kill_process(Pid::from_child(&self.child), Signal::CONT)?)
    }

    /// The processes that it has started and that still live: those that fork helpers, and the guard.
    pub fn children(&self) -> Result<Vec<u32>> {
        let pid = self.pid();
        let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))?;
        text.split_whitespace().map(|word| word.parse().with_context(|| format!("{word} is no process"))).collect()
    }
}

impl Drop for RunningAgent {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("the agent's log:\n{}", self.log.text().unwrap_or_default());
        }
    }
}

/// Runs a subcommand of the agent to its end with a configuration; returns what it prints.
pub(crate) fn subcommand(program: &Path, name: &str, config: &Path) -> Result<String> {
    let output = Command::new(program).args([name, "--config"]).arg(config).stdin(Stdio::null()).output()?;
    if !output.status.success() {
        bail!("devgate {name}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8(output.stdout)?)
}
