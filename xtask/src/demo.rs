//! `cargo xtask demo`: shows on this machine what the agent does.

use std::process::{Command, ExitCode};

use anyhow::Result;
use clap::Args;

use crate::bench;
use crate::bpffs;
use crate::build;
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
    bench::require(workspace, "demo", "")?;
    let _bpffs = bpffs::ensure()?;
    deps::ensure(Need::Host)?;
    let program = bench::program(workspace, "demo", "dev")?;
    let agent = build::agent(workspace, &["--package", "devgate"], "dev")?;
    Ok(crate::exit_code(command::status(Command::new(program).env("DEVGATE_BIN", agent).args(&arguments.rest))?))
}
