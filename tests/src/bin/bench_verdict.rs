//! `cargo xtask bench verdict`: what one verdict costs.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Parser;
use devgate::executors::enforcer::guard_main;
use devgate_tests::bench::{
    figures,
    verdict::{self, Amount},
    worker,
};

#[derive(Debug, Parser)]
struct Arguments {
    /// Write the figures to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// How often each column is measured
    #[arg(long, default_value_t = 150, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Questions of a column in each round
    #[arg(long, default_value_t = 2_000)]
    questions: usize,
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.split_first() {
        Some((verb, rest)) if verb == worker::VERB => worker::main(rest),
        // The enforcer starts its guard by this program too.
        Some((verb, rest)) if verb == "guard" => {
            match guard_main(rest.first().context("the guard needs a lock")?.as_ref())? {}
        }
        _ => run(&Arguments::parse()),
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    let amount = Amount { rounds: arguments.rounds, questions: arguments.questions };
    let figures = verdict::measure(amount)?;
    print!("{}", figures::table(&figures, verdict::MEASURE));
    println!("{}", figures::verdict(&figures));
    match &arguments.json {
        Some(file) => figures::write_json(&figures, file),
        None => Ok(()),
    }
}
