//! The project's own commands. `cargo xtask help` lists them.

mod artifact;
mod bpffs;
mod build;
mod build_ebpf;
mod command;
mod deps;
mod ebpf;
mod hash;
mod mounts;
mod test;
mod tree;
mod workspace;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use workspace::Workspace;

#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", about = "The project's own commands", long_about = None)]
struct Xtask {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Find what this machine lacks, and install it
    Deps(deps::Deps),
    /// Build the eBPF object that the agent embeds
    BuildEbpf(build_ebpf::BuildEbpf),
    /// Build the agent with its eBPF object
    Build(build::Build),
    /// Run the tests that this machine allows
    Test(test::Test),
}

fn main() -> ExitCode {
    run().unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

fn run() -> Result<ExitCode> {
    let workspace = Workspace::current()?;
    match Xtask::parse().task {
        Task::Deps(arguments) => deps::run(&workspace, &arguments)?,
        Task::BuildEbpf(arguments) => build_ebpf::run(&workspace, &arguments)?,
        Task::Build(arguments) => build::run(&workspace, &arguments)?,
        Task::Test(arguments) => return test::run(&workspace, &arguments),
    }
    Ok(ExitCode::SUCCESS)
}
