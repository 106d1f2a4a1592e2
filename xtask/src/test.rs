//! `cargo xtask test`: runs the tests that this machine allows, and says which it does not.

pub(crate) mod leftovers;
pub(crate) mod machines;
mod parse;
pub(crate) mod process;
pub(crate) mod report;
pub(crate) mod tier;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};

use crate::artifact::{self, Artifact};
use crate::bpffs;
use crate::build;
use crate::command;
use crate::deps::{self, Need};
use crate::ebpf::{Builder, Options};
use crate::mounts;
use crate::workspace::Workspace;
use machines::Machines;
use report::{Outcome, Report};
use tier::Tier;

/// The eBPF crate cannot be compiled for the host.
pub(crate) const MEMBERS: &[&str] = &["--workspace", "--exclude", "devgate-ebpf"];

/// What the check after each tier is called, among the tests.
const NOTHING_LEFT: &str = "nothing is left behind";

/// The arguments of `cargo xtask test`.
#[derive(Debug, Args)]
pub(crate) struct Test {
    /// Only this tier; may be given several times
    #[arg(long = "tier", value_name = "TIER")]
    tiers: Vec<Tier>,

    /// Only tests whose names contain this
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,

    /// Show the tests that would be run, as `tier  package::target  test`
    #[arg(long)]
    list: bool,

    /// How many tests of one executable run at the same time
    #[arg(long = "test-threads", value_name = "N")]
    threads: Option<u32>,

    /// After how many seconds a test executable is killed
    #[arg(long, value_name = "SECONDS", default_value_t = 900)]
    deadline: u64,
}

/// # Errors
///
/// If the tests cannot be built or run. Tests that fail are no error but the exit status, as are tests of which none ran.
pub(crate) fn run(workspace: &Workspace, arguments: &Test) -> Result<ExitCode> {
    let suites = build(workspace)?;
    if arguments.list {
        return list(workspace, arguments, &suites);
    }
    let session = Session::new(workspace, arguments)?;
    let mut report = Report::default();
    for tier in tiers(arguments) {
        let suites: Vec<_> = suites.iter().filter(|suite| suite.tier == tier).collect();
        session.run_tier(tier, &suites, &mut report)?;
    }
    let sum = report.finish();
    let success = sum.failed == 0 && sum.passed > 0;
    Ok(if success { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Something that runs tests: an executable, or rustdoc for all examples in the documentation.
#[derive(Debug)]
pub(crate) struct Suite {
    pub(crate) tier: Tier,
    /// `package::target`.
    pub(crate) name: String,
    program: Program,
}

#[derive(Debug)]
enum Program {
    Executable { path: PathBuf, folder: PathBuf },
    Documentation,
}

impl Suite {
    pub(crate) fn new(artifact: Artifact) -> Self {
        // A library is called as its package, with other dashes.
        let target = if artifact.kind == "lib" { "lib" } else { &artifact.target };
        Self {
            tier: Tier::of(&artifact),
            name: format!("{}::{target}", artifact.package),
            program: Program::Executable { path: artifact.executable, folder: artifact.folder },
        }
    }

    /// A run of all its tests.
    pub(crate) fn command(&self, workspace: &Workspace) -> Command {
        match &self.program {
            Program::Executable { path, folder } => {
                let mut command = Command::new(path);
                command.current_dir(folder).env("CARGO_MANIFEST_DIR", folder);
                command
            }
            Program::Documentation => {
                let mut command = workspace.cargo();
                command.args(["test", "--quiet", "--doc"]).args(MEMBERS).arg("--");
                command
            }
        }
    }

    /// The names of its tests, those that contain `filter`.
    pub(crate) fn list(&self, workspace: &Workspace, filter: Option<&str>) -> Result<Vec<String>> {
        let output = command::output(self.command(workspace).args(["--list", "--format", "terse"]).args(filter))?;
        Ok(parse::list(&output))
    }
}

/// Builds all tests of the workspace, and the object that they load.
fn build(workspace: &Workspace) -> Result<Vec<Suite>> {
    Builder::new(workspace)?.build(workspace, Options { debug_log: false })?;
    deps::ensure(Need::Build)?;
    let mut suites = executables(workspace, MEMBERS)?;
    suites.push(Suite { tier: Tier::Unit, name: "documentation".to_owned(), program: Program::Documentation });
    suites.sort_by(|a, b| (a.tier, &a.name).cmp(&(b.tier, &b.name)));
    Ok(suites)
}

/// Builds the test executables of the `selected` packages.
fn executables(workspace: &Workspace, selected: &[&str]) -> Result<Vec<Suite>> {
    let messages = command::output(
        workspace
            .cargo()
            .args(["test", "--quiet", "--no-run", "--message-format=json-render-diagnostics"])
            .args(selected),
    )?;
    Ok(artifact::parse(&messages)?.into_iter().filter(|artifact| artifact.test).map(Suite::new).collect())
}

fn tiers(arguments: &Test) -> Vec<Tier> {
    Tier::value_variants()
        .iter()
        .copied()
        .filter(|tier| arguments.tiers.is_empty() || arguments.tiers.contains(tier))
        .collect()
}

fn list(workspace: &Workspace, arguments: &Test, suites: &[Suite]) -> Result<ExitCode> {
    let tiers = tiers(arguments);
    for suite in suites.iter().filter(|suite| tiers.contains(&suite.tier)) {
        for test in suite.list(workspace, arguments.filter.as_deref())? {
            println!("{}  {}  {test}", suite.tier.name(), suite.name);
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// What all test executables of a run are started with.
struct Session<'a> {
    workspace: &'a Workspace,
    filter: Option<&'a str>,
    threads: Option<u32>,
    deadline: Duration,
    /// The `devgate` program that tests start.
    agent: PathBuf,
    /// Where the output of test executables is kept.
    output: PathBuf,
}

impl<'a> Session<'a> {
    fn new(workspace: &'a Workspace, arguments: &'a Test) -> Result<Self> {
        process::adopt_orphans()?;
        let output = workspace.target().join("test-output");
        fs::create_dir_all(&output).with_context(|| format!("cannot make {}", output.display()))?;
        Ok(Self {
            workspace,
            filter: arguments.filter.as_deref(),
            threads: arguments.threads,
            deadline: Duration::from_secs(arguments.deadline),
            agent: build::agent(workspace, MEMBERS, "dev")?,
            output,
        })
    }

    fn run_tier(&self, tier: Tier, suites: &[&Suite], report: &mut Report) -> Result<()> {
        report.begin(tier);
        if suites.is_empty() {
            return Ok(());
        }
        let _lock = lock_host(tier)?;
        let _bpffs = if tier == Tier::Host { bpffs::ensure()? } else { None };
        if let Some(obstacle) = tier.obstacle() {
            let mut count = 0;
            for suite in suites {
                count += suite.list(self.workspace, self.filter)?.len();
            }
            report.skip_tier(count, obstacle);
            return Ok(());
        }
        if let Some(need) = tier.need() {
            deps::ensure(need)?;
        }
        let before = leftovers::find();
        for old in &before {
            eprintln!("note: left there by an earlier run: {old}");
        }
        let mut left = Vec::new();
        let machines = self.machines(tier, suites)?;
        for suite in suites {
            left.extend(self.run_suite(suite, machines.as_ref(), report)?);
        }
        let counts = report.tier_counts();
        if counts.passed + counts.failed > 0 {
            left.extend(leftovers::new_since(&before).iter().map(ToString::to_string));
            report.add("the host afterwards", &nothing_left(&left), Duration::ZERO);
        }
        Ok(())
    }

    /// What the tests of a tier need, if it runs machines and there are tests to be run. The agent in them is optimised: where a processor is
    /// emulated, another one is too slow for its own deadlines.
    fn machines(&self, tier: Tier, suites: &[&Suite]) -> Result<Option<(Machines, PathBuf)>> {
        if tier != Tier::Vm {
            return Ok(None);
        }
        for suite in suites {
            if !suite.list(self.workspace, self.filter)?.is_empty() {
                let agent = build::agent(self.workspace, &["--package", "devgate"], "release")?;
                return Ok(Some((Machines::prepare(self.workspace)?, agent)));
            }
        }
        Ok(None)
    }

    /// Runs the tests of `suite`; returns what processes it left running.
    fn run_suite(
        &self,
        suite: &Suite,
        machines: Option<&(Machines, PathBuf)>,
        report: &mut Report,
    ) -> Result<Vec<String>> {
        let mut command = suite.command(self.workspace);
        command.env("DEVGATE_BIN", &self.agent).args(["--color", "never"]);
        if let Some((machines, agent)) = machines {
            machines.tell(&mut command).env("DEVGATE_BIN", agent);
        }
        command.args(self.threads.map(|threads| format!("--test-threads={threads}"))).args(self.filter);
        let output = self.output.join(suite.name.replace("::", "."));
        let ended = process::run(&mut command, &output, self.deadline)?;
        report.add(&suite.name, &Outcome::of(&ended), ended.time);
        Ok(ended.left.into_iter().map(|process| format!("{process}, by {}", suite.name)).collect())
    }
}

/// Keeps other runs from using the host's kernel at the same time: each would find what the other is about to remove.
pub(crate) fn lock_host(tier: Tier) -> Result<Option<File>> {
    let cgroups = mounts::list().into_iter().find(|mount| mount.kind == "cgroup2");
    let Some(cgroups) = cgroups.filter(|_| tier == Tier::Host) else {
        return Ok(None);
    };
    // The folder is there on every machine of this tier, and locking it leaves no file.
    let lock = |path: &Path| {
        let folder = File::open(path)?;
        if folder.try_lock().is_err() {
            eprintln!("note: waiting for another run that uses this host's kernel");
            folder.lock()?;
        }
        std::io::Result::Ok(folder)
    };
    lock(&cgroups.point).map(Some).with_context(|| format!("cannot lock {}", cgroups.point.display()))
}

fn nothing_left(left: &[String]) -> Outcome {
    if left.is_empty() {
        Outcome { passed: 1, ..Outcome::default() }
    } else {
        Outcome::failure(NOTHING_LEFT, left.join("\n"))
    }
}
