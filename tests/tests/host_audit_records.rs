//! Records of decisions: what is in them, which are written, and when their reader is woken.

use std::{
    os::fd::AsFd,
    sync::atomic::{AtomicBool, AtomicI32, Ordering::SeqCst},
    thread,
};

use devgate::executors::enforcer::{AuditReader, Counters, RecordRate};
use devgate_abi::{Action, LAYOUT_VERSION, Reason, Record, RecordFlags};
use devgate_tests::{
    prelude::*,
    prober::{Attempt, COMM},
};

tests![
    a_record_says_who_asked_for_what_and_what_came_of_it,
    a_policy_chooses_what_is_recorded,
    an_audited_container_is_told_of_and_left_alone,
    everything_is_recorded_where_that_is_asked_for,
    a_reader_is_woken_once_after_it_went_to_sleep,
];

const ASK: Attempt = Attempt::Access(libc::R_OK);

fn unlimited(config: &mut EnforcerConfig) {
    config.record_rate = RecordRate { per_second: 0, burst: 1 };
}

fn one(reader: &mut AuditReader) -> Record {
    let records = drain(reader);
    let [record] = records[..] else { panic!("{} records of one decision", records.len()) };
    record
}

fn decided(record: &Record) -> (Option<Action>, Option<Reason>, i32, i32) {
    (Action::from_raw(record.action), Reason::from_raw(record.reason), record.prior, record.verdict)
}

// Fault: agent-ebpf/src/audit.rs
// - verdict: tally.verdict(*prior),
// + verdict: *prior,
// Fault: agent-ebpf/src/audit.rs
// - cgroup: *current,
// + cgroup: subject.container,
// Fault: agent-ebpf/src/audit.rs
// - sequence: atomic::fetch_add(&slot.recorded, 1),
// - generation: subject.generation,
// + sequence: atomic::fetch_add(&slot.recorded, 1),
// + generation: 0,
// Fault: agent/src/executors/enforcer/kernel.rs
// - rule_id: grant.rule_id,
// + rule_id: 0,
fn a_record_says_who_asked_for_what_and_what_came_of_it() -> TestResult {
    let scratch = Scratch::new("record")?;
    let mut enforcer = scratch.enforcer()?;
    let container = scratch.cgroup("container")?;
    let below = container.child("below")?;
    let mut runtime = Some(deny_all(&container)?);
    enforcer.manage(&container, Policy::RECORD)?;
    let mut reader = enforcer.audit_reader()?;
    let mut prober = scratch.prober(&container)?;

    let grant = Grant { rule_id: 42, generation: 9, scope: Scope::Subtree, ..granting(Access::READ) };
    enforcer.give(&container, FUSE, &grant)?;
    prober.move_to(&below)?;
    let before = boot_time();
    assert_eq!(prober.open(FUSE, Access::READ), ALLOWED);
    let record = one(&mut reader);
    assert!((before..=boot_time()).contains(&record.time));
    let mut comm = [0; 16];
    comm[..COMM.len()].copy_from_slice(COMM.as_bytes());
    let expected = Record {
        version: LAYOUT_VERSION as u16,
        length: size_of::<Record>() as u16,
        reason: Reason::Granted as u16,
        action: Action::Grant as u8,
        flags: RecordFlags::default(),
        time: record.time,
        cgroup: below.id(),
        container: container.id(),
        rule_id: 42,
        sequence: 0,
        generation: 9,
        access: Access::READ.bits(),
        device: FUSE,
        prior: -libc::EPERM,
        verdict: 0,
        pid: prober.pid(),
        tid: prober.pid(),
        uid: 0,
        gid: 0,
        comm,
    };
    assert_eq!(record, expected);

    // What the grant does not cover.
    prober.move_to(&container)?;
    assert_eq!(prober.open(FUSE, Access::READ_WRITE), DENIED);
    let record = one(&mut reader);
    assert_eq!(decided(&record), (Some(Action::Keep), Some(Reason::NotCovered), -libc::EPERM, -libc::EPERM));
    assert_eq!((record.sequence, record.cgroup, record.access), (1, container.id(), Access::READ_WRITE.bits()));

    runtime.take();
    enforcer.revoke(container.id(), FUSE, Revocation::Deny)?;
    assert_eq!(prober.open(FUSE, Access::WRITE), DENIED);
    let record = one(&mut reader);
    assert_eq!(decided(&record), (Some(Action::Deny), Some(Reason::DeniedByRule), 0, -libc::EPERM));
    assert_eq!((record.sequence, record.rule_id), (2, 42));

    enforcer.void(FUSE)?;
    assert_eq!(prober.access(FUSE, Access::NONE), DENIED);
    assert_eq!(decided(&one(&mut reader)), (Some(Action::Deny), Some(Reason::StaleEpoch), 0, -libc::EPERM));
    let counted = counters(&enforcer, &container)?;
    assert_eq!(
        counted,
        Counters { granted: 1, denied: 2, runtime_denied: 1, recorded: 4, limited: 0, lost: 0 },
        "each decision is counted once"
    );
    Ok(())
}

// Fault: agent-ebpf/src/audit.rs
// - Action::Keep if prior != 0 => Policy::RECORD_DENIALS,
// + Action::Keep if prior != 0 => Policy::RECORD_REST,
// Fault: agent-ebpf/abi/src/container.rs
// - self.0 & (Self::DENY_OTHERS.0 | Self::RECORD_REST.0) != 0
// + self.0 & Self::DENY_OTHERS.0 != 0
// Fault: agent/src/executors/enforcer/kernel.rs
// - let denials = self.index.any_records_denials() || self.config.unclassified.contains(Policy::RECORD_DENIALS);
// + let denials = self.config.unclassified.contains(Policy::RECORD_DENIALS);
fn a_policy_chooses_what_is_recorded() -> TestResult {
    let scratch = Scratch::new("choose")?;
    let mut enforcer = scratch.enforcer_with(unlimited)?;
    let container = scratch.cgroup("container")?;
    let mut reader = enforcer.audit_reader()?;
    let mut prober = scratch.prober(&container)?;
    // Loop devices have a major that no rule names.
    let [granted, denied] = [absent(0), absent(1)];
    for (policy, expected) in [
        (Policy::default(), vec![]),
        (Policy::RECORD_GRANTS, vec![Reason::Granted]),
        (Policy::RECORD_DENIALS, vec![Reason::Runtime, Reason::DeniedByRule]),
        (Policy::RECORD, vec![Reason::Granted, Reason::Runtime, Reason::DeniedByRule]),
        (Policy::RECORD_REST, vec![Reason::Agreed, Reason::Runtime, Reason::Runtime]),
    ] {
        enforcer.manage(&container, policy)?;
        enforcer.give(&container, granted, &granting(Access::READ))?;
        enforcer.revoke(container.id(), denied, Revocation::Deny)?;
        let runtime = deny_all(&container)?;
        assert_eq!(prober.access(granted, Access::READ), ALLOWED);
        assert_eq!(prober.access(LOOP, Access::READ), DENIED);
        drop(runtime);
        assert_eq!(prober.access(denied, Access::READ), DENIED);
        assert_eq!(prober.access(granted, Access::READ), ALLOWED);
        assert_eq!(prober.access(absent(2), Access::READ), ALLOWED);
        assert_eq!(prober.access(LOOP, Access::READ), ALLOWED);
        let found: Vec<_> = drain(&mut reader).iter().map(|record| Reason::from_raw(record.reason)).collect();
        assert_eq!(found, expected.into_iter().map(Some).collect::<Vec<_>>(), "{policy:?}");
    }
    Ok(())
}

// Fault: agent-ebpf/src/audit.rs
// - flags: if tally.audit_only() { RecordFlags::AUDIT_ONLY } else { RecordFlags::default() },
// + flags: RecordFlags::default(),
// Fault: agent-ebpf/abi/src/decide.rs
// - if self.audit_only() { Action::Keep } else { self.decision().action() }
// + self.decision().action()
fn an_audited_container_is_told_of_and_left_alone() -> TestResult {
    let scratch = Scratch::new("audited")?;
    let mut enforcer = scratch.enforcer()?;
    let container = scratch.cgroup("container")?;
    enforcer.manage(&container, Policy::RECORD.union(Policy::AUDIT_ONLY).union(Policy::DENY_OTHERS))?;
    let mut reader = enforcer.audit_reader()?;
    let mut prober = scratch.prober(&container)?;
    let mut would = |reader: &mut AuditReader, answer| {
        assert_eq!(prober.access(FUSE, Access::READ), answer);
        let record = one(reader);
        assert!(record.flags.contains(RecordFlags::AUDIT_ONLY));
        decided(&record)
    };
    assert_eq!(would(&mut reader, ALLOWED), (Some(Action::Deny), Some(Reason::OtherDevice), 0, 0));
    let _runtime = deny_all(&container)?;
    enforcer.give(&container, FUSE, &granting(Access::READ))?;
    let denied = -libc::EPERM;
    assert_eq!(would(&mut reader, DENIED), (Some(Action::Grant), Some(Reason::Granted), denied, denied));
    let counted = counters(&enforcer, &container)?;
    assert_eq!((counted.granted, counted.denied, counted.runtime_denied), (0, 0, 1));
    Ok(())
}

// Fault: agent/src/executors/enforcer/kernel.rs
// - (self.config.audit_everything, StateFlags::AUDIT_ALL),
// + (self.config.audit_everything && strict, StateFlags::AUDIT_ALL),
fn everything_is_recorded_where_that_is_asked_for() -> TestResult {
    let scratch = Scratch::new("all")?;
    let mut enforcer = scratch.enforcer_with(|config| config.audit_everything = true)?;
    let (container, nobody_s) = (scratch.cgroup("container")?, scratch.cgroup("nobody-s")?);
    enforcer.manage(&container, Policy::default())?;
    let mut reader = enforcer.audit_reader()?;
    let mut prober = scratch.prober(&container)?;
    assert_eq!(prober.access(FUSE, Access::READ), ALLOWED);
    let record = one(&mut reader);
    assert_eq!(decided(&record), (Some(Action::Keep), Some(Reason::Runtime), 0, 0));
    assert_eq!((record.container, record.cgroup), (container.id(), container.id()));
    for cgroup in [&nobody_s, scratch.ancestor()] {
        prober.move_to(cgroup)?;
        assert_eq!(prober.access(FUSE, Access::READ), ALLOWED);
        let record = one(&mut reader);
        assert_eq!(decided(&record), (Some(Action::Keep), Some(Reason::Unmanaged), 0, 0));
        assert_eq!((record.container, record.cgroup), (0, cgroup.id()));
    }
    assert_eq!(enforcer.unmanaged_counters().recorded, 2);
    Ok(())
}

// Fault: agent-ebpf/src/audit.rs
// - let asleep = load(&state.reader_asleep) != 0 && atomic::swap(&state.reader_asleep, 0) != 0;
// + let asleep = load(&state.reader_asleep) == 0 || atomic::swap(&state.reader_asleep, 0) != 0;
// Fault: agent-ebpf/src/audit.rs
// - let asleep = load(&state.reader_asleep) != 0 && atomic::swap(&state.reader_asleep, 0) != 0;
// + let asleep = load(&state.reader_asleep) > 1 && atomic::swap(&state.reader_asleep, 0) != 0;
// Fault: agent/src/executors/enforcer/audit_ring.rs
// - self.state[0].reader_asleep.store(0, SeqCst);
// + self.state[0].reader_asleep.fetch_or(0, SeqCst);
fn a_reader_is_woken_once_after_it_went_to_sleep() -> TestResult {
    let scratch = Scratch::new("wake")?;
    let mut enforcer = scratch.enforcer_with(unlimited)?;
    let container = scratch.cgroup("container")?;
    enforcer.manage(&container, Policy::RECORD)?;
    enforcer.revoke(container.id(), FUSE, Revocation::Deny)?;
    let mut reader = enforcer.audit_reader()?;
    let mut prober = scratch.prober(&container)?;
    // The second time shows that one sleep is worth one wake-up.
    for _ in 0..2 {
        assert!(!is_readable(&reader), "there is nothing to read");
        let (thread, woken) = (AtomicI32::new(0), AtomicBool::new(false));
        let ring = reader.as_fd().try_clone_to_owned()?;
        thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                thread.store(rustix::thread::gettid().as_raw_nonzero().get(), SeqCst);
                wait_readable("the reader is woken", &ring);
                woken.store(true, SeqCst);
            });
            wait_until("the reader waits", || waits_in_poll(thread.load(SeqCst)));
            prober.repeat(FUSE, ASK, 2000);
            reader.sleep();
            reader.wake();
            prober.repeat(FUSE, ASK, 2000);
            let undisturbed = !woken.load(SeqCst) && waits_in_poll(thread.load(SeqCst));
            reader.sleep();
            prober.access(FUSE, Access::READ);
            waiting.join().expect("it was woken");
            assert!(undisturbed, "the reader was woken though it had not gone to sleep");
        });
        assert_eq!(drain(&mut reader).len(), 4001);
    }
    Ok(())
}

/// Whether a thread of this process is blocked in `poll`.
fn waits_in_poll(thread: i32) -> bool {
    let call = std::fs::read_to_string(format!("/proc/self/task/{thread}/syscall")).unwrap_or_default();
    let number = call.split_whitespace().next().and_then(|number| number.parse::<i64>().ok());
    matches!(number, Some(libc::SYS_poll | libc::SYS_ppoll))
}
