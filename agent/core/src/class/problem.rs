use std::fmt;

/// What is wrong with one field of a class, so that a user can put it right without reading anything else.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// The path of the field in the document: `spec.match[0].properties.ID_SERIAL`. Keys with a dot or a bracket in them
    /// stand as they are; the path is compared, never taken apart.
    pub field: String,
    /// The value found there.
    pub value: String,
    /// What is wrong with it.
    pub reason: String,
    /// What to write instead.
    pub remedy: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {:?}: {}; {}", self.field, self.value, self.reason, self.remedy)
    }
}
