//! The command line: one file for each subcommand.

mod check;
mod enforcer;
mod guard;
mod run;
mod uninstall;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Decides which device nodes each container may open, and keeps that right while hardware comes and goes.
#[derive(Debug, Parser)]
#[command(name = "devgate", version, about, arg_required_else_help = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs the agent.
    Run(run::Arguments),
    /// Takes back everything: the nodes in containers, the link, the maps and the guard process. The agent must not run.
    Uninstall(uninstall::Arguments),
    /// Says what is wrong in files of device classes: file, line, class, field, value, remedy. The exit status is 1 if
    /// anything is.
    Check(check::Arguments),
    /// Shows or removes what is enforced in the kernel.
    Enforcer(enforcer::Arguments),
    #[command(hide = true)]
    Guard(guard::Arguments),
}

impl Cli {
    /// Runs the subcommand. The exit status is 0 for success, 1 for a failure (which stderr names) and 2 for wrong usage.
    pub fn run(self) -> ExitCode {
        let result = match self.command {
            Command::Run(arguments) => arguments.run(),
            Command::Uninstall(arguments) => arguments.run(),
            Command::Check(arguments) => arguments.run(),
            Command::Enforcer(arguments) => arguments.run(),
            Command::Guard(arguments) => arguments.run(),
        };
        match result {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("devgate: {error:#}");
                ExitCode::FAILURE
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::Cli;

    // Fault: agent/src/config/arguments.rs
    // - #[group(skip)]
    // + #[group(multiple = true)]
    #[test]
    fn the_command_line_holds_together() {
        Cli::command().debug_assert();
    }
}
