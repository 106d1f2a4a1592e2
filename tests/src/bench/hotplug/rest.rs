//! The agent at rest, with ten classes, a hundred devices and all containers.

use std::{fs, thread, time::Duration};

use anyhow::{Context, Result};

use super::{Figure, collect::goal, fleet::Fleet};
use crate::running_agent::RunningAgent;

/// Devices that are plugged and stay.
const DEVICES: u8 = 100;

const MINUTE: Duration = Duration::from_mins(1);

/// Memory, and wake-ups in a minute.
pub(super) fn measure(fleet: &Fleet<'_>, agent: &RunningAgent) -> Result<Vec<Figure>> {
    for name in 100..100 + DEVICES {
        fleet.machine.taps().plug(name)?;
    }
    fleet.machine.udev().settle()?;
    let mut processes = vec![agent.pid()];
    processes.extend(agent.children()?);
    let before = wakeups(&processes)?;
    // This is no waiting for something to come: it is the minute in which nothing may come.
    thread::sleep(MINUTE);
    let after = wakeups(&processes)?;
    let rss = resident(agent.pid())?;
    let all = processes.iter().map(|pid| resident(*pid)).sum::<Result<u64>>()?;
    let figure = |name: &str, meaning, unit, goal, value: u64| {
        #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
        Figure::new(name, meaning, goal, vec![value as f64]).in_unit(unit)
    };
    Ok(vec![
        figure("agent.rss", "resident memory of the agent", "bytes", goal("agent.rss"), rss),
        figure("agent.rss_all", "the same with its guard and the process that forks its helpers", "bytes", None, all),
        figure("agent.wakeups_per_minute", "times that one of these was run at rest", "", Some(0.0), after - before),
    ])
}

/// Bytes.
fn resident(pid: u32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    Ok(field(&status, "VmRSS:")? * 1024)
}

/// How often all threads of processes have been run.
fn wakeups(processes: &[u32]) -> Result<u64> {
    let mut sum = 0;
    for pid in processes {
        for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
            let status = fs::read_to_string(thread?.path().join("status"))?;
            sum += field(&status, "voluntary_ctxt_switches:")? + field(&status, "nonvoluntary_ctxt_switches:")?;
        }
    }
    Ok(sum)
}

fn field(status: &str, name: &str) -> Result<u64> {
    let value = status.lines().find_map(|line| line.strip_prefix(name)).with_context(|| format!("no {name}"))?;
    Ok(value.trim().trim_end_matches(" kB").parse()?)
}
