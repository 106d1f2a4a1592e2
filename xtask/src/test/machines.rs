//! What the tests in virtual machines need: images of machines, and the endpoint that does in them what a test says.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use super::MEMBERS;
use crate::artifact;
use crate::build;
use crate::command;
use crate::deps::{self, Need};
use crate::workspace::Workspace;

/// Where the things are that the tests are told of.
#[derive(Clone, Debug)]
pub(crate) struct Machines {
    images: PathBuf,
    endpoint: PathBuf,
    logs: PathBuf,
}

impl Machines {
    /// Makes what is missing, which takes minutes the first time.
    pub(crate) fn prepare(workspace: &Workspace) -> Result<Self> {
        deps::ensure(Need::Vm)?;
        let machines = Self {
            images: workspace.target().join("machines"),
            endpoint: endpoint(workspace)?,
            logs: workspace.target().join("test-logs"),
        };
        let mut prepare = Command::new(build::program(workspace, "devgate-machine", MEMBERS, "dev")?);
        command::run(machines.tell(prepare.arg("prepare"))).context("cannot make the images of machines")?;
        Ok(machines)
    }

    /// Tells a program where the things are.
    pub(crate) fn tell<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command
            .env("DEVGATE_MACHINES", &self.images)
            .env("DEVGATE_ENDPOINT", &self.endpoint)
            .env("DEVGATE_TEST_LOGS", &self.logs)
    }
}

/// Builds the endpoint. It is linked statically, and so runs in every system; that takes a target folder of its own.
fn endpoint(workspace: &Workspace) -> Result<PathBuf> {
    let host = command::output(workspace.cargo().args(["-vV"]))?;
    let host =
        host.lines().find_map(|line| line.strip_prefix("host: ")).context("cargo does not say what it runs on")?;
    let messages = command::output(
        workspace
            .cargo()
            .env("RUSTFLAGS", "-Ctarget-feature=+crt-static")
            .args(["build", "--quiet", "--release", "--package", "devgate-endpoint", "--target", host])
            .arg("--message-format=json-render-diagnostics")
            .arg("--target-dir")
            .arg(workspace.target().join("endpoint")),
    )?;
    artifact::parse(&messages)?
        .into_iter()
        .find(|artifact| artifact.target == "devgate-endpoint")
        .map(|artifact| artifact.executable)
        .context("cargo built no endpoint")
}
