//! `cargo xtask bench hotplug`: how long a device takes to reach running containers.

use std::{path::PathBuf, process::ExitCode};

use anyhow::Result;
use clap::Parser;
use devgate_tests::{
    bench::{
        figures,
        hotplug::{self, Amount},
    },
    demo, prober, stage,
};

#[derive(Debug, Parser)]
struct Arguments {
    /// Write the figures to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// How many containers there are, in rising order
    #[arg(long, value_delimiter = ',', default_values_t = [1, 10, 100])]
    containers: Vec<usize>,
    /// How often the device of one container is plugged and unplugged
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    plugs: u32,
    /// How often a container is started
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u32).range(1..))]
    starts: u32,
    /// How often the device of all containers is plugged
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..))]
    fanouts: u32,
    /// Leave out the minute at rest
    #[arg(long)]
    no_rest: bool,
}

fn main() -> ExitCode {
    // A process in a container's cgroup that opens nodes is this program too.
    if let Some(code) = prober::dispatch() {
        return code;
    }
    stage::run("bench", demo::require_everything, |name, rest| {
        run(name, &Arguments::parse_from(std::iter::once("bench-hotplug".into()).chain(rest)))
    })
}

fn run(name: &str, arguments: &Arguments) -> Result<ExitCode> {
    let Arguments { json, containers, plugs, starts, fanouts, no_rest } = arguments;
    let amount =
        Amount { containers: containers.clone(), plugs: *plugs, starts: *starts, fanouts: *fanouts, rest: !no_rest };
    let figures = hotplug::measure(name, &amount)?;
    print!("{}", figures::list(&figures));
    println!("{}", figures::verdict(&figures));
    if let Some(file) = json {
        figures::write_json(&figures, file)?;
    }
    Ok(ExitCode::SUCCESS)
}
