//! One warning for each cause.

use std::collections::BTreeMap;
use std::error::Error;
use std::iter;

/// What has been complained about and still holds, by what it is about.
#[derive(Debug)]
pub(super) struct Complaints<T>(BTreeMap<T, String>);

impl<T: Ord> Default for Complaints<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T: Ord> Complaints<T> {
    /// The words for a warning; `None` if that has been said.
    pub(super) fn about(&mut self, subject: T, error: &dyn Error) -> Option<String> {
        let words = chain(error);
        if self.0.get(&subject) == Some(&words) {
            return None;
        }
        self.0.insert(subject, words.clone());
        Some(words)
    }

    /// Nothing is wrong any more. Whether something was.
    pub(super) fn settled(&mut self, subject: &T) -> bool {
        self.0.remove(subject).is_some()
    }

    /// Forgets what is about none of these.
    pub(super) fn retain(&mut self, mut is_there: impl FnMut(&T) -> bool) {
        self.0.retain(|subject, _| is_there(subject));
    }
}

/// An error with all that caused it.
fn chain(error: &dyn Error) -> String {
    iter::successors(Some(error), |&error| error.source()).map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn a_cause_is_told_once_until_it_has_gone() {
        let mut complaints = Complaints::default();
        let (one, other) = (io::Error::other("one"), io::Error::other("other"));
        assert_eq!(complaints.about(1, &one).as_deref(), Some("one"));
        assert_eq!(complaints.about(1, &one), None);
        assert!(complaints.about(2, &one).is_some());
        assert!(complaints.about(1, &other).is_some());
        assert!(complaints.settled(&1));
        assert!(!complaints.settled(&1));
        assert!(complaints.about(1, &other).is_some());
        complaints.retain(|subject| *subject == 1);
        assert!(!complaints.settled(&2));
    }
}
