//! What the demonstration shows.

use anyhow::Result;

/// The screen, and how many checks there were.
#[derive(Debug, Default)]
pub(super) struct Screen {
    step: u32,
    passed: u32,
    failed: u32,
}

impl Screen {
    /// Begins a step.
    pub(super) fn step(&mut self, title: &str) {
        self.step += 1;
        println!("\n{}. {title}", self.step);
    }

    /// Begins a part that is no step.
    pub(super) fn part(title: &str) {
        println!("\n{title}");
    }

    /// Says something that needs no proof.
    pub(super) fn say(words: &str) {
        for line in words.lines() {
            println!("   {line}");
        }
    }

    /// Says something, and whether it is so.
    pub(super) fn check(&mut self, words: &str, seen: &Seen) {
        match seen {
            Seen::AsExpected => {
                self.passed += 1;
                println!("   ok  {words}");
            }
            Seen::Otherwise(what) => {
                self.failed += 1;
                println!("   NO  {words}\n       but: {what}");
            }
        }
    }

    /// The last line. Returns whether everything was as it should be.
    pub(super) fn finish(self) -> bool {
        let Self { passed, failed, .. } = self;
        if failed == 0 {
            println!("\ndemo: {passed} checks passed");
        } else {
            println!("\ndemo: {failed} of {} checks FAILED", passed + failed);
        }
        failed == 0
    }
}

/// What a check saw.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Seen {
    AsExpected,
    Otherwise(String),
}

impl Seen {
    /// Compares what was seen with what should have been.
    pub(super) fn expect<T: PartialEq + std::fmt::Debug>(seen: &T, expected: &T) -> Self {
        if seen == expected { Self::AsExpected } else { Self::Otherwise(format!("{seen:?}")) }
    }

    /// Something that was waited for came, or did not.
    pub(super) fn came<T>(result: &Result<T>) -> Self {
        match result {
            Ok(_) => Self::AsExpected,
            Err(error) => Self::Otherwise(format!("{error:#}")),
        }
    }
}
