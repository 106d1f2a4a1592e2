use std::fmt;

use crate::NodePath;

/// The stable path of a class's devices inside of containers, perhaps with `%i` for the device's index.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PathTemplate {
    before: String,
    /// What follows `%i`; `None` if the path has none.
    after: Option<String>,
}

/// What is wrong with a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PathProblem {
    #[error("the path is not below /dev")]
    NotBelowDev,
    #[error("the path has an empty component, `.` or `..`")]
    NotPlain,
    #[error("the path has a `%` that is not a single `%i`")]
    Percent,
    #[error("the path has a space, a control character or a character beyond ASCII")]
    Character,
    #[error("the path is longer than 200 characters")]
    TooLong,
    #[error("every container has something else there")]
    Standard,
}

impl PathProblem {
    pub(crate) fn remedy(self) -> &'static str {
        match self {
            Self::NotBelowDev => "write a path such as /dev/scanner",
            Self::NotPlain => "write each folder once, and no `.` or `..`",
            Self::Percent => "write %i once where the index belongs, or leave it out",
            Self::Character => "use letters, digits and . _ - + : @",
            Self::TooLong => "choose a shorter path",
            Self::Standard => "choose a name that is not in use, such as /dev/scanner",
        }
    }
}

impl PathTemplate {
    const MAX_LEN: usize = 200;

    pub(crate) fn new(text: &str) -> Result<Self, PathProblem> {
        if text.len() > Self::MAX_LEN {
            return Err(PathProblem::TooLong);
        }
        let Some(below) = text.strip_prefix("/dev/") else { return Err(PathProblem::NotBelowDev) };
        if below.split('/').any(|part| matches!(part, "" | "." | "..")) {
            return Err(PathProblem::NotPlain);
        }
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) || text.contains('\\') {
            return Err(PathProblem::Character);
        }
        let mut parts = text.split('%');
        let before = parts.next().unwrap_or_default().to_owned();
        let after = match parts.next() {
            None => None,
            Some(rest) => Some(rest.strip_prefix('i').ok_or(PathProblem::Percent)?.to_owned()),
        };
        if parts.next().is_some() {
            return Err(PathProblem::Percent);
        }
        if is_standard_path(text) {
            return Err(PathProblem::Standard);
        }
        Ok(Self { before, after })
    }

    /// Whether each device has a path of its own.
    pub fn is_indexed(&self) -> bool {
        self.after.is_some()
    }

    /// The path for an index; the same for every index if the template has no `%i`.
    pub fn path(&self, index: u32) -> NodePath {
        match &self.after {
            Some(after) => NodePath::from(format!("{}{index}{after}", self.before).as_str()),
            None => NodePath::from(self.before.as_str()),
        }
    }

    /// The index that makes the template this path, if there is one.
    pub fn index_of(&self, path: &str) -> Option<u32> {
        let Some(after) = &self.after else { return (path == self.before).then_some(0) };
        let digits = path.strip_prefix(self.before.as_str())?.strip_suffix(after.as_str())?;
        let index = digits.parse().ok()?;
        // `+1` and `01` are read as numbers too, but no index is written so.
        (self.path(index).as_str() == path).then_some(index)
    }
}

impl fmt::Display for PathTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.before)?;
        if let Some(after) = &self.after {
            write!(f, "%i{after}")?;
        }
        Ok(())
    }
}

/// Whether every container has something at a path, or in the folder that begins it: the default devices, links and
/// mounts of the OCI runtime specification ("Default Devices", "Dev symbolic links", "Default Filesystems").
pub(crate) fn is_standard_path(path: &str) -> bool {
    let Some(below) = path.strip_prefix("/dev/") else { return true };
    let first = below.split('/').next().unwrap_or_default();
    matches!(
        first,
        "null"
            | "zero"
            | "full"
            | "random"
            | "urandom"
            | "tty"
            | "console"
            | "ptmx"
            | "pts"
            | "shm"
            | "mqueue"
            | "hugepages"
            | "fd"
            | "stdin"
            | "stdout"
            | "stderr"
            | "core"
    )
}
