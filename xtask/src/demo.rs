//! `cargo xtask demo`: shows on this machine what the agent does.

use std::os::unix::process::CommandExt as _;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::bench;
use crate::command;
use crate::deps::{self, Need};
use crate::workspace::Workspace;

/// The arguments of `cargo xtask demo`.
#[derive(Debug, Args)]
pub(crate) struct Demo {
    /// What to tell the demonstration
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    rest: Vec<String>,
}

pub(crate) fn run(workspace: &Workspace, arguments: &Demo) -> Result<ExitCode> {
    if !command::is_root() {
        bail!("the demonstration needs root, as the agent does: run `sudo cargo xtask demo`");
    }
    bench::require(workspace, "demo", "")?;
    deps::ensure(Need::Host)?;
    let mut demo = bench::command(workspace, "demo")?;
    // It takes this process's place: a signal from the terminal is its own, and the shell waits until it has cleaned up.
    let error = demo.args(&arguments.rest).exec();
    Err(error).context("cannot start the demonstration")
}
