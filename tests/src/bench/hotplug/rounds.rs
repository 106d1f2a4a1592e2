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
    wait::{PATIENCE, wait_until},
};

/// The device of one container comes and goes.
pub(super) fn plugs(fleet: &mut Fleet<'_>, rounds: u32, collection: &mut Collection) -> Result<()> {
    let (plug, unplug) = (fleet.figure("plug"), fleet.figure("unplug"));
    for _ in 0..rounds {
        let number = fleet.machine.taps().plug(SENSOR_NAME)?;
        let Member { inside, mounts, .. } = &mut fleet.members[0];
        let opened = mounts
            .wait("the device opens", || (inside.open(SENSOR, Access::READ_WRITE) == ALLOWED).then(Instant::now))?;
        let kernel = fleet.kernel.wait("add", "macvtap")?.at;
        let udev = fleet.udev.wait("add", "macvtap")?.at;
        let took = opened.saturating_duration_since(udev);
        collection.add(&plug, took);
        collection.add(&format!("{plug}:udev"), udev.saturating_duration_since(kernel));
        let placed = fleet.audit.wait("nodePlaced", |line| is(line, number, SENSOR))?;
        collection.add_parts(&plug, &placed);
        let said = placed["microseconds"]["total"].as_u64().context("the line has no times")?;
        collection.add(&format!("{plug}:rest"), took.saturating_sub(Duration::from_micros(said)));

        fleet.machine.taps().unplug(SENSOR_NAME)?;
        let gone = gone(&mut fleet.members[0], SENSOR)?;
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
        fleet.machine.taps().plug(EVERYWHERE_NAME)?;
        let opened = all_open(&mut fleet.members)?;
        let udev = fleet.udev.wait("add", "macvtap")?.at;
        collection.add(&name, opened.saturating_duration_since(udev));
        unplug(fleet, EVERYWHERE_NAME)?;
        for member in &mut fleet.members {
            gone(member, EVERYWHERE)?;
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

/// When there was nothing at the path any more.
fn gone(member: &mut Member<'_>, path: &str) -> Result<Instant> {
    member.mounts.wait("the node is gone", || member.has_no_device(path).then_some(()))?;
    wait_until("nothing is left of the node", || member.has_nothing(path));
    Ok(Instant::now())
}

/// When a process of the last container had opened the device.
fn all_open(members: &mut [Member<'_>]) -> Result<Instant> {
    let deadline = Instant::now() + PATIENCE;
    let mut waiting: Vec<&mut Member<'_>> = members.iter_mut().collect();
    loop {
        waiting.retain_mut(|member| !member.opens(EVERYWHERE));
        if waiting.is_empty() {
            return Ok(Instant::now());
        }
        ensure!(Instant::now() < deadline, "{} containers wait in vain", waiting.len());
        let second = Timespec { tv_sec: 1, tv_nsec: 0 };
        let mut polled: Vec<_> = waiting.iter().map(|member| PollFd::new(&member.mounts, PollFlags::PRI)).collect();
        poll(&mut polled, Some(&second))?;
        // Those whose mounts have not changed need not be asked.
        let changed: Vec<_> = polled.iter().map(|polled| !polled.revents().is_empty()).collect();
        drop(polled);
        let mut changed = changed.into_iter();
        waiting.retain_mut(|member| !(changed.next() == Some(true) && member.opens(EVERYWHERE)));
    }
}
