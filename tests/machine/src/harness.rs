//! Running tests, each in a fresh machine.

use std::{
    env, fs,
    panic::{self, AssertUnwindSafe},
    path::PathBuf,
    process::ExitCode,
};

use anyhow::Context as _;
use devgate_tests::{TestResult, complete, skip};
use libtest_mimic::{Arguments, Trial};

use crate::{Machine, Row, Store};

/// A test's name and function.
pub type Case = (&'static str, fn(&mut Machine) -> TestResult);

/// Runs the tests that the command line asks for, each on each of its rows.
pub fn main(groups: &[(&[Row], &[Case])]) -> ExitCode {
    let mut trials = Vec::new();
    for (rows, cases) in groups {
        for row in *rows {
            trials.extend(cases.iter().map(|&(name, test)| {
                let (row, name) = (*row, format!("{row}::{name}"));
                Trial::ignorable_test(name.clone(), move || complete(run(row, &name, test)))
            }));
        }
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

/// What a run is told by its environment.
#[derive(Debug)]
pub struct Session {
    /// Where the images are.
    pub store: Store,
    /// Where a folder is made for each test.
    pub logs: PathBuf,
}

impl Session {
    /// None if it was not started by xtask, which alone makes what is needed.
    pub fn from_environment() -> anyhow::Result<Option<Self>> {
        let Some(images) = env::var_os("DEVGATE_MACHINES") else { return Ok(None) };
        let endpoint = env::var_os("DEVGATE_ENDPOINT").context("DEVGATE_ENDPOINT names no program")?;
        let logs = env::var_os("DEVGATE_TEST_LOGS").context("DEVGATE_TEST_LOGS names no folder")?;
        Ok(Some(Self { store: Store::new(images, endpoint)?, logs: logs.into() }))
    }
}

fn run(row: Row, name: &str, test: fn(&mut Machine) -> TestResult) -> TestResult {
    let Some(Session { store, logs }) = Session::from_environment()? else {
        return skip("it needs machines: cargo xtask test --tier vm");
    };
    let logs = logs.join(name.replace("::", "."));
    if logs.exists() {
        fs::remove_dir_all(&logs).context("cannot remove the logs of an earlier run")?;
    }
    let mut machine = Machine::restore(&store, row, &logs)?;
    match panic::catch_unwind(AssertUnwindSafe(|| test(&mut machine))) {
        Ok(Ok(())) => {
            fs::remove_dir_all(&logs)?;
            Ok(())
        }
        failed => {
            eprintln!("the logs of {name} are in {}", logs.display());
            machine.keep_logs(&logs);
            failed.unwrap_or_else(|panic| panic::resume_unwind(panic))
        }
    }
}

/// Makes the `main` function of a test executable (`harness = false`) of test functions, each with the rows that it runs on.
#[macro_export]
macro_rules! tests {
    ($($rows:expr => [$($test:ident),+ $(,)?]),+ $(,)?) => {
        fn main() -> ::std::process::ExitCode {
            $crate::main(&[$(($rows, &[$((stringify!($test), $test)),+])),+])
        }
    };
}
