//! Machines by hand.

use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use devgate_machine::{ALL, Machine, Output, Session};

const USAGE: &str = "usage: devgate-machine COMMAND
  prepare          makes the images that are missing
  run ROW STEP...  carries out steps in a fresh machine, where the agent is installed and not started, until one fails.
                   A step is a shell script, or FROM=TO to copy a file of this host into the machine";

fn main() -> Result<ExitCode> {
    let session = Session::from_environment()?.context("started by cargo xtask alone, which says where things are")?;
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    match &*arguments.iter().map(String::as_str).collect::<Vec<_>>() {
        ["prepare"] => ALL.iter().try_for_each(|row| session.store.prepare(*row)).map(|()| ExitCode::SUCCESS),
        ["run", row, steps @ ..] => run(&session, row, steps),
        _ => bail!(USAGE),
    }
}

fn run(session: &Session, row: &str, steps: &[&str]) -> Result<ExitCode> {
    let known = ALL.iter().find(|known| known.name == row);
    let row = known.with_context(|| format!("the rows are {}", ALL.map(|row| row.name).join(", ")))?;
    let mut machine = Machine::restore(&session.store, *row, &session.logs.join("by-hand"))?;
    machine.install_agent("")?;
    for step in steps {
        if let Some((from, to)) = step.split_once('=')
            && to.starts_with('/')
        {
            machine.put(to, 0o755, std::fs::read(from).with_context(|| format!("cannot read {from}"))?)?;
            continue;
        }
        let Output { status, output, errors } = machine.attempt(step)?;
        println!("{output}");
        eprintln!("{errors}");
        if status != 0 {
            return Ok(ExitCode::from(u8::try_from(status).unwrap_or(u8::MAX)));
        }
    }
    Ok(ExitCode::SUCCESS)
}
