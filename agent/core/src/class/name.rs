use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

/// The name of a class: lower case letters, digits and `-`, beginning and ending with a letter or digit, at most 63
/// characters. So it fits a Kubernetes resource, a label's value and a file's name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClassName(Arc<str>);

impl ClassName {
    /// The most characters a name can have: those of a DNS label (RFC 1123).
    pub const MAX_LEN: usize = 63;

    /// The name, or `None` if the text is unfit for one.
    pub fn new(text: &str) -> Option<Self> {
        let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        let fit = (1..=Self::MAX_LEN).contains(&text.len())
            && text.bytes().all(inner)
            && !text.starts_with('-')
            && !text.ends_with('-');
        fit.then(|| Self(text.into()))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for ClassName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ClassName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ClassName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}
