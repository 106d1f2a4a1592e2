//! Faults that users of other projects met, as tests of ours. Each is named after its row of the bug cases.

use devgate::executors::enforcer::RecordRate;
use devgate_abi::Reason;
use devgate_tests::{devices::STANDARD, prelude::*, prober::Attempt};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

tests![
    b15_editing_one_class_leaves_the_entries_of_another,
    b17_standard_devices_are_there_after_every_change,
    b21_access_f_ok_with_rw_class,
    b22_mknod_is_allowed_and_open_still_denied,
    b24_all_masks_load_with_little_locked_memory,
];

/// Rules are entries of their own: there is no list that is built anew and could lose one, even for a moment.
// Fault: agent/src/executors/enforcer/kernel.rs
// - self.write_rule(RuleKey { cgroup: cgroup.id(), device }, rule)?;
// + let key = RuleKey { cgroup: cgroup.id(), device };
// + let others: Vec<(RuleKey, Rule)> = self.index.rules.clone().into_iter().filter(|(other, _)| *other != key).collect();
// + for (other, _) in &others {
// + self.remove_rule(*other)?;
// + }
// + self.write_rule(key, rule)?;
// + for (other, rule) in others {
// + self.write_rule(other, rule)?;
// + }
fn b15_editing_one_class_leaves_the_entries_of_another() -> TestResult {
    let scratch = Scratch::new("b15")?;
    let mut enforcer = scratch.enforcer()?;
    let container = scratch.cgroup("container")?;
    let _runtime = deny_all(&container)?;
    enforcer.manage(&container, Policy::DENY_OTHERS)?;
    let mut prober = scratch.prober(&container)?;
    let vfio = Grant { rule_id: 7, generation: 3, ..granting(Access::READ_WRITE) };
    enforcer.give(&container, FUSE, &vfio)?;
    let before = enforcer.read_back()?.rules;
    let run = prober.run(FUSE, Attempt::Open(libc::O_RDWR));
    for generation in 0..500 {
        // Another device of the same major, granted with other accesses, voided, denied and taken out.
        let other = DeviceNumber::char(10, 1000 + generation % 3);
        let access = Access::from_bits(1 + generation % 7);
        enforcer.give(&container, other, &Grant { generation, ..granting(access) })?;
        enforcer.void(other)?;
        enforcer.revoke(container.id(), other, Revocation::Deny)?;
        enforcer.revoke(container.id(), other, Revocation::Forget)?;
        enforcer.manage(&container, if generation % 2 == 0 { Policy::default() } else { Policy::DENY_OTHERS })?;
        run.go_on(2);
    }
    let counts = run.stop();
    assert_eq!(counts.of(ALLOWED), counts.total(), "{counts:?}");
    assert_eq!(enforcer.read_back()?.rules, before);
    Ok(())
}

// Fault: agent-ebpf/abi/src/number.rs
// - 1 => matches!(self.minor, 3 | 5 | 7 | 8 | 9),
// + 1 => matches!(self.minor, 3 | 5 | 7 | 8),
// Fault: agent/src/executors/enforcer/kernel.rs
// - if device.is_standard() {
// - return Err(EnforcerError::Standard(device));
// - }
// - // What was granted has its entry, so that this never needs room for one.
// + // What was granted has its entry, so that this never needs room for one.
fn b17_standard_devices_are_there_after_every_change() -> TestResult {
    let scratch = Scratch::new("b17")?;
    let strict = Policy::DENY_OTHERS.union(Policy::DENY_MKNOD);
    let mut enforcer = scratch.enforcer_with(|config| config.unclassified = strict)?;
    let container = scratch.cgroup("container")?;
    let mut prober = scratch.prober(&container)?;
    let terminal = ("pts", DeviceNumber::char(136, 7));
    let all_there = |when: &str, prober: &mut Prober| {
        for (name, device) in STANDARD.into_iter().chain([terminal]) {
            let asks = [Access::NONE, Access::READ_WRITE].map(|access| prober.access(device, access));
            assert_eq!((asks, prober.mknod(device)), ([ALLOWED; 2], ALLOWED), "{name} {when}");
            // The terminals have nothing behind them here.
            if device.major() == 1 {
                assert_eq!(prober.open(device, Access::READ), ALLOWED, "{name} {when}");
            } else {
                assert_ne!(prober.open(device, Access::READ_WRITE), DENIED, "{name} {when}");
            }
        }
        // Others of the same majors are no standard devices.
        for device in [DeviceNumber::char(1, 11), DeviceNumber::char(5, 1)] {
            assert_eq!(prober.open(device, Access::READ), DENIED, "{device} {when}");
        }
    };
    all_there("before the container is known", &mut prober);
    enforcer.manage(&container, strict)?;
    all_there("when everything else is denied", &mut prober);
    enforcer.give(&container, DeviceNumber::char(1, 1), &granting(Access::READ))?;
    all_there("when a rule names their major", &mut prober);
    for (name, device) in STANDARD.into_iter().chain([terminal]) {
        enforcer.void(device)?;
        let denied = enforcer.revoke(container.id(), device, Revocation::Deny);
        assert!(matches!(denied, Err(EnforcerError::Standard(_))), "{name}: {denied:?}");
        let granted = enforcer.give(&container, device, &granting(Access::READ));
        assert!(matches!(granted, Err(EnforcerError::Standard(_))), "{name}: {granted:?}");
    }
    all_there("when somebody has tried to name them", &mut prober);
    let child = container.child("child")?;
    prober.move_to(&child)?;
    all_there("in a cgroup below", &mut prober);
    drop(enforcer);
    all_there("when the agent is gone", &mut prober);
    let mut enforcer = scratch.enforcer_with(|config| config.unclassified = strict)?;
    all_there("when the agent is back", &mut prober);
    enforcer.forget(container.id())?;
    all_there("when the container is forgotten", &mut prober);
    Ok(())
}

// Fault: agent-ebpf/abi/src/decide.rs
// - if !expired && !rule.allow.is_empty() && rule.allow.contains(access) {
// + if !expired && rule.allow.contains(access) && !(access.is_empty() && rule.allow.contains(Access::WRITE)) {
// Fault: agent-ebpf/src/audit.rs
// - access: request.access.bits(),
// + access: if request.access.is_empty() { 2 } else { request.access.bits() },
fn b21_access_f_ok_with_rw_class() -> TestResult {
    let scratch = Scratch::new("b21")?;
    let mut enforcer = scratch.enforcer()?;
    let container = scratch.cgroup("container")?;
    let _runtime = deny_all(&container)?;
    enforcer.manage(&container, Policy::RECORD)?;
    let mut reader = enforcer.audit_reader()?;
    let mut prober = scratch.prober(&container)?;
    enforcer.give(&container, FUSE, &granting(Access::READ_WRITE))?;
    assert_eq!(prober.access(FUSE, Access::NONE), ALLOWED);
    let records = drain(&mut reader);
    let [record] = records[..] else { panic!("{} records of one access", records.len()) };
    assert_eq!(Access::from_bits(record.access), Access::NONE, "it is not logged as read");
    assert_eq!(Reason::from_raw(record.reason), Some(Reason::Granted));
    // Every set of accesses says that the node may be looked for.
    for bits in 1..8 {
        enforcer.give(&container, FUSE, &granting(Access::from_bits(bits)))?;
        assert_eq!(prober.access(FUSE, Access::NONE), ALLOWED, "{}", Access::from_bits(bits));
    }
    Ok(())
}

// Fault: agent-ebpf/abi/src/decide.rs
// - && (access.intersects(Access::READ_WRITE)
// - || (policy.contains(Policy::DENY_MKNOD) && access.contains(Access::MKNOD)))
// + && (access.intersects(Access::ALL)
// + || (policy.contains(Policy::DENY_MKNOD) && access.contains(Access::MKNOD)))
// Fault: agent-ebpf/abi/src/decide.rs
// - && (access.intersects(Access::READ_WRITE)
// - || (policy.contains(Policy::DENY_MKNOD) && access.contains(Access::MKNOD)))
// + && access.intersects(Access::READ_WRITE)
fn b22_mknod_is_allowed_and_open_still_denied() -> TestResult {
    let scratch = Scratch::new("b22")?;
    let mut enforcer = scratch.enforcer()?;
    let container = scratch.cgroup("container")?;
    let mut prober = scratch.prober(&container)?;
    let whiteout = DeviceNumber::char(0, 0);
    enforcer.manage(&container, Policy::DENY_OTHERS)?;
    assert_eq!([prober.mknod(FUSE), prober.mknod(LOOP), prober.mknod(whiteout)], [ALLOWED; 3]);
    assert_eq!([prober.open(FUSE, Access::READ), prober.open(LOOP, Access::WRITE)], [DENIED; 2]);
    enforcer.manage(&container, Policy::DENY_OTHERS.union(Policy::DENY_MKNOD))?;
    // The kernel does not ask about whiteouts (Linux 5.10).
    assert_eq!([prober.mknod(FUSE), prober.mknod(LOOP), prober.mknod(whiteout)], [DENIED, DENIED, ALLOWED]);
    assert_eq!(prober.open(FUSE, Access::READ), DENIED);
    enforcer.give(&container, FUSE, &granting(Access::ALL))?;
    assert_eq!([prober.mknod(FUSE), prober.open(FUSE, Access::READ)], [ALLOWED; 2]);
    Ok(())
}

// Fault: agent/src/executors/enforcer/kernel.rs
// - allow: grant.access,
// + allow: if grant.access.contains(Access::READ) { Access::ALL } else { grant.access },
fn b24_all_masks_load_with_little_locked_memory() -> TestResult {
    let scratch = Scratch::new("b24")?;
    let before = getrlimit(Resource::Memlock);
    setrlimit(Resource::Memlock, Rlimit { current: Some(64 << 10), maximum: before.maximum })?;
    let enforcer = scratch.enforcer_with(|config| config.record_rate = RecordRate::default());
    setrlimit(Resource::Memlock, before)?;
    let mut enforcer = enforcer?;
    let container = scratch.cgroup("container")?;
    let _runtime = deny_all(&container)?;
    enforcer.manage(&container, Policy::default())?;
    let mut prober = scratch.prober(&container)?;
    for bits in 1..8 {
        let granted = Access::from_bits(bits);
        enforcer.give(&container, ABSENT, &granting(granted))?;
        for access in [Access::READ, Access::WRITE, Access::READ_WRITE] {
            let expected = if granted.contains(access) { NO_DEVICE } else { DENIED };
            assert_eq!(prober.open(ABSENT, access), expected, "{access} of {granted}");
        }
        let expected = if granted.contains(Access::MKNOD) { ALLOWED } else { DENIED };
        assert_eq!(prober.mknod(ABSENT), expected, "m of {granted}");
    }
    Ok(())
}
