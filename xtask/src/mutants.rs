//! `cargo xtask mutants`: puts the faults that tests name into the product, one at a time, and sees that the tests turn red.

mod deep;
mod lab;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;

use crate::fault::{self, Fault};
use crate::tree;
use crate::workspace::Workspace;
use lab::{Lab, Verdict};

/// The arguments of `cargo xtask mutants`.
#[derive(Debug, Args)]
pub(crate) struct Mutants {
    /// Only faults of tests, or in files, whose names contain this
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,

    /// Instead let cargo-mutants make up faults in the crates without input and output: takes long
    #[arg(long)]
    deep: bool,
}

/// A fault and the file whose test names it.
#[derive(Debug)]
pub(crate) struct Named {
    pub(crate) fault: Fault,
    /// From the workspace's root.
    pub(crate) source: PathBuf,
}

pub(crate) fn run(workspace: &Workspace, arguments: &Mutants) -> Result<ExitCode> {
    if arguments.deep {
        return deep::run(workspace);
    }
    let faults = find(workspace, arguments.filter.as_deref())?;
    if faults.is_empty() {
        println!(
            "no test names a fault{}",
            if arguments.filter.is_some() { " that the filter lets through" } else { "" }
        );
        return Ok(ExitCode::FAILURE);
    }
    let lab = Lab::new(workspace)?;
    let mut counts = BTreeMap::from([("caught", 0), ("survived", 0), ("of no use", 0)]);
    let broken = lab.baseline(&faults)?;
    for named in &faults {
        let start = Instant::now();
        let verdict = match broken.get(&(named.source.clone(), named.fault.test.clone())) {
            Some(reason) => Verdict::Useless(reason.clone()),
            None => lab.try_fault(named)?,
        };
        show(named, &verdict, start.elapsed());
        *counts.entry(verdict.word()).or_default() += 1;
    }
    let left = lab.finish();
    for thing in &left {
        println!("left behind: {thing}");
    }
    println!(
        "{} faults, {} caught, {} survived{}",
        faults.len(),
        counts["caught"],
        counts["survived"],
        if counts["of no use"] > 0 { format!(", {} of no use", counts["of no use"]) } else { String::new() },
    );
    let success = counts["caught"] == faults.len() && left.is_empty();
    Ok(if success { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// All faults in the workspace, in the order of the files.
fn find(workspace: &Workspace, filter: Option<&str>) -> Result<Vec<Named>> {
    let mut found = Vec::new();
    for path in tree::files(workspace.root())? {
        let source = workspace.relative(&path).to_owned();
        // Faults in xtask are examples in the tests of their own format.
        if source.extension().is_none_or(|extension| extension != "rs") || source.starts_with("xtask") {
            continue;
        }
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let tests = fault::tests(&text).with_context(|| format!("cannot read the faults in {}", source.display()))?;
        found.extend(
            tests.into_iter().flat_map(|test| test.faults).map(|fault| Named { fault, source: source.clone() }),
        );
    }
    found.retain(|named| {
        let names = [&*named.fault.test, &named.fault.file.to_string_lossy(), &named.source.to_string_lossy()];
        filter.is_none_or(|text| names.iter().any(|name| name.contains(text)))
    });
    Ok(found)
}

fn show(named: &Named, verdict: &Verdict, time: Duration) {
    let Named { fault, source } = named;
    let place = format!("{}:{}", source.display(), fault.line);
    println!(
        "{:9} {}  in {}  ({place}, {:.1} s)",
        verdict.word(),
        fault.test,
        fault.file.display(),
        time.as_secs_f64()
    );
    if let Verdict::Useless(reason) = verdict {
        for line in reason.lines() {
            println!("    {line}");
        }
    }
}

/// The modules that a source file stands for, from the root of its crate.
fn modules(file: &Path) -> Vec<String> {
    let names: Vec<_> = file.with_extension("").iter().map(|name| name.to_string_lossy().into_owned()).collect();
    // A file in `tests/` is the root of a crate.
    let Some(root) = names.iter().position(|name| name == "src") else {
        return Vec::new();
    };
    match &names[root + 1..] {
        [one] if one == "lib" || one == "main" => Vec::new(),
        [outer @ .., last] if last == "mod" => outer.to_vec(),
        inner => inner.to_vec(),
    }
}

/// Whether a test as its executable calls it, such as `rule::tests::b21_x`, is the function `name` somewhere in `modules`.
fn is_test(test: &str, modules: &[String], name: &str) -> bool {
    let mut path: Vec<_> = test.split("::").collect();
    path.pop() == Some(name) && path.len() >= modules.len() && path.iter().zip(modules).all(|(have, want)| have == want)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_those_of_the_file() {
        assert_eq!(modules(Path::new("agent/core/src/plan/step.rs")), ["plan", "step"]);
        assert_eq!(modules(Path::new("agent/src/executors/mod.rs")), ["executors"]);
        assert_eq!(modules(Path::new("agent/src/lib.rs")), [""; 0]);
        assert_eq!(modules(Path::new("tests/tests/host_verdict.rs")), [""; 0]);
    }

    #[test]
    fn test_is_known_by_modules_and_name() {
        let step = ["plan".to_owned(), "step".to_owned()];
        assert!(is_test("plan::step::tests::b15_x", &step, "b15_x"));
        assert!(is_test("b15_x", &[], "b15_x"));
        assert!(is_test("tests::b15_x", &[], "b15_x"));
        assert!(!is_test("plan::stepping::tests::b15_x", &step, "b15_x"));
        assert!(!is_test("plan::step::tests::not_b15_x", &step, "b15_x"));
        assert!(!is_test("b15_x", &step, "b15_x"));
    }
}
