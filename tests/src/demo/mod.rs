//! The demonstration: a device is plugged, replugged and unplugged, the agent is killed and comes back, and two containers
//! of a real containerd see what Devgate promises.

mod evidence;
mod obstacles;
mod screen;
mod story;

use std::process::ExitCode;

use anyhow::{Result, bail};

use crate::machine::Machine;
use story::Story;

/// Plays it on a stage of this name, if the machine has what it takes.
pub fn play(name: &str) -> Result<ExitCode> {
    let machine = Machine::new(name)?;
    let success = Story::new(&machine)?.tell()?;
    Ok(if success { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Says what the machine lacks, and how to get it.
pub fn require_everything() -> Result<()> {
    let missing = obstacles::find();
    if missing.is_empty() {
        return Ok(());
    }
    bail!("this machine lacks what the demonstration needs:\n  - {}", missing.join("\n  - "))
}
