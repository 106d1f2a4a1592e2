//! Collecting results and showing them.

use std::fmt;
use std::ops::AddAssign;
use std::time::Duration;

use super::parse::{self, Skip};
use super::process::Ended;
use super::tier::Tier;

/// How many tests did what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    pub(crate) skipped: usize,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

/// What one executable's tests did, or one check of xtask itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) passed: usize,
    /// The names of the failed tests.
    pub(crate) failed: Vec<String>,
    pub(crate) skipped: Vec<Skip>,
    /// All that the failed tests printed.
    pub(crate) output: String,
}

impl Outcome {
    /// A single failed test.
    pub(crate) fn failure(test: impl Into<String>, output: impl Into<String>) -> Self {
        Self { failed: vec![test.into()], output: output.into(), ..Self::default() }
    }

    /// What a run of an executable means. It also fails if it ends otherwise than its results say, is killed or breaks off.
    pub(crate) fn of(ended: &Ended) -> Self {
        let everything = || format!("{}\n{}", ended.stdout.trim_end(), ended.stderr.trim_end());
        let Some(status) = ended.status else {
            return Self::failure(
                format!("does not end: killed after {:.0} s", ended.time.as_secs_f64()),
                everything(),
            );
        };
        let Some(summary) = parse::summary(&ended.stdout) else {
            return Self::failure(format!("breaks off ({status})"), everything());
        };
        if status.success() != summary.failed.is_empty() {
            let name = format!("ends with {status}, against its {} failed tests", summary.failed.len());
            return Self::failure(name, everything());
        }
        let output = if summary.failed.is_empty() {
            String::new()
        } else {
            let shown = parse::failure_output(&ended.stdout).unwrap_or(&ended.stdout);
            format!("{shown}\n{}", ended.stderr.trim_end())
        };
        Self { passed: summary.passed as usize, failed: summary.failed, skipped: summary.skipped, output }
    }

    pub(crate) fn counts(&self) -> Counts {
        Counts { passed: self.passed, failed: self.failed.len(), skipped: self.skipped.len() }
    }
}

/// Everything that was run, shown as it comes in.
#[derive(Debug, Default)]
pub(crate) struct Report {
    tiers: Vec<(Tier, Counts, Duration, Option<String>)>,
    failed: Vec<String>,
    skipped: Vec<String>,
}

impl Report {
    /// Adds and shows an outcome of `tier`, which must have begun.
    pub(crate) fn add(&mut self, origin: &str, outcome: &Outcome, time: Duration) {
        let Some((tier, counts, total, _)) = self.tiers.last_mut() else { return };
        *counts += outcome.counts();
        *total += time;
        if outcome.counts() == Counts::default() {
            return;
        }
        println!("{}  {origin}: {} in {:.2} s", tier.name(), outcome.counts(), time.as_secs_f64());
        for test in &outcome.failed {
            println!("  FAILED {test}");
            self.failed.push(format!("{}  {origin}  {test}", tier.name()));
        }
        for Skip { test, reason } in &outcome.skipped {
            println!("  skipped {test}: {reason}");
            self.skipped.push(format!("{}  {origin}  {test}: {reason}", tier.name()));
        }
        for line in outcome.output.trim_end().lines() {
            println!("    {line}");
        }
    }

    /// Begins a tier.
    pub(crate) fn begin(&mut self, tier: Tier) {
        self.tiers.push((tier, Counts::default(), Duration::ZERO, None));
    }

    /// Notes that the tier that has begun is not run, with its `count` tests.
    pub(crate) fn skip_tier(&mut self, count: usize, reason: String) {
        if let Some((_, counts, _, skipped)) = self.tiers.last_mut() {
            counts.skipped += count;
            *skipped = Some(reason);
        }
    }

    /// What the tests of the tier that has begun did so far.
    pub(crate) fn tier_counts(&self) -> Counts {
        self.tiers.last().map_or_else(Counts::default, |(_, counts, _, _)| *counts)
    }

    /// Shows each tier and the sum, which is the last line; returns the sum.
    pub(crate) fn finish(&self) -> Counts {
        println!();
        for line in &self.skipped {
            println!("skipped  {line}");
        }
        for line in &self.failed {
            println!("FAILED  {line}");
        }
        let mut sum = Counts::default();
        for (tier, counts, time, skipped) in &self.tiers {
            sum += *counts;
            match skipped {
                Some(reason) => println!("tier {}: not run, {reason} ({} tests)", tier.name(), counts.skipped),
                None if *counts == Counts::default() => println!("tier {}: no tests", tier.name()),
                None => println!("tier {}: {counts} in {:.1} s", tier.name(), time.as_secs_f64()),
            }
        }
        println!("{sum}");
        sum
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::ExitStatus;

    use super::*;

    fn ended(status: Option<i32>, stdout: &str) -> Ended {
        Ended {
            status: status.map(ExitStatus::from_raw),
            stdout: stdout.into(),
            stderr: String::new(),
            time: Duration::from_secs(3),
            left: Vec::new(),
        }
    }

    const PASSED: &str = "running 2 tests\ntest a ... ok\ntest b ... ok\n\
        test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s\n";

    #[test]
    fn executable_whose_tests_pass_passes() {
        let outcome = Outcome::of(&ended(Some(0), PASSED));
        assert_eq!(outcome.counts(), Counts { passed: 2, failed: 0, skipped: 0 });
    }

    #[test]
    fn executable_that_ends_badly_fails_whatever_it_printed() {
        assert_eq!(Outcome::of(&ended(Some(101 << 8), PASSED)).failed.len(), 1);
        assert_eq!(Outcome::of(&ended(Some(9), "running 2 tests\ntest a ... ok\n")).failed.len(), 1);
        assert_eq!(Outcome::of(&ended(Some(0), "")).failed.len(), 1);
        assert_eq!(Outcome::of(&ended(None, PASSED)).failed, ["does not end: killed after 3 s"]);
    }

    #[test]
    fn counts_are_shown_as_the_last_line_wants_them() {
        assert_eq!(Counts { passed: 3, failed: 0, skipped: 1 }.to_string(), "3 passed, 0 failed, 1 skipped");
    }
}
