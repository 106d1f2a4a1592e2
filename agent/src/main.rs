//! The `devgate` command.

use std::process::ExitCode;

use clap::Parser;
use devgate::cli::Cli;
use devgate::executors::device_nodes::helper;

fn main() -> ExitCode {
    // Before anything else: a helper must have a single thread, and many of them must start quickly.
    if std::env::args_os().nth(1).is_some_and(|argument| argument == helper::ARGUMENT) {
        return helper::helper_main();
    }
    Cli::parse().run()
}
