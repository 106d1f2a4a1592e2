//! YAML as people write it in files: every value knows its line, every problem is found, and a bad document leaves the
//! others alone.
//!
//! The parser is `saphyr-parser`, which gives events with positions. On these a tree is built, and types are read from
//! the tree with serde. What does not fit is noted and read over, so that one look at a file tells all that is wrong.

mod document;
mod node;
mod read;
mod scalar;

pub(crate) use document::{Document, documents};

/// What is wrong at one place of a file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fault {
    /// The line, from 1.
    pub line: usize,
    /// The path of the field in its document, such as `spec.match[0].subsystem`; empty for the document itself.
    pub field: String,
    /// What is written there; empty for something longer than a word.
    pub value: String,
    /// What is wrong with it.
    pub reason: String,
    /// What to write instead.
    pub remedy: String,
}

impl std::fmt::Display for Fault {
    /// Without the line, which belongs behind the name of the file.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { line: _, field, value, reason, remedy } = self;
        if !field.is_empty() {
            write!(f, "{field}: ")?;
        }
        if !value.is_empty() {
            write!(f, "{value:?}: ")?;
        }
        write!(f, "{reason}; {remedy}")
    }
}
