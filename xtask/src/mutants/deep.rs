//! Faults that cargo-mutants makes up, in the crates that are quick to test.

use std::env;
use std::process::ExitCode;

use anyhow::Result;

use crate::command;
use crate::deps;
use crate::workspace::Workspace;

pub(super) fn run(workspace: &Workspace) -> Result<ExitCode> {
    let programs = deps::cargo_mutants(workspace)?;
    let path = env::var_os("PATH").unwrap_or_default();
    let path = env::join_paths(std::iter::once(programs).chain(env::split_paths(&path)))?;
    let mut mutants = workspace.cargo();
    mutants
        .env("PATH", path)
        .args(["mutants", "--package", "devgate-core", "--package", "devgate-abi", "--no-shuffle", "--output"])
        .arg(workspace.target().join("mutants"));
    Ok(crate::exit_code(command::status(&mut mutants)?))
}
