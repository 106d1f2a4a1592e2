//! `cargo xtask build`: the agent with its eBPF object.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;

use crate::command;
use crate::deps::{self, Need};
use crate::ebpf::{Builder, Options};
use crate::workspace::Workspace;

/// The arguments of `cargo xtask build`.
#[derive(Debug, Args)]
pub(crate) struct Build {
    /// Optimised, as it is deployed
    #[arg(long)]
    release: bool,
}

pub(crate) fn run(workspace: &Workspace, arguments: &Build) -> Result<()> {
    let profile = if arguments.release { "release" } else { "dev" };
    Builder::new(workspace)?.build(workspace, Options { debug_log: false })?;
    println!("{}", agent(workspace, &["--package", "devgate"], profile)?.display());
    Ok(())
}

/// Builds the `devgate` binary and tells where it is.
pub(crate) fn agent(workspace: &Workspace, selected: &[&str], profile: &str) -> Result<PathBuf> {
    program(workspace, "devgate", selected, profile)
}

/// Builds a binary and tells where it is. Cargo unites the features of the `selected` packages' dependencies.
pub(crate) fn program(workspace: &Workspace, name: &str, selected: &[&str], profile: &str) -> Result<PathBuf> {
    deps::ensure(Need::Build)?;
    let messages = command::output(
        workspace
            .cargo()
            .args(["build", "--quiet", "--bin", name, "--profile", profile])
            .arg("--message-format=json-render-diagnostics")
            .args(selected),
    )?;
    crate::artifact::parse(&messages)?
        .into_iter()
        .find(|artifact| artifact.target == name && !artifact.test)
        .map(|artifact| artifact.executable)
        .with_context(|| format!("cargo built no `{name}`"))
}
