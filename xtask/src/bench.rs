//! `cargo xtask bench`: runs one of the benchmarks, which are the programs `bench-*` of the tests' package.

use std::path::{self, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::artifact;
use crate::bpffs;
use crate::command;
use crate::deps::{self, Need};
use crate::ebpf::{Builder, Options};
use crate::metadata::Metadata;
use crate::workspace::Workspace;

/// The package that has them.
const PACKAGE: &str = "devgate-tests";

/// The arguments of `cargo xtask bench`.
#[derive(Debug, Args)]
pub(crate) struct Bench {
    /// Which one, such as `verdict`
    name: String,

    /// Write the figures to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// What else to tell the benchmark
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    rest: Vec<String>,
}

pub(crate) fn run(workspace: &Workspace, arguments: &Bench) -> Result<ExitCode> {
    let binary = format!("bench-{}", arguments.name);
    require(workspace, &binary, "bench-")?;
    let _bpffs = bpffs::ensure()?;
    deps::ensure(Need::Host)?;
    let mut program = command(workspace, &binary)?;
    if let Some(file) = &arguments.json {
        program.arg("--json").arg(path::absolute(file).context("cannot find the folder of the JSON file")?);
    }
    Ok(crate::exit_code(command::status(program.args(&arguments.rest))?))
}

/// Refuses a program that the tests' package does not have, with those that it has.
pub(crate) fn require(workspace: &Workspace, binary: &str, prefix: &str) -> Result<()> {
    let metadata = Metadata::read(workspace)?;
    let binaries = metadata.binaries(PACKAGE);
    if binaries.contains(&binary) {
        return Ok(());
    }
    let known: Vec<_> = binaries.into_iter().filter_map(|name| name.strip_prefix(prefix)).collect();
    bail!(
        "there is no `{binary}` in {PACKAGE}; there are: {}",
        if known.is_empty() { "none".to_owned() } else { known.join(", ") }
    )
}

/// Builds a program of the tests' package and the agent, as they are deployed. The program finds the agent by
/// `DEVGATE_BIN`.
pub(crate) fn command(workspace: &Workspace, binary: &str) -> Result<Command> {
    Builder::new(workspace)?.build(workspace, Options { debug_log: false })?;
    deps::ensure(Need::Build)?;
    let mut build = workspace.cargo();
    // Both at once, so that what they share is built once, with the features of both.
    build.args(["build", "--quiet", "--release", "--package", "devgate", "--package", PACKAGE, "--bin", "devgate"]);
    build.args(["--bin", binary, "--message-format=json-render-diagnostics"]);
    let artifacts = artifact::parse(&command::output(&mut build)?)?;
    let find = |name: &str| {
        let found = artifacts.iter().find(|artifact| artifact.target == name);
        found.map(|artifact| &artifact.executable).with_context(|| format!("cargo built no `{name}`"))
    };
    let mut command = Command::new(find(binary)?);
    command.env("DEVGATE_BIN", find("devgate")?);
    Ok(command)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Command {
        #[command(flatten)]
        bench: Bench,
    }

    #[test]
    fn own_arguments_are_taken_and_others_passed_on() {
        let words = ["bench", "verdict", "--json", "f.json", "--rounds", "5"];
        let Command { bench } = Command::try_parse_from(words).unwrap();
        assert_eq!((bench.name.as_str(), bench.json), ("verdict", Some("f.json".into())));
        assert_eq!(bench.rest, ["--rounds", "5"]);
    }
}
