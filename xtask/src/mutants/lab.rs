//! A copy of the workspace in which faults are tried.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::{Named, is_test, modules};
use crate::artifact;
use crate::bpffs::{self, Bpffs};
use crate::command;
use crate::deps::{self, Need};
use crate::ebpf::{Builder, Options};
use crate::metadata::{Metadata, Package};
use crate::test::leftovers::{self, Found};
use crate::test::machines::Machines;
use crate::test::report::Outcome;
use crate::test::tier::Tier;
use crate::test::{self, MEMBERS, Suite, process};
use crate::tree;
use crate::workspace::Workspace;

/// A test that takes longer than this with a fault in the product has noticed it.
const DEADLINE: Duration = Duration::from_mins(5);

/// What became of a fault.
#[derive(Debug)]
pub(super) enum Verdict {
    Caught,
    Survived,
    /// Nothing can be said, and why.
    Useless(String),
}

impl Verdict {
    pub(super) fn word(&self) -> &'static str {
        match self {
            Self::Caught => "caught",
            Self::Survived => "survived",
            Self::Useless(_) => "of no use",
        }
    }
}

/// The copy, its builds, and what was on the host before. Both the copy and the builds are kept for the next run.
pub(super) struct Lab {
    original: Workspace,
    tree: Workspace,
    metadata: Metadata,
    builder: Builder,
    output: PathBuf,
    before: Found,
    // Unmounted before the lock is given up.
    _bpffs: Option<Bpffs>,
    _lock: Option<File>,
}

/// What the tests of a file run.
struct Built {
    suites: Vec<Suite>,
    /// The `devgate` program, for tests that start it.
    agent: Option<PathBuf>,
}

/// How one test ended.
enum Run {
    Passed,
    Failed,
    /// It was not run, and why.
    No(String),
}

impl Lab {
    pub(super) fn new(workspace: &Workspace) -> Result<Self> {
        let folder = workspace.target().join("mutants");
        let tree = Workspace::at(folder.join("tree")).with_cargo_target(folder.join("target"));
        // Also undoes a fault that an interrupted run has left there.
        tree::mirror(workspace.root(), tree.root())?;
        deps::ensure(Need::Build)?;
        deps::ensure(Need::Host)?;
        process::adopt_orphans()?;
        let lock = test::lock_host(Tier::Host)?;
        Ok(Self {
            original: workspace.clone(),
            metadata: Metadata::read(&tree)?,
            builder: Builder::new(&tree)?,
            output: folder.join("output"),
            _bpffs: bpffs::ensure()?,
            _lock: lock,
            before: leftovers::find(),
            tree,
        })
    }

    /// Runs all involved tests without a fault. Returns those that do not pass, by file and name, with the reason: they can tell nothing.
    pub(super) fn baseline(&self, faults: &[Named]) -> Result<BTreeMap<(PathBuf, String), String>> {
        let tests: BTreeSet<_> = faults.iter().map(|named| (named.source.clone(), named.fault.test.clone())).collect();
        let mut broken = BTreeMap::new();
        let mut built: BTreeMap<PathBuf, Built> = BTreeMap::new();
        for (source, test) in tests {
            if !built.contains_key(&source) {
                built.insert(source.clone(), self.build(&source)?);
            }
            match self.run(&built[&source], &source, &test)? {
                Run::Passed => {}
                Run::Failed => drop(broken.insert((source, test), "the test fails without the fault".to_owned())),
                Run::No(reason) => drop(broken.insert((source, test), reason)),
            }
        }
        Ok(broken)
    }

    /// Puts the fault in, runs its test, and takes the fault out again.
    pub(super) fn try_fault(&self, named: &Named) -> Result<Verdict> {
        let file = self.tree.root().join(&named.fault.file);
        let text = match fs::read_to_string(&file) {
            Ok(text) => text,
            Err(error) => return Ok(Verdict::Useless(format!("cannot read the file: {error}"))),
        };
        let faulty = match named.fault.apply(&text) {
            Ok(faulty) => faulty,
            Err(error) => return Ok(Verdict::Useless(format!("{error:#}"))),
        };
        write(&file, &faulty)?;
        let verdict = self.judge(named);
        write(&file, &text)?;
        verdict
    }

    /// Removes from the host what tests with faults have left there; returns what cannot be removed.
    pub(super) fn finish(self) -> Vec<String> {
        let left = leftovers::new_since(&self.before);
        let kept = left.iter().filter_map(|thing| thing.remove().err().map(|error| format!("{thing}: {error}")));
        kept.collect()
    }

    fn judge(&self, named: &Named) -> Result<Verdict> {
        let built = match self.build(&named.source) {
            Ok(built) => built,
            Err(error) => return Ok(Verdict::Useless(format!("the fault does not compile: {error:#}"))),
        };
        Ok(match self.run(&built, &named.source, &named.fault.test)? {
            Run::Passed => Verdict::Survived,
            Run::Failed => Verdict::Caught,
            Run::No(reason) => Verdict::Useless(reason),
        })
    }

    /// Builds what the tests in the file `source` run.
    fn build(&self, source: &Path) -> Result<Built> {
        self.builder.build(&self.tree, Options { debug_log: false })?;
        let selected = selection(self.package(source)?, &self.tree.root().join(source));
        let messages = command::quiet_output(
            self.tree
                .cargo()
                .args(selected)
                .args(["--quiet", "--message-format=json-render-diagnostics"])
                // Nobody debugs these.
                .env("CARGO_PROFILE_DEV_DEBUG", "none"),
        )?;
        let mut built = Built { suites: Vec::new(), agent: None };
        for artifact in artifact::parse(&messages)? {
            if artifact.test {
                built.suites.push(Suite::new(artifact));
            } else if artifact.target == "devgate" {
                built.agent = Some(artifact.executable);
            }
        }
        Ok(built)
    }

    /// Runs the one test `name` of the file `source`.
    fn run(&self, built: &Built, source: &Path, name: &str) -> Result<Run> {
        let modules = modules(source);
        for suite in &built.suites {
            if let Some(obstacle) = suite.tier.obstacle() {
                return Ok(Run::No(obstacle));
            }
            let tests = suite.list(&self.tree, Some(name))?;
            if let Some(test) = tests.iter().find(|test| is_test(test, &modules, name)) {
                return self.run_exactly(built, suite, test);
            }
        }
        Ok(Run::No("there is no such test".to_owned()))
    }

    fn run_exactly(&self, built: &Built, suite: &Suite, test: &str) -> Result<Run> {
        let mut command = suite.command(&self.tree);
        command.args(["--color", "never", "--exact", test]);
        command.envs(built.agent.iter().map(|agent| ("DEVGATE_BIN", agent)));
        if suite.tier == Tier::Vm {
            // All but the agent is that of the real tree, where it is made once.
            Machines::prepare(&self.original)?.tell(&mut command);
        }
        let outcome = Outcome::of(&process::run(&mut command, &self.output, DEADLINE)?);
        if !outcome.failed.is_empty() {
            return Ok(Run::Failed);
        }
        Ok(match outcome.skipped.first() {
            Some(skip) => Run::No(format!("the test was skipped: {}", skip.reason)),
            None if outcome.passed == 0 => Run::No("the test did not run".to_owned()),
            None => Run::Passed,
        })
    }

    /// The package that a source file belongs to: the one in the innermost folder above it.
    fn package(&self, source: &Path) -> Result<&Package> {
        let file = self.tree.root().join(source);
        let folder = |package: &&Package| package.manifest_path.parent().map_or(0, |folder| folder.iter().count());
        let above = |package: &&Package| package.manifest_path.parent().is_some_and(|folder| file.starts_with(folder));
        let Some(package) = self.metadata.members().filter(above).max_by_key(folder) else {
            bail!("{} belongs to no package", source.display());
        };
        Ok(package)
    }
}

/// What to tell cargo so that it makes the test executables that `file` of `package` may be in, and few others.
fn selection(package: &Package, file: &Path) -> Vec<String> {
    let owned = |arguments: &[&str]| arguments.iter().map(ToString::to_string).collect::<Vec<_>>();
    let test = package.targets.iter().find(|target| target.kind == ["test"] && contains(&target.src_path, file));
    if let Some(test) = test
        && ["devgate-machine", "devgate-tests"].contains(&&*package.name)
    {
        // Such a test may start the agent. Of the whole workspace, so that dependencies have the features that they have for it.
        return [owned(&["build", "--bin", "devgate", "--test", &test.name]), owned(MEMBERS)].concat();
    }
    let mut selection = owned(&["test", "--no-run", "--package", &package.name]);
    match test {
        Some(test) => selection.extend(owned(&["--test", &test.name])),
        None => {
            for (kind, argument) in [("lib", "--lib"), ("bin", "--bins")] {
                if package.targets.iter().any(|target| target.kind == [kind]) {
                    selection.push(argument.to_owned());
                }
            }
        }
    }
    selection
}

/// Whether `file` belongs to the crate whose root is `root`: it is the root, or in the folder called as the root or, if that is `main.rs`, in its folder.
fn contains(root: &Path, file: &Path) -> bool {
    let folder =
        if root.ends_with("main.rs") { root.parent().unwrap_or(root).to_owned() } else { root.with_extension("") };
    file == root || file.starts_with(folder)
}

fn write(file: &Path, text: &str) -> Result<()> {
    fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}
