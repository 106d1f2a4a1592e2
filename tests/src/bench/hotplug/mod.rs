//! How long a device takes to reach running containers and to leave them, and what the agent costs at rest.
//!
//! Everything is real: containerd, runc, udev, a macvtap device that is plugged, and the agent in a process of its own.
//! What is measured ends where a process of the container has opened the device, or finds it gone.

mod collect;
mod fleet;
mod rest;
mod rounds;

use anyhow::Result;

use super::figures::Figure;
use crate::machine::Machine;

use collect::Collection;
use fleet::Fleet;

/// The stable path of the device that one container holds, and of the one that all hold.
const SENSOR: &str = "/dev/sensor";
const EVERYWHERE: &str = "/dev/everywhere";
/// The names by which they are plugged.
const SENSOR_NAME: u8 = 1;
const EVERYWHERE_NAME: u8 = 2;

/// How much is measured.
#[derive(Clone, Debug)]
pub struct Amount {
    /// How many containers there are, in rising order.
    pub containers: Vec<usize>,
    /// How often the device of one container is plugged and unplugged.
    pub plugs: u32,
    /// How often a container is started.
    pub starts: u32,
    /// How often the device of all containers is plugged.
    pub fanouts: u32,
    /// Whether a minute at rest is measured.
    pub rest: bool,
}

/// Measures everything on a stage of this name.
pub fn measure(name: &str, amount: &Amount) -> Result<Vec<Figure>> {
    let machine = Machine::sheltered(name)?;
    fleet::write_classes(&machine)?;
    let agent = machine.agent_with(|config| "info".clone_into(&mut config.log.filter))?;
    let mut fleet = Fleet::new(&machine)?;
    let mut collection = Collection::default();
    for &count in &amount.containers {
        eprintln!("{count} containers");
        fleet.grow(count)?;
        rounds::plugs(&mut fleet, amount.plugs, &mut collection)?;
        rounds::starts(&mut fleet, amount.starts, &mut collection)?;
        rounds::fanouts(&mut fleet, amount.fanouts, &mut collection)?;
    }
    let mut figures = collection.figures();
    if amount.rest {
        eprintln!("a minute at rest");
        figures.extend(rest::measure(&fleet, &agent)?);
    }
    Ok(figures)
}
