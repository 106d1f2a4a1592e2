//! The rounds.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use devgate_abi::{Access, DeviceNumber};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::Value;

use super::{
    EVERYWHERE, EVERYWHERE_NAME, SENSOR, SENSOR_NAME,
    collect::Collection,
    fleet::{Fleet, Member},
};
use crate::{
    containerd::time_of_day,
    machine::WISH,
    prober::{ALLOWED, DENIED},
    stopwatch::meanwhile,
    wait::PATIENCE,
};

/// The device of one container comes and goes.
pub(super) fn plugs(fleet: &mut Fleet<'_>, rounds: u32, collection: &mut Collection) -> Result<()> {
    let (plug, unplug) = (fleet.figure("plug"), fleet.figure("unplug"));
    for _ in 0..rounds {
        let (taps, holder) = (fleet.machine.taps(), &mut fleet.members[0]);
        let (number, opened) = meanwhile(|| taps.plug(SENSOR_NAME), || holder.opened(SENSOR))?;
        let kernel = fleet.kernel.wait("add", "macvtap")?.at;
        let udev = fleet.udev.wait("add", "macvtap")?.at;
        let took = opened.saturating_duration_since(udev);
        collection.add(&plug, took);
        collection.add(&format!("{plug}:udev"), udev.saturating_duration_since(kernel));
        let placed = fleet.audit.wait("nodePlaced", |line| is(line, number, SENSOR))?;
        collection.add_parts(&plug, &placed);
        let said = placed["microseconds"]["total"].as_u64().context("the line has no times")?;
        collection.add(&format!("{plug}:rest"), took.saturating_sub(Duration::from_micros(said)));

        let holder = &fleet.members[0];
        let ((), gone) = meanwhile(|| taps.unplug(SENSOR_NAME), || holder.gone(SENSOR))?;
        let removed = fleet.kernel.wait("remove", "macvtap")?.at;
        collection.add(&unplug, gone.saturating_duration_since(removed));
        let verdict = fleet.members[0].inside.open_number(number);
        ensure!(verdict == DENIED, "{number} is not void: {verdict:?}");
        fleet.udev.wait("remove", "macvtap")?;
    }
    Ok(())
}

/// Another container starts that holds the device.
pub(super) fn starts(fleet: &mut Fleet<'_>, rounds: u32, collection: &mut Collection) -> Result<()> {
    let name = fleet.figure("start");
    let number = fleet.machine.taps().plug(SENSOR_NAME)?;
    fleet.audit.wait("nodePlaced", |line| is(line, number, SENSOR))?;
    let mut events = fleet.machine.containerd().events()?;
    for round in 0..rounds {
        let id = format!("start-{}-{round}", fleet.members.len());
        let container = fleet.machine.containerd().container(&id).label(WISH, "sensor").run()?;
        let (created, pid) = events.wait("/tasks/create", &id)?;
        let holder = format!("containerd/default/{id}");
        let placed = fleet.audit.wait("nodePlaced", |line| line["container"] == holder)?;
        let time = placed["time"].as_str().and_then(time_of_day).context("the line has no time")?;
        let took = (time + DAY - created) % DAY;
        collection.add(&name, Duration::from_nanos(took));
        collection.add_parts(&name, &placed);
        let said = placed["microseconds"]["total"].as_u64().context("the line has no times")?;
        let source = Duration::from_nanos(took).saturating_sub(Duration::from_micros(said));
        collection.add(&format!("{name}:source"), source);
        let mut inside = fleet.machine.insider_of(&fleet.machine.containerd().cgroup().existing(&id)?, pid)?;
        let opened = inside.open(SENSOR, Access::READ_WRITE);
        ensure!(opened == ALLOWED, "{id} cannot open the device: {opened:?}");
        drop(inside);
        container.delete()?;
    }
    unplug(fleet, SENSOR_NAME)
}

/// Nanoseconds.
const DAY: u64 = 86_400_000_000_000;

/// The device of all containers comes and goes.
pub(super) fn fanouts(fleet: &mut Fleet<'_>, rounds: u32, collection: &mut Collection) -> Result<()> {
    let name = fleet.figure("fanout");
    for _ in 0..rounds {
        let taps = fleet.machine.taps();
        let (_, opened) = meanwhile(|| taps.plug(EVERYWHERE_NAME), || all_open(&mut fleet.members))?;
        let udev = fleet.udev.wait("add", "macvtap")?.at;
        collection.add(&name, opened.saturating_duration_since(udev));
        unplug(fleet, EVERYWHERE_NAME)?;
        for member in &mut fleet.members {
            member.gone(EVERYWHERE)?;
        }
    }
    Ok(())
}

fn unplug(fleet: &Fleet<'_>, name: u8) -> Result<()> {
    fleet.machine.taps().unplug(name)?;
    fleet.kernel.wait("remove", "macvtap")?;
    fleet.udev.wait("remove", "macvtap")?;
    Ok(())
}

fn is(line: &Value, number: DeviceNumber, path: &str) -> bool {
    line["number"] == number.to_string() && line["path"] == path
}

/// When a process of the last container had opened the device.
fn all_open(members: &mut [Member<'_>]) -> Result<Instant> {
    let deadline = Instant::now() + PATIENCE;
    let mut opened = Vec::new();
    let mut waiting: Vec<_> = members.iter_mut().map(|member| (true, member)).collect();
    while !waiting.is_empty() {
        ensure!(Instant::now() < deadline, "{} containers wait in vain", waiting.len());
        let mut still = Vec::with_capacity(waiting.len());
        for (changed, member) in waiting {
            // Those whose mounts have not changed need not be asked.
            match if changed { member.open(EVERYWHERE) } else { None } {
                Some((at, held)) => opened.push((at, held, member)),
                None => still.push(member),
            }
        }
        waiting = wait_for_mounts(still)?;
    }
    let last = opened.iter().map(|(at, ..)| *at).max();
    for (_, held, member) in opened {
        member.inside.close(held);
    }
    last.context("there are no containers")
}

/// Waits until mounts change, and tells whose.
fn wait_for_mounts<'a, 'b>(members: Vec<&'a mut Member<'b>>) -> Result<Vec<(bool, &'a mut Member<'b>)>> {
    let second = Timespec { tv_sec: 1, tv_nsec: 0 };
    let mut polled: Vec<_> = members.iter().map(|member| PollFd::new(&member.mounts, PollFlags::PRI)).collect();
    if !polled.is_empty() {
        poll(&mut polled, Some(&second))?;
    }
    let changed: Vec<_> = polled.iter().map(|polled| !polled.revents().is_empty()).collect();
    drop(polled);
    Ok(changed.into_iter().zip(members).collect())
}
