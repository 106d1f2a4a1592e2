//! Faults that tests name in their comments: small changes of the product that must turn them red.
//!
//! ```text
//! // Fault: agent/src/executors/enforcer/link.rs
//! // - link.pin(&path)?;
//! // + drop(link);
//! #[test]
//! fn b25_link_survives_sigkill() {
//! ```
//!
//! The lines behind `-` stand in the file, one after the other, exactly once; those behind `+` replace them. White space at their ends does not
//! count. More of these pairs may follow, for the same file, and more faults for the same test.

use std::path::PathBuf;

use anyhow::{Result, bail};

/// A change of one file of the product, and the test that must notice it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    /// The test function's name, without its module.
    pub(crate) test: String,
    /// The file that is changed, from the workspace's root.
    pub(crate) file: PathBuf,
    pub(crate) edits: Vec<Edit>,
    /// Where the fault is written: the line of `Fault:`, the first of a file being 1.
    pub(crate) line: usize,
}

/// Lines to take out and lines to put in their place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Edit {
    pub(crate) old: Vec<String>,
    pub(crate) new: Vec<String>,
}

/// A test function and the faults in the comment before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Test {
    pub(crate) name: String,
    pub(crate) line: usize,
    pub(crate) faults: Vec<Fault>,
}

/// All functions in `source` that have faults or are named after a row of the bug cases, in their order.
///
/// # Errors
///
/// If a fault is not complete or no function follows it.
pub(crate) fn tests(source: &str) -> Result<Vec<Test>> {
    let mut tests = Vec::new();
    let mut open: Vec<Fault> = Vec::new();
    for (number, line) in source.lines().enumerate().map(|(index, line)| (index + 1, line.trim())) {
        if let Some(file) = line.strip_prefix("// Fault:") {
            open.push(Fault { test: String::new(), file: file.trim().into(), edits: Vec::new(), line: number });
        } else if let Some(comment) = line.strip_prefix("//") {
            let Some(fault) = open.last_mut() else { continue };
            match comment.trim_start().split_at_checked(1) {
                Some(("-", old)) => fault.remove(old),
                Some(("+", new)) => fault.insert(new, number)?,
                _ => {}
            }
        } else if let Some(name) = function(line) {
            if !open.is_empty() || names_a_row(name) {
                let faults =
                    std::mem::take(&mut open).into_iter().map(|fault| fault.of(name)).collect::<Result<_>>()?;
                tests.push(Test { name: name.to_owned(), line: number, faults });
            }
        } else if !line.starts_with("#[")
            && !line.is_empty()
            && let Some(fault) = open.first()
        {
            bail!("line {}: no function follows this fault", fault.line);
        }
    }
    match open.first() {
        Some(fault) => bail!("line {}: no function follows this fault", fault.line),
        None => Ok(tests),
    }
}

/// Whether a test is named after a row of the bug cases, as in `b21_access_f_ok`.
pub(crate) fn names_a_row(test: &str) -> bool {
    let digits = |rest: &str| {
        rest.split_once('_').is_some_and(|(row, _)| row.len() >= 2 && row.bytes().all(|byte| byte.is_ascii_digit()))
    };
    test.strip_prefix('b').is_some_and(digits)
}

impl Fault {
    /// `text` with the fault in it.
    ///
    /// # Errors
    ///
    /// If the lines to replace are not in the text, or several times.
    pub(crate) fn apply(&self, text: &str) -> Result<String> {
        let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
        for Edit { old, new } in &self.edits {
            let matches = |window: &[String]| window.iter().zip(old).all(|(line, old)| line.trim() == old);
            let mut places =
                lines.windows(old.len()).enumerate().filter(|(_, window)| matches(window)).map(|(place, _)| place);
            let place = match (places.next(), places.next()) {
                (Some(place), None) => place,
                (None, _) => bail!("the file does not have the lines: {}", old.join(" ⏎ ")),
                (Some(_), Some(_)) => bail!("the file has the lines several times: {}", old.join(" ⏎ ")),
            };
            lines.splice(place..place + old.len(), new.iter().cloned());
        }
        Ok(lines.join("\n") + "\n")
    }

    fn remove(&mut self, line: &str) {
        if self.edits.last().is_none_or(|edit| !edit.new.is_empty()) {
            self.edits.push(Edit::default());
        }
        if let Some(edit) = self.edits.last_mut() {
            edit.old.push(line.trim().to_owned());
        }
    }

    fn insert(&mut self, line: &str, number: usize) -> Result<()> {
        match self.edits.last_mut() {
            Some(edit) => edit.new.push(line.trim().to_owned()),
            None => bail!("line {number}: it is not said what this replaces"),
        }
        Ok(())
    }

    fn of(self, test: &str) -> Result<Self> {
        if self.edits.is_empty() {
            bail!("line {}: the fault changes nothing", self.line);
        }
        Ok(Self { test: test.to_owned(), ..self })
    }
}

/// The name in a line that begins a function.
fn function(line: &str) -> Option<&str> {
    let line = line.strip_prefix("pub ").unwrap_or(line);
    let line = line.strip_prefix("async ").unwrap_or(line);
    let rest = line.strip_prefix("fn ")?;
    rest.split(['(', '<']).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "
// Something else.
fn helper() {}

/// Row B25.
// Fault: agent/src/link.rs
// - link.pin(&path)?;
// -     keep(link);
// + drop(link);
// - let a = 1;
// Fault: agent/src/other.rs
// - x
// + y
/// More words.
#[test]
fn b25_link_survives_sigkill() {
}

#[test]
fn b26_has_no_fault() {}
";

    #[test]
    fn faults_are_read() {
        let tests = tests(SOURCE).unwrap();
        assert_eq!(
            tests.iter().map(|test| (test.name.as_str(), test.faults.len())).collect::<Vec<_>>(),
            [("b25_link_survives_sigkill", 2), ("b26_has_no_fault", 0)]
        );
        let fault = &tests[0].faults[0];
        assert_eq!(fault.file, PathBuf::from("agent/src/link.rs"));
        assert_eq!(fault.line, 6);
        assert_eq!(
            fault.edits,
            [
                Edit { old: vec!["link.pin(&path)?;".into(), "keep(link);".into()], new: vec!["drop(link);".into()] },
                Edit { old: vec!["let a = 1;".into()], new: vec![] },
            ]
        );
    }

    #[test]
    fn fault_replaces_lines_that_stand_there_once() {
        let fault = tests(SOURCE).unwrap().remove(0).faults.remove(0);
        let file = "fn f() {\n    link.pin(&path)?;\n    keep(link);\n    let a = 1;\n}\n";
        assert_eq!(fault.apply(file).unwrap(), "fn f() {\ndrop(link);\n}\n");
        fault.apply("link.pin(&path)?;\nlet a = 1;\n").unwrap_err();
        fault.apply(&file.repeat(2)).unwrap_err();
    }

    #[test]
    fn incomplete_faults_are_refused() {
        tests("// Fault: a.rs\nfn f() {}\n").unwrap_err();
        tests("// Fault: a.rs\n// + x\nfn f() {}\n").unwrap_err();
        tests("// Fault: a.rs\n// - x\nstruct S;\nfn f() {}\n").unwrap_err();
        tests("// Fault: a.rs\n// - x\n").unwrap_err();
    }

    #[test]
    fn rows_are_known_by_their_number() {
        assert!(names_a_row("b06_one_program"));
        assert!(!names_a_row("blocks_open_twice"));
        assert!(!names_a_row("b6"));
    }
}
