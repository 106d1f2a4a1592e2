//! `cargo xtask check`: all that can be said about the sources without running them. Exactly what CI runs.

mod invariants;
mod licences;

use std::process::{Command, ExitCode};
use std::time::Instant;

use anyhow::{Result, bail};
use clap::Args;

use crate::command;
use crate::deps::{self, Need};
use crate::ebpf::{Builder, Options};
use crate::metadata::Metadata;
use crate::workspace::Workspace;

/// The arguments of `cargo xtask check`.
#[derive(Debug, Args)]
pub(crate) struct Check {}

/// The members that are compiled for the host.
const HOST: &[&str] = &["--workspace", "--exclude", "devgate-ebpf"];

type Step = fn(&Workspace) -> Result<()>;

const STEPS: &[(&str, Step)] = &[
    ("invariants", check_invariants),
    ("licences", check_licences),
    ("format", check_format),
    ("object", check_object),
    ("clippy", check_clippy),
    ("clippy of the eBPF crate", check_ebpf_clippy),
    ("documentation", check_documentation),
];

pub(crate) fn run(workspace: &Workspace, _arguments: &Check) -> Result<ExitCode> {
    deps::ensure(Need::Build)?;
    let mut failed = Vec::new();
    for (name, step) in STEPS {
        let start = Instant::now();
        let result = step(workspace);
        let time = start.elapsed().as_secs_f64();
        match result {
            Ok(()) => println!("ok      {name} ({time:.1} s)"),
            Err(error) => {
                println!("FAILED  {name} ({time:.1} s): {error:#}");
                failed.push(*name);
            }
        }
    }
    println!("advisories are not checked: their database is on the network (`cargo deny check advisories`)");
    if failed.is_empty() {
        println!("all checks passed");
        return Ok(ExitCode::SUCCESS);
    }
    println!("failed: {}", failed.join(", "));
    Ok(ExitCode::FAILURE)
}

fn check_invariants(workspace: &Workspace) -> Result<()> {
    report(&invariants::findings(workspace, &Metadata::read(workspace)?)?)
}

fn check_licences(workspace: &Workspace) -> Result<()> {
    report(&licences::findings(workspace, &Metadata::read(workspace)?)?)
}

fn check_format(workspace: &Workspace) -> Result<()> {
    command::run(workspace.cargo().args(["fmt", "--all", "--check"]))
}

/// Both variants of the object, with the warnings of the compiler that builds it denied. The steps behind this one compile the agent, which embeds it.
fn check_object(workspace: &Workspace) -> Result<()> {
    let builder = Builder::new(workspace)?;
    for debug_log in [false, true] {
        let options = Options { debug_log };
        let mut check = builder.cargo(workspace, "check", options);
        command::run(check.arg("-Zwarnings").env("CARGO_BUILD_WARNINGS", "deny"))?;
        builder.build(workspace, options)?;
    }
    Ok(())
}

fn check_clippy(workspace: &Workspace) -> Result<()> {
    command::run(workspace.cargo().args(["clippy", "--quiet"]).args(HOST).args([
        "--all-targets",
        "--",
        "--deny",
        "warnings",
    ]))
}

/// The compiler for the BPF target comes without clippy, so this one reads the crate as if it were for the host, unstable features allowed.
fn check_ebpf_clippy(workspace: &Workspace) -> Result<()> {
    for features in [&[][..], &["--features", "debug-log"]] {
        let mut clippy: Command = workspace.cargo();
        clippy
            .env("RUSTC_BOOTSTRAP", "1")
            .args(["clippy", "--quiet", "--package", "devgate-ebpf", "--profile", "bpf", "--target-dir"])
            .arg(workspace.ebpf_target().join("clippy"))
            .args(features)
            .args(["--", "--deny", "warnings"]);
        command::run(&mut clippy)?;
    }
    Ok(())
}

/// The documentation is for those who work on this: private items have theirs, and public ones may point to it.
fn check_documentation(workspace: &Workspace) -> Result<()> {
    let mut doc = workspace.cargo();
    doc.env("RUSTDOCFLAGS", "--deny warnings --allow rustdoc::private_intra_doc_links")
        .args(["doc", "--quiet", "--no-deps", "--document-private-items"])
        .args(HOST);
    command::run(&mut doc)
}

/// Shows what was found, which is an error unless it is nothing.
fn report<T: std::fmt::Display>(findings: &[T]) -> Result<()> {
    for finding in findings {
        println!("{finding}");
    }
    match findings.len() {
        0 => Ok(()),
        count => bail!("{count} found"),
    }
}
