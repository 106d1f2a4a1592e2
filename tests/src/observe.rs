//! What the kernel has written and counted.

use anyhow::{Context, Result};
use devgate::executors::enforcer::{AuditReader, Cgroup, Counters, Enforcer, KernelEnforcer};
use devgate_abi::Record;
use rustix::time::{ClockId, clock_gettime};

/// The records that are there.
pub fn drain(reader: &mut AuditReader) -> Vec<Record> {
    let mut records = Vec::new();
    reader.drain(|record| records.push(*record));
    records
}

/// What was counted for a managed cgroup.
pub fn counters(enforcer: &KernelEnforcer, cgroup: &Cgroup) -> Result<Counters> {
    let cgroups = enforcer.read_back()?.cgroups;
    let found = cgroups.iter().find(|managed| managed.id == cgroup.id());
    found.map(|managed| managed.counters).context("the cgroup is not managed")
}

/// The clock of records and expiry: nanoseconds of `CLOCK_BOOTTIME`.
pub fn boot_time() -> u64 {
    let time = clock_gettime(ClockId::Boottime);
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}
