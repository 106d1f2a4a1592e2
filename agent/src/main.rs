//! The `devgate` command.

use std::process::ExitCode;

use clap::Parser;
use devgate::cli::Cli;

fn main() -> ExitCode {
    Cli::parse().run()
}
