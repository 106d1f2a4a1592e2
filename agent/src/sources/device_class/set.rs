//! The classes of all files together.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use devgate_core::{ClassName, CompiledClass};

use super::file::ClassFile;
use crate::yaml::Fault;

/// What the files of a folder say, and what of it is in force.
#[derive(Clone, Debug, Default)]
pub struct ClassSet {
    /// By the name of the file, so that the order is that of `ls`.
    files: BTreeMap<(OsString, PathBuf), State>,
}

#[derive(Clone, Debug, Default)]
struct State {
    file: ClassFile,
    classes: Vec<Held>,
}

/// A class in force, by one document.
#[derive(Clone, Debug)]
struct Held {
    class: Arc<CompiledClass>,
    line: usize,
    /// The document is wrong now; this is what it said before.
    kept: bool,
}

/// Something in a file of classes that is to be put right.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClassProblem {
    /// The file.
    pub file: PathBuf,
    /// What is wrong, with its line.
    pub fault: Fault,
    /// The class, as far as it can be told.
    pub class: Option<String>,
}

impl fmt::Display for ClassProblem {
    /// `file:line: class NAME: field: value: reason; remedy`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, fault, class } = self;
        write!(f, "{}:{}: ", file.display(), fault.line)?;
        if let Some(class) = class {
            write!(f, "class {class}: ")?;
        }
        fault.fmt(f)
    }
}

impl ClassSet {
    /// Takes in all files that there are.
    pub fn replace(&mut self, files: Vec<(PathBuf, ClassFile)>) {
        self.files.retain(|(_, known), _| files.iter().any(|(path, _)| path == known));
        for (path, file) in files {
            self.update(&path, Some(file));
        }
    }

    /// Takes in one file; `None` if it has gone.
    pub fn update(&mut self, path: &Path, file: Option<ClassFile>) {
        let key = (path.file_name().unwrap_or_default().to_owned(), path.to_owned());
        let Some(file) = file else {
            self.files.remove(&key);
            return;
        };
        let before = self.files.remove(&key).unwrap_or_default();
        let classes = held(&file, &before.classes);
        self.files.insert(key, State { file, classes });
    }

    /// The classes in force. Of two with one name the first has it, by the names of the files and the order in them.
    pub fn usable(&self) -> Vec<Arc<CompiledClass>> {
        let mut usable: BTreeMap<&ClassName, &Arc<CompiledClass>> = BTreeMap::new();
        for held in self.files.values().flat_map(|state| &state.classes) {
            usable.entry(&held.class.name).or_insert(&held.class);
        }
        usable.into_values().cloned().collect()
    }

    /// The classes in force whose documents are wrong now.
    pub fn kept(&self) -> BTreeSet<ClassName> {
        let all = self.files.values().flat_map(|state| &state.classes);
        all.filter(|held| held.kept).map(|held| held.class.name.clone()).collect()
    }

    /// Everything that is to be put right, by file and line.
    pub fn problems(&self) -> Vec<ClassProblem> {
        let mut problems = Vec::new();
        for ((_, path), State { file, .. }) in &self.files {
            for document in &file.documents {
                let Err(faults) = &document.class else { continue };
                problems.extend(faults.iter().map(|fault| ClassProblem {
                    file: path.clone(),
                    fault: fault.clone(),
                    class: document.name.clone(),
                }));
            }
        }
        problems.extend(self.duplicates());
        problems.sort();
        problems
    }

    /// Every document of a name that several have.
    fn duplicates(&self) -> Vec<ClassProblem> {
        let mut places: BTreeMap<&ClassName, Vec<(&Path, usize)>> = BTreeMap::new();
        for ((_, path), state) in &self.files {
            for held in &state.classes {
                places.entry(&held.class.name).or_default().push((path, held.line));
            }
        }
        let mut problems = Vec::new();
        for (name, places) in places {
            let Some(((first, first_line), others)) = places.split_first() else { continue };
            for (path, line) in others {
                let at = |path: &Path, line: usize| format!("{}:{line}", path.display());
                let reason = |what: String| Fault {
                    line: 0,
                    field: "metadata.name".to_owned(),
                    value: name.to_string(),
                    reason: what,
                    remedy: "give one of them another name or take it out".to_owned(),
                };
                let here = Fault { line: *line, ..reason(format!("the class of {} is used", at(first, *first_line))) };
                let there = Fault {
                    line: *first_line,
                    ..reason(format!("{} has a class of this name too, which is not used", at(path, *line)))
                };
                for (file, fault) in [(*path, here), (*first, there)] {
                    problems.push(ClassProblem { file: file.to_owned(), fault, class: Some(name.to_string()) });
                }
            }
        }
        problems
    }
}

/// The classes in force by a file as it is now, given those by what it was before.
fn held(file: &ClassFile, before: &[Held]) -> Vec<Held> {
    let mut now = Vec::new();
    for document in &file.documents {
        if let Ok(class) = &document.class {
            // What has not changed stays the same thing, which spares everybody a comparison.
            let same = before.iter().find(|held| held.class == *class).map(|held| held.class.clone());
            now.push(Held { class: same.unwrap_or_else(|| class.clone()), line: document.line, kept: false });
        }
    }
    let bad: Vec<_> = file.documents.iter().filter(|document| document.class.is_err()).collect();
    for old in before {
        let name = old.class.name.as_str();
        if now.iter().any(|held| held.class.name == old.class.name) {
            continue;
        }
        // A document whose name cannot be read may be that of any class that was here.
        let by_name = bad.iter().find(|document| document.name.as_deref() == Some(name));
        if let Some(document) = by_name.or_else(|| bad.iter().find(|document| document.name.is_none())) {
            now.push(Held { class: old.class.clone(), line: document.line, kept: true });
        }
    }
    now
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(name: &str, path: &str) -> String {
        format!(
            "---\napiVersion: devgate.dev/v1alpha1\nkind: DeviceClass\nmetadata: {{ name: {name} }}\nspec:\n  match: [ {{ \
             subsystem: tty }} ]\n  allocation: {{ kind: All }}\n  path: {path}\n"
        )
    }

    fn update(set: &mut ClassSet, file: &str, text: &str) {
        set.update(Path::new(file), Some(ClassFile::read(text.as_bytes())));
    }

    fn usable(set: &ClassSet) -> Vec<String> {
        let describe = |class: &Arc<CompiledClass>| {
            format!("{} {}", class.name, class.path.as_ref().map(ToString::to_string).unwrap_or_default())
        };
        set.usable().iter().map(describe).collect()
    }

    #[test]
    fn a_class_that_becomes_wrong_keeps_its_last_state() {
        let mut set = ClassSet::default();
        update(&mut set, "/c/a.yaml", &(class("one", "/dev/one") + &class("two", "/dev/two")));
        update(&mut set, "/c/a.yaml", &(class("one", "relative") + &class("two", "/dev/zwei")));
        assert_eq!(usable(&set), ["one /dev/one", "two /dev/zwei"], "the other one changes");
        assert_eq!(set.kept().len(), 1);
        assert_eq!(
            set.problems()[0].to_string(),
            "/c/a.yaml:8: class one: spec.path: \"relative\": the path is not below /dev; write a path such as /dev/scanner"
        );
        update(&mut set, "/c/a.yaml", &(class("one", "/dev/eins") + "---\n{ broken"));
        assert_eq!(usable(&set), ["one /dev/eins", "two /dev/zwei"], "what cannot be read may be the other one");
        update(&mut set, "/c/a.yaml", &class("one", "/dev/eins"));
        assert_eq!(usable(&set), ["one /dev/eins"], "what is taken out is gone");
        assert!(set.problems().is_empty());
    }

    #[test]
    fn a_file_that_goes_takes_its_classes_with_it_and_no_others() {
        let mut set = ClassSet::default();
        update(&mut set, "/c/a.yaml", &class("one", "/dev/one"));
        update(&mut set, "/c/b.yaml", &class("two", "/dev/two"));
        set.update(Path::new("/c/a.yaml"), None);
        assert_eq!(usable(&set), ["two /dev/two"]);
        set.replace(vec![("/c/c.yaml".into(), ClassFile::read(class("three", "/dev/three").as_bytes()))]);
        assert_eq!(usable(&set), ["three /dev/three"]);
    }

    #[test]
    fn of_two_classes_with_one_name_the_first_file_has_it_and_both_are_reported() {
        let mut set = ClassSet::default();
        update(&mut set, "/c/b.yaml", &class("one", "/dev/b"));
        update(&mut set, "/c/a.yaml", &class("one", "/dev/a"));
        assert_eq!(usable(&set), ["one /dev/a"]);
        let problems: Vec<_> = set.problems().iter().map(ToString::to_string).collect();
        assert_eq!(
            problems,
            [
                "/c/a.yaml:1: class one: metadata.name: \"one\": /c/b.yaml:1 has a class of this name too, which is not used; \
                 give one of them another name or take it out",
                "/c/b.yaml:1: class one: metadata.name: \"one\": the class of /c/a.yaml:1 is used; give one of them another \
                 name or take it out",
            ]
        );
        set.update(Path::new("/c/a.yaml"), None);
        assert_eq!(usable(&set), ["one /dev/b"], "the second comes into force");
    }

    #[test]
    fn a_file_that_cannot_be_read_keeps_its_classes() {
        let mut set = ClassSet::default();
        update(&mut set, "/c/a.yaml", &class("one", "/dev/one"));
        let error = std::io::Error::from(std::io::ErrorKind::PermissionDenied);
        set.update(Path::new("/c/a.yaml"), Some(ClassFile::unreadable(&error)));
        assert_eq!(usable(&set), ["one /dev/one"]);
        assert_eq!(set.problems().len(), 1);
    }
}
