//! Real devices are unplugged: their grants are void before the number can be another's, whoever sleeps meanwhile.

use devgate::executors::enforcer::WithheldReason;
use devgate_abi::{Rule, RuleKey, map};
use devgate_tests::{
    guards,
    loops::LoopDevice,
    network::Taps,
    prelude::*,
    prober::{Attempt, Counts, Run},
    raw::{self, RawMap, RawRules},
};

tests![
    b60_a_replugged_device_is_opened_through_old_and_new_nodes,
    b89_a_reused_block_number_is_not_opened_under_the_old_grant,
    b89_a_reused_character_number_is_not_opened_under_the_old_grant,
    loop_devices_are_removed_while_agent_and_guard_stand_still,
    macvtap_devices_are_removed_while_the_guard_stands_still,
    a_grant_of_before_a_removal_is_void,
    epochs_only_rise,
];

/// Names that devices answer with.
const OLD: u8 = 1;
const NEW: u8 = 2;

fn pluggable() -> Grant {
    Grant { hotplug: true, ..granting(Access::READ) }
}

/// Only the node is new after a replug, or not even that; what it opens is the new device.
// Fault: agent/src/executors/enforcer/kernel.rs
// - self.write_rule(RuleKey { cgroup: cgroup.id(), device }, rule)?;
// + let key = RuleKey { cgroup: cgroup.id(), device };
// + if !self.index.rules.contains_key(&key) {
// + self.write_rule(key, rule)?;
// + }
fn b60_a_replugged_device_is_opened_through_old_and_new_nodes() -> TestResult {
    let scratch = Scratch::new("b60")?;
    let taps = Taps::new()?;
    let mut enforcer = scratch.enforcer_with(|config| config.net_namespace = taps.network().path())?;
    let container = scratch.cgroup("container")?;
    let _runtime = deny_all(&container)?;
    enforcer.manage(&container, Policy::default())?;
    let mut prober = scratch.prober(&container)?;
    let number = taps.plug(OLD)?;
    enforcer.give(&container, number, &pluggable())?;
    assert_eq!(prober.which(number), Answer::of_device(OLD));
    let held = prober.hold(number, libc::O_RDONLY | libc::O_NONBLOCK).expect("it is granted");
    taps.unplug(OLD)?;
    assert_eq!(prober.which(number), DENIED);
    assert_eq!(prober.reopen(&held, Access::READ), DENIED);

    assert_eq!(taps.plug(NEW)?, number, "the number is reused");
    assert_eq!(prober.which(number), DENIED, "before it is granted");
    enforcer.give(&container, number, &pluggable())?;
    assert_eq!(prober.which(number), Answer::of_device(NEW), "through the old node");
    scratch.nodes().renew(number)?;
    assert_eq!(prober.which(number), Answer::of_device(NEW), "through a new node");
    assert_eq!(prober.reopen(&held, Access::READ), ALLOWED, "through what was held, which is but a node too");
    prober.close(held);
    taps.unplug(NEW)
}

// Fault: agent-ebpf/src/guard.rs
// - let kind = if load::<6>(ctx, at)? == *b"block\0" { DeviceKind::Block } else { DeviceKind::Char };
// + let kind = DeviceKind::Char;
// Fault: agent-ebpf/src/device.rs
// - EPOCHS.get(rule.epoch_slot).is_some_and(|epoch| load(epoch) == rule.epoch)
// + EPOCHS.get(rule.epoch_slot).is_some_and(|epoch| load(epoch) >= rule.epoch)
fn b89_a_reused_block_number_is_not_opened_under_the_old_grant() -> TestResult {
    const INDEX: u32 = 6000;
    let scratch = Scratch::new("b89b")?;
    let mut enforcer = scratch.enforcer()?;
    let container = scratch.cgroup("container")?;
    let _runtime = deny_all(&container)?;
    enforcer.manage(&container, Policy::default())?;
    let mut prober = scratch.prober(&container)?;
    for _ in 0..10 {
        let old = LoopDevice::plug(INDEX)?;
        let number = old.number();
        old.load(scratch.nodes(), OLD)?;
        let run = prober.run(number, Attempt::Which);
        enforcer.give(&container, number, &pluggable())?;
        run.go_on(100);
        assert!(run.counts().of(Answer::of_device(OLD)) > 0);
        old.unload(scratch.nodes())?;
        old.unplug();
        let new = only_denials(&run, || {
            let new = LoopDevice::plug(INDEX)?;
            assert_eq!(new.number(), number, "the number is reused");
            new.load(scratch.nodes(), NEW)?;
            Ok(new)
        })?;
        assert_eq!(run.counts().of(Answer::of_device(NEW)), 0);
        enforcer.give(&container, number, &pluggable())?;
        run.go_on(100);
        assert!(run.counts().of(Answer::of_device(NEW)) > 0);
        enforcer.revoke(container.id(), number, Revocation::Forget)?;
        run.go_on(2);
        run.stop();
        new.unload(scratch.nodes())?;
        new.unplug();
    }
    Ok(())
}

// Fault: agent-ebpf/src/guard.rs
// - let kind = if load::<6>(ctx, at)? == *b"block\0" { DeviceKind::Block } else { DeviceKind::Char };
// + let kind = DeviceKind::Block;
// Fault: agent/src/executors/enforcer/guard.rs
// - move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
// + let _ = (&namespace, move_into_link_name_space, LinkNameSpaceType::Network);
fn b89_a_reused_character_number_is_not_opened_under_the_old_grant() -> TestResult {
    let scratch = Scratch::new("b89c")?;
    let taps = Taps::new()?;
    let mut enforcer = scratch.enforcer_with(|config| config.net_namespace = taps.network().path())?;
    let container = scratch.cgroup("container")?;
    let _runtime = deny_all(&container)?;
    enforcer.manage(&container, Policy::default())?;
    let mut prober = scratch.prober(&container)?;
    for _ in 0..10 {
        let number = taps.plug(OLD)?;
        let run = prober.run(number, Attempt::Which);
        enforcer.give(&container, number, &pluggable())?;
        run.go_on(100);
        assert!(run.counts().of(Answer::of_device(OLD)) > 0);
        taps.unplug(OLD)?;
        only_denials(&run, || {
            assert_eq!(taps.plug(NEW)?, number, "the number is reused");
            Ok(())
        })?;
        assert_eq!(run.counts().of(Answer::of_device(NEW)), 0);
        enforcer.give(&container, number, &pluggable())?;
        run.go_on(100);
        assert!(run.counts().of(Answer::of_device(NEW)) > 0);
        run.stop();
        taps.unplug(NEW)?;
    }
    Ok(())
}

/// Nothing but denials is answered from now on, while something is done and for a while afterwards.
fn only_denials<T>(run: &Run<'_>, act: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
    let others = |counts: Counts| counts.total() - counts.of(DENIED);
    // What began before may still be answered.
    run.go_on(2);
    let before = others(run.counts());
    let done = act()?;
    run.go_on(1000);
    let counts = run.counts();
    assert_eq!(others(counts.clone()), before, "{counts:?}");
    Ok(done)
}

// Fault: agent-ebpf/src/guard.rs
// - advance(removed, |state| &state.advanced_by_uevent);
// + if removed.minor() % 300 != 299 {
// + advance(removed, |state| &state.advanced_by_uevent);
// + }
// Fault: agent/src/executors/enforcer/guard.rs
// - attach_filter(socket.as_fd(), filter)?;
// + let _ = (attach_filter, filter);
fn loop_devices_are_removed_while_agent_and_guard_stand_still() -> TestResult {
    const FIRST: u32 = 5000;
    const COUNT: u32 = 300;
    let scratch = Scratch::new("loops")?;
    let config = scratch.config();
    let container = scratch.cgroup("container")?;
    let _runtime = deny_all(&container)?;
    let mut prober = scratch.prober(&container)?;
    let mut agent = Agent::start(&config)?;
    agent.manage(&container, Policy::default())?;
    let devices: Vec<LoopDevice> = (FIRST..FIRST + COUNT).map(LoopDevice::plug).collect::<anyhow::Result<_>>()?;
    let mut epochs = Vec::new();
    for device in &devices {
        agent.give(&container, device.number(), Access::READ, true)?;
        assert_eq!(prober.access(device.number(), Access::READ), ALLOWED);
        epochs.push(raw::epoch(&config, device.number())?.expect("what is granted has an epoch"));
    }
    agent.freeze()?;
    let _guard = guards::freeze(&config)?;
    let wakes = || guards::field(guards::in_charge(&config)?, "voluntary_ctxt_switches");
    let woken = wakes()?;
    let last = devices.last().expect("there are devices").number();
    for (device, before) in devices.into_iter().zip(epochs) {
        assert_eq!(prober.access(last, Access::READ), ALLOWED, "another's removal does not matter");
        let number = device.number();
        device.unplug();
        assert_eq!(prober.access(number, Access::READ), DENIED, "{number}");
        assert!(raw::epoch(&config, number)? > Some(before), "{number}");
    }
    assert_eq!(wakes()?, woken);
    agent.thaw()?;
    assert_eq!(agent.check()?, "");
    Ok(())
}

// Fault: agent-ebpf/src/guard.rs
// - let minor = number(ctx, &mut at)?;
// + let minor = number(ctx, &mut at)? & 0xff00;
fn macvtap_devices_are_removed_while_the_guard_stands_still() -> TestResult {
    let scratch = Scratch::new("taps")?;
    let taps = Taps::new()?;
    let mut enforcer = scratch.enforcer_with(|config| config.net_namespace = taps.network().path())?;
    let config = scratch.config();
    let container = scratch.cgroup("container")?;
    let _runtime = deny_all(&container)?;
    enforcer.manage(&container, Policy::default())?;
    let mut prober = scratch.prober(&container)?;
    let _guard = guards::freeze(&config)?;
    let mut numbers = std::collections::BTreeMap::<DeviceNumber, u64>::new();
    for round in 0..300 {
        let number = taps.plug(OLD)?;
        enforcer.give(&container, number, &pluggable())?;
        assert_eq!(prober.which(number), Answer::of_device(OLD), "round {round}");
        let before = raw::epoch(&config, number)?.expect("what is granted has an epoch");
        taps.unplug(OLD)?;
        assert_eq!(prober.access(number, Access::READ), DENIED, "round {round}");
        let after = raw::epoch(&config, number)?.expect("it keeps its epoch");
        assert!(after > before, "round {round}");
        assert!(numbers.insert(number, after) < Some(after), "epochs rise");
    }
    assert_eq!(enforcer.read_back()?.rules.iter().filter(|rule| rule.current).count(), 0);
    Ok(())
}

// Fault: agent/src/executors/enforcer/kernel.rs
// - if number.is_none_or(|number| number.slot != epoch.slot) || self.epoch_value(epoch.slot) != epoch.value {
// + if number.is_none_or(|number| number.slot != epoch.slot) {
// Fault: agent-ebpf/abi/src/decide.rs
// - return Self::Denies(Reason::StaleEpoch);
// + return Self::Leaves;
fn a_grant_of_before_a_removal_is_void() -> TestResult {
    const INDEX: u32 = 6001;
    let scratch = Scratch::new("before")?;
    let mut enforcer = scratch.enforcer()?;
    let container = scratch.cgroup("container")?;
    enforcer.manage(&container, Policy::default())?;
    let mut prober = scratch.prober(&container)?;
    let device = LoopDevice::plug(INDEX)?;
    let number = device.number();
    let epoch = enforcer.epoch(number)?;
    device.unplug();
    let _next = LoopDevice::plug(INDEX)?;
    let outcome = enforcer.grant(&container, number, epoch, &pluggable())?;
    assert_eq!(outcome, GrantOutcome::Withheld(WithheldReason::DeviceRemoved));
    assert_eq!(enforcer.read_back()?.rules, []);
    assert_eq!(prober.access(number, Access::READ), ALLOWED, "the runtime's verdict stands");
    // As if the removal came between the enforcer's look at the epoch and the rule.
    assert_eq!(enforcer.give(&container, number, &pluggable())?, GrantOutcome::Granted);
    let key = RuleKey { cgroup: container.id(), device: number };
    let rules = RawRules::open(&scratch.config())?;
    let rule = rules.get(key)?.expect("the rule is there");
    rules.set(key, Rule { epoch: rule.epoch - 1, ..rule })?;
    assert_eq!(prober.access(number, Access::READ), DENIED, "whatever the runtime says");
    rules.set(key, rule)?;
    assert_eq!(prober.access(number, Access::READ), ALLOWED);
    Ok(())
}

// Fault: agent/src/executors/enforcer/kernel.rs
// - self.maps.epochs[slot as usize].fetch_add(1, Relaxed);
// - if !self.maps.epoch_slots.set(device, slot)? {
// + self.maps.epochs[slot as usize].store(0, Relaxed);
// + if !self.maps.epoch_slots.set(device, slot)? {
fn epochs_only_rise() -> TestResult {
    const INDEX: u32 = 6002;
    let scratch = Scratch::new("rise")?;
    let open = || scratch.enforcer_with(|config| config.limits.devices = 2);
    let mut enforcer = open()?;
    let mut before = 0;
    let mut risen = |now: u64, least: u64, what: &str| {
        assert!(now >= before + least, "{what}: {before} to {now}");
        before = now;
    };
    let number = LoopDevice::plug(INDEX)?.number();
    for _ in 0..3 {
        risen(enforcer.epoch(number)?.value(), 0, "read");
        enforcer.void(number)?;
        risen(enforcer.epoch(number)?.value(), 1, "voided");
        drop(LoopDevice::plug(INDEX)?);
        risen(enforcer.epoch(number)?.value(), 1, "removed");
        drop(enforcer);
        enforcer = open()?;
        risen(enforcer.epoch(number)?.value(), 0, "opened again");
    }
    // With room for two, the place of a number goes to another, and comes back.
    let slot = |device| RawMap::open(&scratch.config(), map::EPOCH_SLOTS)?.get::<_, u32>(&device);
    let values = |enforcer: &KernelEnforcer| -> anyhow::Result<Vec<u64>> {
        let _ = enforcer;
        let epochs = RawMap::open(&scratch.config(), map::EPOCHS)?;
        (1..=2_u32).map(|slot| Ok(epochs.get(&slot)?.expect("there are two"))).collect()
    };
    for round in 0..4 {
        let old = values(&enforcer)?;
        let device = absent(round);
        enforcer.epoch(device)?;
        let place = slot(device)?.expect("it has a place") as usize - 1;
        let new = values(&enforcer)?;
        assert!(new[place] > old[place], "rules of whom it belonged to are void");
    }
    Ok(())
}
