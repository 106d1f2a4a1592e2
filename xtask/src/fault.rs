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
//!
//! A function that is no test of its own but that of a trial is known by the trial's name, as in `trial("b25_link_survives_sigkill", survives)`.

use std::path::PathBuf;

use anyhow::{Result, bail};

use crate::source::is_word;

/// A change of one file of the product, and the test that must notice it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    /// The test's name, without its module.
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

/// A test and the faults in the comment before its function.
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
        } else if let Some(function) = function(line) {
            let name = trial(source, function).unwrap_or(function);
            if !open.is_empty() || row(name).is_some() {
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

/// The row of the bug cases that a test is named after: `b21` for `b21_access_f_ok`.
pub(crate) fn row(test: &str) -> Option<&str> {
    let (row, _) = test.split_once('_')?;
    let digits = row.strip_prefix('b')?;
    (digits.len() >= 2 && digits.bytes().all(|digit| digit.is_ascii_digit())).then_some(row)
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

/// The name in the call that makes a trial of `function`: the string before the function, with a comma between.
fn trial<'a>(source: &'a str, function: &str) -> Option<&'a str> {
    let named = |(position, _): (usize, &str)| {
        let (before, after) = (&source[..position], &source[position + function.len()..]);
        if before.ends_with(is_word) || after.starts_with(is_word) {
            return None;
        }
        let module = |character| is_word(character) || character == ':';
        let literal = before.trim_end_matches(module).trim_end().strip_suffix(',')?.trim_end().strip_suffix('"')?;
        let name = &literal[literal.rfind('"')? + 1..];
        (!name.is_empty() && name.chars().all(is_word)).then_some(name)
    };
    source.match_indices(function).find_map(named)
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
        assert_eq!(row("b06_one_program"), Some("b06"));
        assert_eq!(row("blocks_open_twice"), None);
        assert_eq!(row("b6_x"), None);
    }

    #[test]
    fn function_of_a_trial_is_known_by_its_name() {
        let source = "\
fn trials() {
    trial(\"b60_a_fresh_inode\", fresh_inode),
    trial(
        \"a_long_name\",
        cases::label,
    ),
}
// Fault: a.rs
// - x
fn fresh_inode() {}
// Fault: a.rs
// - y
fn label() {}
";
        let names: Vec<_> = tests(source).unwrap().into_iter().map(|test| test.name).collect();
        assert_eq!(names, ["b60_a_fresh_inode", "a_long_name"]);
    }
}
