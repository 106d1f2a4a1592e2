//! Reading what test executables print: those of Rust's own harness and those of libtest-mimic.

/// What the tests of one executable did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Summary {
    pub(crate) passed: u32,
    pub(crate) failed: Vec<String>,
    pub(crate) skipped: Vec<Skip>,
}

/// A test that was not run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Skip {
    pub(crate) test: String,
    pub(crate) reason: String,
}

/// The results in the output of an executable, or of several in a row; none if it ends before it says how many tests passed.
///
/// The counts are those of the executable's last line, since output of the tests themselves may be mixed with the lines before.
pub(crate) fn summary(output: &str) -> Option<Summary> {
    let mut summary = Summary::default();
    let mut results = 0;
    let mut running = 0;
    let mut failed = Vec::new();
    let mut skipped = Vec::new();
    for line in output.lines() {
        if line.starts_with("running ") && (line.ends_with(" tests") || line.ends_with(" test")) {
            running += 1;
        } else if let Some(counts) = line.strip_prefix("test result: ") {
            results += 1;
            summary.passed += count(counts, "passed")?;
            summary.failed.extend(named(&mut failed, count(counts, "failed")?, String::clone, |name| name));
            let unnamed = |test| Skip { test, reason: String::new() };
            summary.skipped.extend(named(
                &mut skipped,
                count(counts, "ignored")?,
                |skip: &Skip| skip.test.clone(),
                unnamed,
            ));
        } else if let Some((test, outcome)) = outcome(line) {
            if outcome == "FAILED" {
                failed.push(test.to_owned());
            } else if let Some(reason) = outcome.strip_prefix("ignored") {
                skipped.push(Skip { test: test.to_owned(), reason: reason_of(reason).to_owned() });
            }
        }
    }
    (results > 0 && results >= running).then_some(summary)
}

/// Everything that the failed tests printed, as the executable shows it at its end.
pub(crate) fn failure_output(output: &str) -> Option<&str> {
    let (_, after) = output.split_once("\nfailures:\n")?;
    let end = after.rfind("\nfailures:\n").unwrap_or(after.len());
    Some(after[..end].trim_matches('\n'))
}

/// The tests in the output of `--list`.
pub(crate) fn list(output: &str) -> Vec<String> {
    output.lines().filter_map(|line| line.strip_suffix(": test")).map(|name| without_kind(name).to_owned()).collect()
}

/// The test and the outcome of a line `test NAME ... OUTCOME`.
fn outcome(line: &str) -> Option<(&str, &str)> {
    let (test, outcome) = line.strip_prefix("test ")?.split_once(" ... ")?;
    // Rust's harness marks a test that should panic; libtest-mimic pads the names.
    let test = test.trim_end();
    Some((without_kind(test.strip_suffix(" - should panic").unwrap_or(test)), outcome.trim_end()))
}

/// libtest-mimic shows a test's kind as `[kind] name`.
fn without_kind(name: &str) -> &str {
    match name.split_once("] ") {
        Some((kind, rest)) if kind.starts_with('[') => rest.trim_start(),
        _ => name,
    }
}

/// The reason after `ignored`: `, reason` or ` (reason)`.
fn reason_of(rest: &str) -> &str {
    let in_brackets = || rest.strip_prefix(" (").and_then(|rest| rest.strip_suffix(')'));
    rest.strip_prefix(", ").or_else(in_brackets).unwrap_or(rest.trim())
}

/// The number before `word` in `ok. 3 passed; 0 failed; ...`.
fn count(counts: &str, word: &str) -> Option<u32> {
    let (before, _) = counts.split_once(&format!(" {word}"))?;
    before.rsplit(' ').next()?.parse().ok()
}

/// Takes `count` entries from `found`; makes up names for those whose lines were not understood, so that none is lost.
fn named<T>(found: &mut Vec<T>, count: u32, name: impl Fn(&T) -> String, make: impl Fn(String) -> T) -> Vec<T> {
    let count = count as usize;
    let mut taken = std::mem::take(found);
    let mut seen = std::collections::BTreeSet::new();
    taken.retain(|entry| seen.insert(name(entry)));
    taken.truncate(count);
    for number in taken.len()..count {
        taken.push(make(format!("(unnamed {})", number + 1)));
    }
    taken
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIBTEST: &str = "
running 4 tests
test rule::tests::older_epoch_denies ... ok
test rule::tests::needs_a_device ... ignored, no such device
test rule::tests::panics - should panic ... FAILED
test rule::tests::wrong ... FAILED

failures:

---- rule::tests::wrong stdout ----

thread 'rule::tests::wrong' (7) panicked at src/lib.rs:3:5:
assertion failed: 1 == 2
note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace

---- rule::tests::panics stdout ----
note: test did not panic as expected at src/lib.rs:9:8

failures:
    rule::tests::panics
    rule::tests::wrong

test result: FAILED. 1 passed; 2 failed; 1 ignored; 0 measured; 7 filtered out; finished in 0.01s

";

    const MIMIC: &str = "
running 3 tests
test [host] link_survives  ... ok
test [host] fentry         ... ignored (no function tracer)
test [host] grants         ... FAILED

failures:

---- grants ----
test panicked: open: EPERM


failures:
    grants

test result: FAILED. 1 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.03s

";

    fn skip(test: &str, reason: &str) -> Skip {
        Skip { test: test.into(), reason: reason.into() }
    }

    #[test]
    fn rust_s_own_harness_is_read() {
        let expected = Summary {
            passed: 1,
            failed: vec!["rule::tests::panics".into(), "rule::tests::wrong".into()],
            skipped: vec![skip("rule::tests::needs_a_device", "no such device")],
        };
        assert_eq!(summary(LIBTEST), Some(expected));
        let shown = failure_output(LIBTEST).unwrap();
        assert!(shown.starts_with("---- rule::tests::wrong stdout ----"));
        assert!(shown.ends_with("did not panic as expected at src/lib.rs:9:8"));
    }

    #[test]
    fn libtest_mimic_is_read() {
        let expected =
            Summary { passed: 1, failed: vec!["grants".into()], skipped: vec![skip("fentry", "no function tracer")] };
        assert_eq!(summary(MIMIC), Some(expected));
        assert_eq!(failure_output(MIMIC), Some("---- grants ----\ntest panicked: open: EPERM"));
    }

    #[test]
    fn several_executables_add_up() {
        let both = summary(&format!("{LIBTEST}{MIMIC}")).unwrap();
        assert_eq!((both.passed, both.failed.len(), both.skipped.len()), (2, 3, 2));
    }

    #[test]
    fn output_that_breaks_off_is_no_summary() {
        assert_eq!(summary(""), None);
        assert_eq!(summary(&MIMIC[..MIMIC.find("test result").unwrap()]), None);
        assert_eq!(summary(&format!("{MIMIC}\nrunning 3 tests\ntest a ... ok\n")), None);
    }

    #[test]
    fn no_result_is_lost_to_output_in_the_wrong_place() {
        let mixed = "running 2 tests\ntest a ... child process\nFAILED\ntest b ... ok\n\
            test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s\n";
        assert_eq!(summary(mixed).unwrap().failed, ["(unnamed 1)"]);
    }

    #[test]
    fn list_is_read() {
        assert_eq!(list("a::b: test\n[host] c: test\nd: bench\n\n2 tests, 1 benchmark\n"), ["a::b", "c"]);
    }
}
