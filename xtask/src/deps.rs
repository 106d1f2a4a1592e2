//! `cargo xtask deps`: finds what the machine lacks and installs it.
//!
//! Every other task calls [`ensure`] for what it needs, so that one command is enough on a machine with only Rust, root and the package registries.

mod apt;
mod linker;
mod program;
mod table;

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::{Args, ValueEnum};

use crate::workspace::Workspace;

/// The arguments of `cargo xtask deps`.
#[derive(Debug, Args)]
pub(crate) struct Deps {
    /// Only what these need; everything if not given
    #[arg(long = "task", value_name = "TASK")]
    tasks: Vec<Need>,
}

/// What a task may need of the machine besides Rust.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Need {
    /// Native libraries and generators that the agent is built with
    Build,
    /// The compiler and the linker of the eBPF object
    Ebpf,
    /// What the tests on this host's kernel drive
    Host,
    /// What virtual machines are made of and run by
    Vm,
}

/// Where LLVM is installed: `$LLVM_PREFIX`, else where Debian puts it.
pub(crate) fn llvm_prefix() -> PathBuf {
    std::env::var_os("LLVM_PREFIX").map_or_else(|| table::LLVM_PREFIX.into(), PathBuf::from)
}

pub(crate) fn run(workspace: &Workspace, arguments: &Deps) -> Result<()> {
    let needs = if arguments.tasks.is_empty() { Need::value_variants() } else { &arguments.tasks };
    for &need in needs {
        ensure(need)?;
        if need == Need::Ebpf {
            bpf_linker(workspace)?;
        }
    }
    println!("nothing is missing");
    Ok(())
}

/// Installs the packages that `need` lacks. Prints nothing if there is nothing to do.
pub(crate) fn ensure(need: Need) -> Result<()> {
    apt::ensure(&table::packages(need))
}

/// The folder of a ready bpf-linker; builds it the first time.
pub(crate) fn bpf_linker(workspace: &Workspace) -> Result<PathBuf> {
    linker::ensure(workspace, &llvm_prefix())
}

/// The folder of a ready cargo-mutants; builds it the first time.
pub(crate) fn cargo_mutants(workspace: &Workspace) -> Result<PathBuf> {
    let program = program::Program {
        name: "cargo-mutants",
        version: "27.1.0",
        features: &[],
        environment: &[],
        built_on: "",
        purpose: "make up faults",
    };
    program.ensure(workspace)
}

/// A program of the LLVM that the linker is built on.
pub(crate) fn llvm_program(name: &str) -> PathBuf {
    llvm_prefix().join(Path::new("bin")).join(name)
}
