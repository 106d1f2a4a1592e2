//! Running tests.

use std::{fmt, process::ExitCode};

use libtest_mimic::{Arguments, Completion, Failed, Trial};

use crate::{agent, prober};

/// What a test function returns. A test fails by a panic or an error; see [`skip`] for the third way.
pub type TestResult = anyhow::Result<()>;

/// A test's name and function.
pub type Case = (&'static str, fn() -> TestResult);

/// What a test returns that cannot run here: `return skip("no loop devices")`. The reason is shown with the results.
pub fn skip(reason: impl fmt::Display) -> TestResult {
    Err(Skip(reason.to_string()).into())
}

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Skip(String);

/// Runs the tests that the command line asks for; or is the [`Prober`](crate::Prober) or the
/// [`Agent`](crate::Agent) of one.
pub fn main(cases: &[Case]) -> ExitCode {
    if let Some(code) = prober::dispatch().or_else(agent::dispatch) {
        return code;
    }
    let trials = cases.iter().map(|&(name, test)| Trial::ignorable_test(name, move || complete(test()))).collect();
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

/// What the framework is told of a result.
pub fn complete(result: TestResult) -> Result<Completion, Failed> {
    match result {
        Ok(()) => Ok(Completion::Completed),
        Err(error) => match error.downcast::<Skip>() {
            Ok(Skip(reason)) => Ok(Completion::ignored_with(reason)),
            Err(error) => Err(format!("{error:#}").into()),
        },
    }
}
