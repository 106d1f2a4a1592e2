//! How many records a container may cause, and counters that are exact whatever becomes of the records.

use std::{collections::BTreeMap, thread};

use anyhow::Result;
use devgate::executors::enforcer::{AuditReader, RecordRate};
use devgate_tests::{prelude::*, prober::Attempt};

tests![
    a_bucket_lets_a_burst_through_and_fills_again,
    a_flood_of_one_container_takes_no_record_of_another,
    a_flood_outside_of_containers_is_limited_too,
    a_changed_rate_holds_for_containers_that_were_there_before,
    each_decision_is_recorded_limited_or_lost,
    no_delivered_record_is_missing_in_between,
    counters_of_many_containers_stay_apart,
];

const ASK: Attempt = Attempt::Access(libc::R_OK);
const UNLIMITED: RecordRate = RecordRate { per_second: 0, burst: 1 };

// Fault: agent-ebpf/src/audit.rs
// - if after > latest {
// + if after > latest + 20 * cost {
// Fault: agent/src/executors/enforcer/slots.rs
// - slot.depth.store(cost * u64::from(rate.burst.max(1)), Relaxed);
// + slot.depth.store(cost, Relaxed);
fn a_bucket_lets_a_burst_through_and_fills_again() -> TestResult {
    const BURST: u32 = 5;
    const PER_SECOND: u32 = 2;
    let scratch = Scratch::new("bucket")?;
    let mut enforcer = scratch.enforcer_with(|config| {
        config.record_rate = RecordRate { per_second: PER_SECOND, burst: BURST };
    })?;
    let container = scratch.cgroup("container")?;
    enforcer.manage(&container, Policy::RECORD)?;
    enforcer.revoke(container.id(), FUSE, Revocation::Deny)?;
    let mut reader = enforcer.audit_reader()?;
    let mut prober = scratch.prober(&container)?;
    let before = boot_time();
    prober.repeat(FUSE, ASK, 1000);
    // What came in meanwhile, if the machine was slow.
    let refilled = (boot_time() - before) * u64::from(PER_SECOND) / 1_000_000_000 + 1;
    let recorded = drain(&mut reader).len() as u64;
    let at_most = u64::from(BURST) + refilled;
    assert!((u64::from(BURST)..=at_most).contains(&recorded), "{recorded} records, of {BURST} to {at_most}");
    let counted = counters(&enforcer, &container)?;
    assert_eq!((counted.recorded, counted.limited, counted.denied), (recorded, 1000 - recorded, 1000));
    // The bucket fills by itself.
    let mut next = None;
    wait_until("there is a token again", || {
        prober.access(FUSE, Access::READ);
        next = drain(&mut reader).pop();
        next.is_some()
    });
    let next = next.expect("there is a record");
    assert_eq!(next.sequence, recorded, "only what is recorded has a number");
    let limit = (next.time - before) * u64::from(PER_SECOND) / 1_000_000_000 + u64::from(BURST) + 1;
    assert!(next.sequence < limit);
    Ok(())
}

// Fault: agent-ebpf/src/device.rs
// - (decision, Subject { container: hide.word(cgroup), slot: managed, policy, rule_id, generation })
// + let slot = CONTAINERS.get(0).unwrap_or(managed);
// + (decision, Subject { container: hide.word(cgroup), slot, policy, rule_id, generation })
fn a_flood_of_one_container_takes_no_record_of_another() -> TestResult {
    let scratch = Scratch::new("flood")?;
    let mut enforcer = scratch.enforcer_with(|config| {
        config.record_rate = RecordRate { per_second: 1, burst: 10 };
        config.limits.audit_bytes = 4096;
    })?;
    let (noisy, quiet) = (scratch.cgroup("noisy")?, scratch.cgroup("quiet")?);
    for container in [&noisy, &quiet] {
        enforcer.manage(container, Policy::RECORD)?;
        enforcer.revoke(container.id(), FUSE, Revocation::Deny)?;
    }
    let mut reader = enforcer.audit_reader()?;
    let mut prober = scratch.prober(&noisy)?;
    prober.repeat(FUSE, ASK, 20_000);
    prober.move_to(&quiet)?;
    prober.repeat(FUSE, ASK, 7);
    let of_quiet = drain(&mut reader).iter().filter(|record| record.container == quiet.id()).count();
    assert_eq!(of_quiet, 7);
    let counted = counters(&enforcer, &quiet)?;
    assert_eq!((counted.denied, counted.recorded, counted.limited, counted.lost), (7, 7, 0, 0));
    assert_eq!(counters(&enforcer, &noisy)?.denied, 20_000);
    Ok(())
}

/// Who is in no container shares one bucket, which is not without bottom: else it would fill the ring.
// Fault: agent/src/executors/enforcer/kernel.rs
// - set_rate(&self.maps.containers[0], self.config.record_rate);
// + set_rate(&self.maps.containers[0], RecordRate { per_second: 0, burst: 1 });
fn a_flood_outside_of_containers_is_limited_too() -> TestResult {
    let scratch = Scratch::new("outside")?;
    let enforcer = scratch.enforcer_with(|config| {
        config.unclassified = Policy::DENY_OTHERS.union(Policy::RECORD);
        config.record_rate = RecordRate { per_second: 1, burst: 10 };
    })?;
    let mut reader = enforcer.audit_reader()?;
    let mut prober = scratch.prober(&scratch.cgroup("nobody-s")?)?;
    let before = boot_time();
    assert_eq!(prober.repeat(FUSE, ASK, 5000).of(DENIED), 5000);
    let recorded = drain(&mut reader).len() as u64;
    assert!(recorded <= 11 + (boot_time() - before) / 1_000_000_000, "{recorded} records");
    let counted = enforcer.unmanaged_counters();
    assert_eq!((counted.denied, counted.recorded, counted.recorded + counted.limited), (5000, recorded, 5000));
    Ok(())
}

// Fault: agent/src/executors/enforcer/kernel.rs
// - set_rate(&self.maps.containers[entry.slot as usize], self.config.record_rate);
// + let _ = entry.slot;
fn a_changed_rate_holds_for_containers_that_were_there_before() -> TestResult {
    let scratch = Scratch::new("rate")?;
    let mut enforcer = scratch.enforcer_with(|config| config.record_rate = RecordRate { per_second: 1, burst: 1 })?;
    let container = scratch.cgroup("container")?;
    enforcer.manage(&container, Policy::RECORD)?;
    enforcer.revoke(container.id(), FUSE, Revocation::Deny)?;
    let mut prober = scratch.prober(&container)?;
    prober.repeat(FUSE, ASK, 100);
    let before = counters(&enforcer, &container)?;
    assert!(before.limited > 50);
    drop(enforcer);
    let enforcer = scratch.enforcer_with(|config| config.record_rate = UNLIMITED)?;
    prober.repeat(FUSE, ASK, 100);
    let after = counters(&enforcer, &container)?;
    assert_eq!((after.recorded - before.recorded, after.limited), (100, before.limited));
    Ok(())
}

/// With a reader that reads nothing and a ring of one page.
// Fault: agent-ebpf/src/audit.rs
// - atomic::add(&slot.lost, 1);
// - return;
// + return;
// Fault: agent-ebpf/src/audit.rs
// - atomic::add(&slot.limited, 1);
// - return;
// + return;
fn each_decision_is_recorded_limited_or_lost() -> TestResult {
    const ATTEMPTS: u64 = 100_000;
    for rate in [UNLIMITED, RecordRate { per_second: 1000, burst: 100 }] {
        let scratch = Scratch::new("exact")?;
        let mut enforcer = scratch.enforcer_with(|config| {
            config.record_rate = rate;
            config.limits.audit_bytes = 4096;
        })?;
        let containers = [scratch.cgroup("first")?, scratch.cgroup("second")?];
        let mut reader = enforcer.audit_reader()?;
        for container in &containers {
            enforcer.manage(container, Policy::RECORD)?;
            enforcer.revoke(container.id(), FUSE, Revocation::Deny)?;
        }
        let probers = containers.iter().map(|container| scratch.prober(container)).collect::<Result<Vec<_>>>()?;
        // Two tasks of one container at once share its counters, and two containers the ring.
        let extra = scratch.prober(&containers[0])?;
        thread::scope(|scope| {
            for mut prober in probers.into_iter().chain([extra]) {
                scope.spawn(move || prober.repeat(FUSE, ASK, ATTEMPTS));
            }
        });
        let mut recorded = 0;
        for (container, decisions) in containers.iter().zip([2 * ATTEMPTS, ATTEMPTS]) {
            let counted = counters(&enforcer, container)?;
            println!("{decisions} decisions, {rate:?}: {counted:?}");
            assert_eq!(counted.denied, decisions);
            assert_eq!(counted.recorded + counted.limited + counted.lost, decisions);
            assert_eq!(counted.limited > 0, rate.per_second > 0);
            assert!(counted.lost > 0);
            recorded += counted.recorded;
        }
        assert_eq!(drain(&mut reader).len() as u64, recorded, "what was recorded is there");
    }
    Ok(())
}

// Fault: agent-ebpf/src/audit.rs
// - sequence: atomic::fetch_add(&slot.recorded, 1),
// + sequence: { let sequence = load(&slot.recorded); atomic::add(&slot.recorded, 1); sequence },
fn no_delivered_record_is_missing_in_between() -> TestResult {
    let scratch = Scratch::new("sequence")?;
    let mut enforcer = scratch.enforcer_with(|config| {
        config.record_rate = UNLIMITED;
        config.limits.audit_bytes = 1 << 14;
    })?;
    let containers = [scratch.cgroup("first")?, scratch.cgroup("second")?];
    let mut reader = enforcer.audit_reader()?;
    for container in &containers {
        enforcer.manage(container, Policy::RECORD)?;
        enforcer.revoke(container.id(), FUSE, Revocation::Deny)?;
    }
    // Two tasks in the first container, one in the second.
    let places = [&containers[0], &containers[0], &containers[1]];
    let mut probers = places.map(|container| scratch.prober(container)).into_iter().collect::<Result<Vec<_>>>()?;
    let runs: Vec<_> = probers.iter_mut().map(|prober| prober.run(FUSE, ASK)).collect();
    let mut delivered: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    let mut take = |reader: &mut AuditReader| {
        reader.drain(|record| delivered.entry(record.container).or_default().push(record.sequence));
        delivered.values().map(Vec::len).min().filter(|_| delivered.len() == 2).unwrap_or(0)
    };
    wait_until("many records of both are there", || take(&mut reader) > 20_000);
    for run in runs {
        run.stop();
    }
    take(&mut reader);
    for container in &containers {
        let counted = counters(&enforcer, container)?;
        let sequences = delivered.get_mut(&container.id()).expect("it has records");
        assert_eq!(sequences.len() as u64, counted.recorded);
        // Two tasks may take their numbers in one order and their places in the ring in the other.
        sequences.sort_unstable();
        assert!(sequences.iter().copied().eq(0..counted.recorded), "a number is missing or was given twice");
        assert_eq!(counted.recorded + counted.lost, counted.denied);
    }
    Ok(())
}

/// Each has its element of an array for as long as it is managed: nothing makes room for others.
// Fault: agent/src/executors/enforcer/index.rs
// - self.free_containers.pop_first().or_else(|| self.cooling_containers.pop_front())
// + self.free_containers.first().copied().or_else(|| self.cooling_containers.pop_front())
// Fault: agent-ebpf/src/device.rs
// - atomic::add(&own.denied, 1);
// + let _ = atomic::swap(&own.denied, 1);
fn counters_of_many_containers_stay_apart() -> TestResult {
    const COUNT: u32 = 300;
    let scratch = Scratch::new("many")?;
    let mut enforcer = scratch.enforcer_with(|config| config.limits.cgroups = COUNT)?;
    let mut prober = scratch.prober(scratch.ancestor())?;
    let mut expected = BTreeMap::new();
    let mut containers = Vec::new();
    for index in 0..COUNT {
        let container = scratch.cgroup(&format!("container-{index}"))?;
        enforcer.manage(&container, Policy::DENY_OTHERS.union(Policy::RECORD))?;
        prober.move_to(&container)?;
        let denied = 1 + u64::from(index % 7);
        prober.repeat(FUSE, ASK, denied);
        expected.insert(container.id(), denied);
        containers.push(container);
    }
    let counted: BTreeMap<_, _> =
        enforcer.read_back()?.cgroups.iter().map(|managed| (managed.id, managed.counters.denied)).collect();
    assert_eq!(counted, expected);
    // Nor does an agent that comes back begin anew.
    drop(enforcer);
    let mut enforcer = scratch.enforcer_with(|config| config.limits.cgroups = COUNT)?;
    for container in containers {
        assert_eq!(enforcer.forget(container.id())?.denied, expected[&container.id()]);
    }
    Ok(())
}
