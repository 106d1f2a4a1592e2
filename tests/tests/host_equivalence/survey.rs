//! Asks the kernel all questions and compares.

use anyhow::Result;
use devgate::executors::enforcer::AuditReader;
use devgate_abi::{Action, DeviceNumber, Guard, Policy, Reason, Record, RecordFlags, Request};
use devgate_tests::{Answer, Prober, Runtime, TestCgroup, deny_all, fail_all};

use crate::space::{Level, Outcome, decide, requests};

/// How many differences are shown.
const SHOWN: usize = 12;

/// Counts the questions and gathers the differences.
#[derive(Default)]
pub(crate) struct Comparison {
    pub(crate) questions: u64,
    pub(crate) changed: u64,
    differences: Vec<String>,
}

/// Where a task is and what holds for it.
pub(crate) struct Situation<'a> {
    pub(crate) prior: i32,
    pub(crate) outside: Policy,
    pub(crate) guard: Guard,
    /// What the levels are for a device, by its index.
    pub(crate) levels: &'a dyn Fn(usize) -> Vec<Level>,
    /// For the text of a difference.
    pub(crate) place: &'a str,
}

/// Has the verdict so far be `prior` in a cgroup, until the value is dropped.
pub(crate) fn leave(prior: i32, cgroup: &TestCgroup) -> Result<Option<Runtime>> {
    Ok(match -prior {
        0 => None,
        libc::EPERM => Some(deny_all(cgroup)?),
        errno => Some(fail_all(cgroup, errno)?),
    })
}

impl Comparison {
    /// Asks all questions about `count` devices from `first` on, and compares answers with the decision function's. With
    /// a reader of the records, every one must be recorded, and records are compared too.
    pub(crate) fn survey(
        &mut self,
        prober: &mut Prober,
        reader: Option<&mut AuditReader>,
        first: DeviceNumber,
        count: u32,
        situation: &Situation<'_>,
    ) {
        let answers = prober.survey(first, count);
        let records = reader.map(|reader| {
            let mut records = Vec::new();
            reader.drain(|record| records.push(*record));
            if records.len() != answers.len() {
                self.differences.push(format!("{} records of {} decisions", records.len(), answers.len()));
            }
            records
        });
        let mut records = records.as_ref().map(|records| records.iter());
        for ((index, request), answer) in requests(first, count).zip(answers) {
            let levels = (situation.levels)(index);
            let expected = decide(request, situation.prior, situation.outside, &levels, situation.guard);
            self.questions += 1;
            self.changed += u64::from(expected.verdict != situation.prior);
            let found = records.as_mut().map(|records| records.next().map(outcome));
            let agree = Answer(-expected.verdict) == answer
                && found.as_ref().is_none_or(|found| found.as_ref() == Some(&(request, outcome_of(&expected))));
            if !agree {
                self.differ(request, answer, found.as_ref(), &expected, &levels, situation);
            }
        }
    }

    fn differ(
        &mut self,
        request: Request,
        answer: Answer,
        found: Option<&Option<(Request, Outcome)>>,
        expected: &Outcome,
        levels: &[Level],
        situation: &Situation<'_>,
    ) {
        let rules: Vec<_> = levels.iter().map(|level| (level.policy, level.own, level.rule)).collect();
        self.differences.push(format!(
            "{} {}: the kernel answers {answer:?}\n  records  {found:?}\n  function {expected:?}\n  {} prior {} {:?} {rules:?}",
            request.device, request.access, situation.place, situation.prior, situation.guard,
        ));
    }

    /// # Panics
    ///
    /// If there were differences, or so few questions that something was left out.
    pub(crate) fn finish(self, at_least: u64) {
        let Self { questions, changed, differences } = self;
        println!("{questions} questions compared; {changed} verdicts were changed by the program");
        assert!(
            differences.is_empty(),
            "{} differences in {questions} questions, the first of them:\n{}",
            differences.len(),
            differences[..differences.len().min(SHOWN)].join("\n")
        );
        assert!(questions >= at_least, "only {questions} questions");
        assert!(changed > questions / 50 && changed < questions, "the program changed {changed} of {questions}");
    }
}

/// What a record says.
fn outcome(record: &Record) -> (Request, Outcome) {
    let request = Request { device: record.device, access: devgate_abi::Access::from_bits(record.access) };
    let outcome = Outcome {
        prior: record.prior,
        verdict: record.verdict,
        action: Action::from_raw(record.action),
        reason: Reason::from_raw(record.reason),
        audit_only: record.flags.contains(RecordFlags::AUDIT_ONLY),
        container: record.container,
        rule_id: record.rule_id,
        generation: record.generation,
    };
    (request, outcome)
}

fn outcome_of(expected: &Outcome) -> Outcome {
    Outcome { ..*expected }
}
