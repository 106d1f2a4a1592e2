//! What ARCHITECTURE.md promises and a look at the sources can check.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::fault;
use crate::metadata::Metadata;
use crate::source;
use crate::tree;
use crate::workspace::Workspace;

/// The pure crate has no use for these, not even through others.
const NOT_IN_CORE: &[&str] = &["aya", "k8s-openapi", "kube", "libc", "rustix", "tokio", "tonic"];

/// Paths of the standard library that read a clock or touch the world.
const IMPURE: &[&str] = &[
    "std::env",
    "std::fs",
    "std::net",
    "std::os",
    "std::process",
    "std::thread",
    "std::time::Instant",
    "std::time::SystemTime",
];

/// The only code that knows BPF.
const ENFORCER: &str = "agent/src/executors/enforcer";

/// A longer file has more than one idea in it.
const LONGEST_FILE: usize = 600;

/// Something that is not as promised.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Finding {
    file: PathBuf,
    line: usize,
    message: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file.display(), self.line, self.message)
    }
}

/// Everything in the workspace that is not as promised.
pub(super) fn findings(workspace: &Workspace, metadata: &Metadata) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for member in metadata.members() {
        let file = workspace.relative(&member.manifest_path).to_owned();
        let text = read(&member.manifest_path)?;
        findings.extend(manifest(&text)?.map(|message| Finding { file, line: 1, message }));
    }
    let linked = metadata.linked_with("devgate-core");
    findings.extend(NOT_IN_CORE.iter().filter(|name| linked.contains(**name)).map(|name| Finding {
        file: "agent/core/Cargo.toml".into(),
        line: 1,
        message: format!(
            "devgate-core is linked with `{name}`, itself or through another crate: it does no input or output"
        ),
    }));
    let mut rows = Rows::default();
    for path in tree::files(workspace.root())? {
        if path.extension().is_some_and(|extension| extension == "rs") {
            let (path, text) = (workspace.relative(&path), read(&path)?);
            findings.extend(file(path, &text));
            // In xtask there are only examples of faults.
            if !path.starts_with("xtask") {
                findings.extend(rows.add(path, &text).err());
            }
        }
    }
    findings.extend(rows.without_fault());
    Ok(findings)
}

/// The rows of the bug cases that tests are named after, each with the place of its first test and whether one of them names a fault.
#[derive(Debug, Default)]
struct Rows(BTreeMap<String, (PathBuf, usize, bool)>);

impl Rows {
    /// Adds the tests of a file.
    fn add(&mut self, path: &Path, text: &str) -> Result<(), Finding> {
        let unreadable =
            |error: anyhow::Error| Finding { file: path.to_owned(), line: 1, message: format!("{error:#}") };
        for test in fault::tests(text).map_err(unreadable)? {
            if let Some(row) = fault::row(&test.name) {
                let new = || (path.to_owned(), test.line, false);
                let (.., has_fault) = self.0.entry(row.to_owned()).or_insert_with(new);
                *has_fault |= !test.faults.is_empty();
            }
        }
        Ok(())
    }

    fn without_fault(self) -> impl Iterator<Item = Finding> {
        self.0.into_iter().filter(|(_, (.., has_fault))| !has_fault).map(|(row, (file, line, _))| Finding {
            file,
            line,
            message: format!("no test of row {row} names a fault that turns it red: see xtask/src/fault.rs"),
        })
    }
}

/// What is wrong with a member's manifest.
fn manifest(text: &str) -> Result<Option<String>> {
    let manifest: toml::Table = toml::from_str(text).context("cannot read a manifest")?;
    let inherits = manifest.get("lints").and_then(|lints| lints.get("workspace")).and_then(toml::Value::as_bool);
    let message = "the lint table of the workspace is not inherited: add `[lints] workspace = true`";
    Ok((inherits != Some(true)).then(|| message.to_owned()))
}

/// What is wrong in one source file.
fn file(path: &Path, text: &str) -> Vec<Finding> {
    let code = source::code(text);
    let mut found: Vec<(usize, String)> = Vec::new();
    let lines = text.lines().count();
    if lines > LONGEST_FILE {
        found.push((lines, format!("{lines} lines; a file of more than {LONGEST_FILE} should be several")));
    }
    if path.starts_with("agent/core/src") {
        let impure = |(line, path): &(usize, String)| {
            let hit = IMPURE.iter().find(|impure| is_below(path, impure))?;
            Some((*line, format!("`{hit}` in devgate-core, which touches nothing outside and reads no clock")))
        };
        found.extend(source::paths(&code, "std").iter().filter_map(impure));
    }
    if !path.starts_with(ENFORCER)
        && path != Path::new(ENFORCER).with_extension("rs")
        && !path.starts_with("agent-ebpf")
        && !path.starts_with("tests")
    {
        let message = format!("only {ENFORCER} knows BPF");
        let uses = ["aya", "aya_obj", "aya_log"].iter().flat_map(|root| source::paths(&code, root));
        found.extend(uses.map(|(line, path)| (line, format!("`{path}`: {message}"))));
        found.extend(words(&code, "SYS_bpf").map(|line| (line, format!("`SYS_bpf`: {message}"))));
    }
    let never = [
        ("#[ignore", "a test that is ignored is never run: let it say at run time what it lacks"),
        ("todo!", "unfinished code"),
        ("unimplemented!", "unfinished code"),
    ];
    for (word, message) in never {
        found.extend(words(&code, word).map(|line| (line, format!("`{word}`: {message}"))));
    }
    let tests = test_lines(path, &code);
    for word in ["thread::sleep", "time::sleep"] {
        let sleeps = words(&code, word).filter(|line| *line >= tests);
        found.extend(sleeps.map(|line| (line, format!("`{word}` in a test: wait for the condition"))));
    }
    found.into_iter().map(|(line, message)| Finding { file: path.to_owned(), line, message }).collect()
}

/// From which line on a file is a test; one behind its end if it has none.
fn test_lines(path: &Path, code: &str) -> usize {
    if path.starts_with("tests/tests") || path.starts_with("tests/machine/tests") {
        return 1;
    }
    let mut lines = code.lines().enumerate();
    lines.find(|(_, line)| line.trim() == "#[cfg(test)]").map_or(usize::MAX, |(index, _)| index + 1)
}

/// Whether `path` is `module` or something in it.
fn is_below(path: &str, module: &str) -> bool {
    path.strip_prefix(module).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

/// The lines with `word` in them, not as the end of a longer one.
fn words<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    code.lines().enumerate().filter_map(move |(index, line)| {
        let position = line.find(word)?;
        let whole = line[..position].chars().next_back().is_none_or(|character| !source::is_word(character));
        whole.then_some(index + 1)
    })
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines with findings in a file.
    fn lines(path: &str, text: &str) -> Vec<usize> {
        file(Path::new(path), text).into_iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn core_is_pure() {
        let text = "use std::collections::BTreeMap;\nuse std::{fs, time::{Duration, Instant}};\n// std::net\n";
        assert_eq!(lines("agent/core/src/plan.rs", text), [2, 2]);
        assert_eq!(lines("agent/src/main.rs", text), [0; 0]);
    }

    #[test]
    fn only_the_enforcer_knows_bpf() {
        let text = "use aya::maps::HashMap;\nlet n = libc::SYS_bpf;\n";
        assert_eq!(lines("agent/src/audit/reader.rs", text), [1, 2]);
        assert_eq!(lines("agent/src/executors/enforcer/link.rs", text), [0; 0]);
        assert_eq!(lines("agent/src/executors/enforcer.rs", text), [0; 0]);
    }

    #[test]
    fn tests_are_run_and_do_not_sleep() {
        let text = "std::thread::sleep(d);\n#[cfg(test)]\nmod tests {\n#[ignore = \"slow\"]\nthread::sleep(d);\ntokio::time::sleep(d);\n}\n";
        assert_eq!(lines("agent/src/a.rs", text), [4, 5, 6]);
        assert_eq!(lines("tests/tests/host_a.rs", "thread::sleep(d);\n"), [1]);
    }

    #[test]
    fn nothing_is_unfinished_or_too_long() {
        assert_eq!(lines("agent/src/a.rs", "fn f() {\n    todo!()\n}\n"), [2]);
        assert_eq!(lines("agent/src/a.rs", &"\n".repeat(601)), [601]);
    }

    #[test]
    fn each_row_has_a_fault() {
        let path = Path::new("tests/tests/host_a.rs");
        let mut rows = Rows::default();
        rows.add(path, "fn b25_survives() {}\nfn b26_one() {}\n").unwrap();
        rows.add(path, "// Fault: agent/src/a.rs\n// - a\nfn b26_two() {}\n").unwrap();
        let without: Vec<_> = rows.without_fault().map(|finding| finding.line).collect();
        assert_eq!(without, [1]);
        Rows::default().add(path, "// Fault: agent/src/a.rs\nfn b25_survives() {}\n").unwrap_err();
    }

    #[test]
    fn members_inherit_the_lints() {
        assert_eq!(manifest("[lints]\nworkspace = true\n").unwrap(), None);
        assert!(manifest("[package]\nname = \"a\"\n").unwrap().is_some());
    }
}
