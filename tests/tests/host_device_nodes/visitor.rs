//! An agent in a process of its own: this very executable, started with a hidden argument. It visits one container when told to.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};

use anyhow::{Context, Result};
use devgate::executors::device_nodes::{Change, ContainerRef, HelperProcesses};
use serde::{Deserialize, Serialize};

use crate::container::{Container, cgroup_root};
use crate::executor::{block_on, config, node, path};
use crate::spec::Line;
use devgate::executors::device_nodes::{DeviceNodes, Outcome};

const VISITOR: &str = "visit-container";

/// What such an agent says after its visits.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Report {
    /// The process that forks its helpers.
    pub server: u32,
    /// How many files that has open.
    pub server_files: usize,
    /// How many files the agent itself has open.
    pub own_files: usize,
}

/// The agent, which is killed with this value.
pub(crate) struct Visitor {
    child: Child,
    line: Line,
}

impl Visitor {
    pub(crate) fn start(container: &Container) -> Result<Self> {
        let (ours, theirs) = UnixStream::pair()?;
        let child = Command::new("/proc/self/exe")
            .args([VISITOR, &container.pid.to_string(), &container.cgroup_id()?.to_string()])
            .stdin(Stdio::from(std::os::fd::OwnedFd::from(theirs)))
            .spawn()?;
        Ok(Self { child, line: Line::new(ours) })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Places and removes a node so many times.
    pub(crate) fn visit(&mut self, times: u32) -> Result<Report> {
        self.line.say(&times)?;
        self.line.hear().context("the agent has failed")
    }

    /// Ends it by SIGKILL.
    pub(crate) fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Visitor {
    fn drop(&mut self) {
        // It fails only if it has been killed before.
        let _ = self.kill();
    }
}

/// Runs the agent, if the arguments ask for it.
pub(crate) fn dispatch() -> Option<ExitCode> {
    let mut arguments = std::env::args().skip(1);
    if arguments.next()? != VISITOR {
        return None;
    }
    let result = run(arguments);
    if let Err(error) = &result {
        eprintln!("agent: {error:#}");
    }
    Some(if result.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn run(mut arguments: impl Iterator<Item = String>) -> Result<()> {
    let mut line = Line::new(UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?));
    let pid = arguments.next().context("no pid")?.parse()?;
    let cgroup = arguments.next().context("no cgroup")?.parse()?;
    let container = ContainerRef::find(pid, cgroup, Path::new("/proc"), &cgroup_root()?)?;
    block_on(async {
        let executor = HelperProcesses::new(config()?);
        while let Ok(times) = line.hear::<u32>() {
            for _ in 0..times {
                let outcomes = executor.visit(&container, vec![Change::Place(node("/dev/scanner"))]).await?;
                let [Outcome::Placed { mount_id }] = outcomes[..] else { anyhow::bail!("not placed: {outcomes:?}") };
                let remove = Change::Remove { path: path("/dev/scanner"), mount_id };
                executor.visit(&container, vec![remove]).await?;
            }
            let server = executor.server_pid().context("no server")?;
            line.say(&Report { server, server_files: files(&server.to_string())?, own_files: files("self")? })?;
        }
        Ok(())
    })
}

fn files(process: &str) -> Result<usize> {
    Ok(std::fs::read_dir(format!("/proc/{process}/fd"))?.count())
}
