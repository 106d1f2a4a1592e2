//! The project's own commands. `cargo xtask help` lists them.

mod artifact;
mod bench;
mod bpffs;
mod build;
mod build_ebpf;
mod check;
mod command;
mod demo;
mod deps;
mod ebpf;
mod fault;
mod hash;
mod metadata;
mod mounts;
mod mutants;
mod source;
mod test;
mod tree;
mod workspace;

use std::process::{ExitCode, ExitStatus};

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
    /// Check all that can be checked without running anything; what CI checks
    Check(check::Check),
    /// Run the tests that this machine allows
    Test(test::Test),
    /// Put faults into the product and see that the tests notice
    Mutants(mutants::Mutants),
    /// Run a benchmark
    Bench(bench::Bench),
    /// Show on this machine what the agent does
    Demo(demo::Demo),
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
        Task::Check(arguments) => return check::run(&workspace, &arguments),
        Task::Test(arguments) => return test::run(&workspace, &arguments),
        Task::Mutants(arguments) => return mutants::run(&workspace, &arguments),
        Task::Bench(arguments) => return bench::run(&workspace, &arguments),
        Task::Demo(arguments) => return demo::run(&workspace, &arguments),
    }
    Ok(ExitCode::SUCCESS)
}

/// The exit status of another program as that of this one.
fn exit_code(status: ExitStatus) -> ExitCode {
    if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
