//! What holds when no guard lives, and the guard that needs no process.

use devgate::executors::enforcer::{Drift, Unguarded, status};
use devgate_abi::Reason;
use devgate_tests::{guards, loops::LoopDevice, prelude::*, prober::Attempt};

tests![
    without_a_guard_pluggable_devices_are_denied,
    without_guard_and_agent_pluggable_devices_are_denied,
    without_a_guard_grants_are_kept_if_so_configured,
    agents_follow_each_other_where_a_guard_is_asked_for,
    device_del_voids_without_a_process,
];

fn pluggable() -> Grant {
    Grant { hotplug: true, ..granting(Access::READ) }
}

fn scene(name: &str, unguarded: Unguarded) -> anyhow::Result<(Scratch, TestCgroup, Runtime, KernelEnforcer)> {
    let scratch = Scratch::new(name)?;
    // However often the device is opened until it is denied, the denial has its record.
    let mut enforcer = scratch.enforcer_with(|config| {
        config.unguarded = unguarded;
        config.record_rate.per_second = 0;
    })?;
    let container = scratch.cgroup("container")?;
    let runtime = deny_all(&container)?;
    enforcer.manage(&container, Policy::RECORD)?;
    enforcer.give(&container, FUSE, &pluggable())?;
    enforcer.give(&container, ABSENT, &granting(Access::READ))?;
    Ok((scratch, container, runtime, enforcer))
}

/// The kernel empties the program array when its last holder has ended, a moment after its end.
fn wait_for_denial(prober: &mut Prober) {
    wait_until("the device is denied", || prober.open(FUSE, Access::READ) == DENIED);
    for _ in 0..100 {
        assert_eq!(prober.open(FUSE, Access::READ), DENIED, "and it stays so");
    }
}

// Fault: agent/src/executors/enforcer/guard.rs
// - let guarded = programs.guarded.take();
// + let guarded = programs.guarded.as_ref().and_then(|array| array.try_clone().ok());
// Fault: agent-ebpf/abi/src/decide.rs
// - if rule.flags.contains(RuleFlags::HOTPLUG) && guard as u8 == Guard::Unproven as u8 {
// + if guard as u8 == Guard::Unproven as u8 {
// Fault: agent/src/executors/enforcer/kernel.rs
// - if grant.hotplug {
// + if grant.hotplug && grant.scope == Scope::Subtree {
fn without_a_guard_pluggable_devices_are_denied() -> TestResult {
    let (scratch, container, _runtime, mut enforcer) = scene("switch", Unguarded::Deny)?;
    let config = scratch.config();
    let mut prober = scratch.prober(&container)?;
    let mut reader = enforcer.audit_reader()?;
    for _ in 0..3 {
        for _ in 0..100 {
            assert_eq!(prober.open(FUSE, Access::READ), ALLOWED, "while the guard lives");
        }
        guards::kill(&config)?;
        wait_for_denial(&mut prober);
        assert_eq!(prober.open(ABSENT, Access::READ), NO_DEVICE, "one that stays");
        drain(&mut reader);
        assert_eq!(prober.open(FUSE, Access::READ), DENIED);
        let records = drain(&mut reader);
        let [record] = records[..] else { panic!("{} records of one denial", records.len()) };
        assert_eq!((record.device, Reason::from_raw(record.reason)), (FUSE, Some(Reason::Unguarded)));
        assert_eq!((record.prior, record.verdict), (-libc::EPERM, -libc::EPERM));
        // What the runtime allows is denied too.
        enforcer.void(ABSENT)?;
        assert_eq!(enforcer.check()?, [Drift::GuardDied]);
        enforcer.give(&container, ABSENT, &granting(Access::READ))?;
        assert_eq!(prober.open(FUSE, Access::READ), ALLOWED);
        assert_eq!(enforcer.check()?, []);
    }
    Ok(())
}

// Fault: agent-ebpf/abi/src/decide.rs
// - return Self::Denies(Reason::Unguarded);
// + return Self::Leaves;
fn without_guard_and_agent_pluggable_devices_are_denied() -> TestResult {
    let scratch = Scratch::new("both")?;
    let config = EnforcerConfig { unguarded: Unguarded::Deny, ..scratch.config() };
    // The runtime allows all: that does not count either.
    let container = scratch.cgroup("container")?;
    let mut prober = scratch.prober(&container)?;
    let mut agent = Agent::start(&config)?;
    agent.manage(&container, Policy::default())?;
    agent.give(&container, FUSE, Access::READ, true)?;
    agent.kill()?;
    assert_eq!(prober.open(FUSE, Access::READ), ALLOWED, "the guard is left");
    guards::kill(&config)?;
    wait_for_denial(&mut prober);
    assert_eq!(status(&config)?.guards.unguarded, Unguarded::Deny);
    // The next agent has a guard, and what was granted is back.
    let enforcer = scratch.enforcer_with(|changed| *changed = config.clone())?;
    assert_eq!(prober.open(FUSE, Access::READ), ALLOWED);
    drop(enforcer);
    Ok(())
}

// Fault: agent/src/executors/enforcer/kernel.rs
// - (self.config.unguarded == Unguarded::Deny && !self.device_del_pinned, StateFlags::REQUIRE_GUARD),
// + (!self.device_del_pinned, StateFlags::REQUIRE_GUARD),
fn without_a_guard_grants_are_kept_if_so_configured() -> TestResult {
    let (scratch, container, _runtime, mut enforcer) = scene("keep", Unguarded::Keep)?;
    let mut prober = scratch.prober(&container)?;
    guards::kill(&scratch.config())?;
    let counts = prober.repeat(FUSE, Attempt::Open(libc::O_RDONLY), 10_000);
    assert_eq!(counts.of(ALLOWED), 10_000, "{counts:?}");
    assert_eq!(status(&scratch.config())?.guards.unguarded, Unguarded::Keep);
    assert_eq!(enforcer.check()?, [Drift::GuardDied]);
    assert_eq!(prober.open(FUSE, Access::READ), ALLOWED);
    Ok(())
}

// Fault: agent/src/executors/enforcer/kernel.rs
// - self.guard.take_over()?;
// - self.pins.remove_others()
// + self.pins.remove_others()
// Fault: agent/src/executors/enforcer/kernel.rs
// - let guard = Guard::start(&config, &mut loaded.programs)?;
// + let guard = Guard::start(&config, &mut loaded.programs)?;
// + super::guard::end_running(&config.run_dir).unwrap();
fn agents_follow_each_other_where_a_guard_is_asked_for() -> TestResult {
    let (scratch, container, _runtime, enforcer) = scene("chain", Unguarded::Deny)?;
    drop(enforcer);
    let mut prober = scratch.prober(&container)?;
    let run = prober.run(FUSE, Attempt::Open(libc::O_RDONLY));
    for _ in 0..5 {
        drop(scratch.enforcer_with(|config| config.unguarded = Unguarded::Deny)?);
        run.go_on(1000);
    }
    let counts = run.stop();
    assert_eq!(counts.of(ALLOWED), counts.total(), "{counts:?}");
    Ok(())
}

/// Where the kernel takes no program at `device_del` this is skipped, and says why.
fn device_del_voids_without_a_process() -> TestResult {
    const INDEX: u32 = 6003;
    let scratch = Scratch::new("fentry")?;
    let config = scratch.config();
    let attempted = Agent::attempt(&config, &[])?;
    assert!(attempted.status.success(), "{}", attempted.said);
    if !status(&config)?.guards.device_del {
        let refusal = attempted.said.lines().find(|line| line.contains("device_del"));
        let refusal = refusal.expect("the agent says that the kernel takes no program there");
        let (_, reason) = refusal.split_once("reason=").expect("the agent says why the kernel takes none");
        return skip(format!("the kernel takes no program at device_del: {reason}"));
    }
    guards::kill(&config)?;
    let container = scratch.cgroup("container")?;
    let _runtime = deny_all(&container)?;
    let mut enforcer = scratch.enforcer()?;
    enforcer.manage(&container, Policy::default())?;
    let device = LoopDevice::plug(INDEX)?;
    let number = device.number();
    enforcer.give(&container, number, &pluggable())?;
    drop(enforcer);
    guards::kill(&config)?;
    let mut prober = scratch.prober(&container)?;
    assert_eq!(prober.access(number, Access::READ), ALLOWED);
    device.unplug();
    assert_eq!(prober.access(number, Access::READ), DENIED);
    assert_eq!(status(&config)?.guards.device_del_advances, 1);
    Ok(())
}
