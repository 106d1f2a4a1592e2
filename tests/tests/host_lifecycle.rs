//! What enforces outlives the agent, and agents follow each other without a moment in between.

use std::{collections::BTreeSet, ffi::OsString, fs, os::fd::AsFd};

use devgate::executors::enforcer::AppliedRules;
use devgate::executors::enforcer::sys;
use devgate_abi::{LAYOUT_VERSION, Rule, RuleKey, map};
use devgate_tests::{
    prelude::*,
    prober::Attempt,
    raw::{self, RawMap},
};

tests![
    b06_the_number_of_programs_is_constant,
    b25_enforcement_outlives_the_agent,
    b26_pins_of_an_old_layout_deny_nothing,
    b27_without_any_device_the_filter_stays,
    agents_follow_each_other_while_devices_are_opened,
    a_layout_is_upgraded_while_devices_are_opened,
    two_agents_do_not_enforce_with_the_same_pins,
];

const OPEN: Attempt = Attempt::Open(libc::O_RDONLY | libc::O_NONBLOCK);
/// What the tests leave to the runtime's program, which denies it.
const REFUSED: DeviceNumber = absent(7);

// Fault: agent/src/executors/enforcer/kernel.rs
// - Some(link) if link.info()?.cgroup == self.ancestor.id() => link.update(program, &self.ancestor)?,
// + Some(link) if link.info()?.cgroup == self.ancestor.id() => {
// + link.update(program, &self.ancestor)?;
// + sys::attach(program, self.ancestor.as_fd(), None).unwrap();
// + }
// Fault: agent/src/executors/enforcer/sys.rs
// - flags: ATTACH_MULTI | if replaced.is_some() { ATTACH_REPLACE } else { 0 },
// + flags: ATTACH_MULTI,
fn b06_the_number_of_programs_is_constant() -> TestResult {
    let scratch = Scratch::new("b06")?;
    let mut enforcer = scratch.enforcer()?;
    let container = scratch.cgroup("container")?;
    let mut runtime = deny_all(&container)?;
    let mut prober = scratch.prober(&container)?;
    for edit in 0..100_u32 {
        if edit % 10 == 9 {
            drop(enforcer);
            enforcer = scratch.enforcer()?;
        }
        let policy = if edit % 2 == 0 { Policy::DENY_OTHERS } else { Policy::RECORD };
        enforcer.manage(&container, policy)?;
        enforcer.give(&container, FUSE, &Grant { generation: edit, ..granting(Access::READ) })?;
        enforcer.revoke(container.id(), absent(edit), Revocation::Deny)?;
        runtime.replace(&sys::return_constant(0))?;
        assert_eq!(enforcer.check()?, []);
        assert_eq!(sys::attached_programs(scratch.ancestor().as_fd())?.len(), 1, "after edit {edit}");
        assert_eq!(sys::attached_programs(container.as_fd())?.len(), 1, "the runtime's own, after edit {edit}");
        assert_eq!(sys::effective_programs(container.as_fd())?.len(), 2, "after edit {edit}");
    }
    assert_eq!(prober.open(FUSE, Access::READ), ALLOWED);
    Ok(())
}

/// The agent is a process of its own, and is killed.
// Fault: agent/src/executors/enforcer/link.rs
// - sys::pin(self.fd.as_fd(), &self.pin).map_err(EnforcerError::call("BPF_OBJ_PIN"))
// + Ok(())
// Fault: agent/src/executors/enforcer/kernel.rs
// - enforcer.restore_bits();
// + for key in enforcer.index.rules.clone().into_keys() {
// + enforcer.remove_rule(key)?;
// + }
// Fault: agent/src/executors/enforcer/load.rs
// - loader.map_pin_path(spec.name, pins.map(spec.name));
// + let _ = pins.map(spec.name);
fn b25_enforcement_outlives_the_agent() -> TestResult {
    let scratch = Scratch::new("b25")?;
    let [denied, runtime_denied] = ["revoked", "granted"].map(|name| scratch.cgroup(name));
    let (revoked, container) = (denied?, runtime_denied?);
    let _runtime = deny_all(&container)?;
    let mut agent = Agent::start(&scratch.config())?;
    agent.manage(&revoked, Policy::DENY_OTHERS)?;
    agent.manage(&container, Policy::default())?;
    agent.give(&container, FUSE, Access::READ, false)?;
    let mut outside = scratch.prober(&revoked)?;
    let mut inside = scratch.prober(&container)?;
    let mut watch = scratch.prober(&container)?;
    let (denied, granted) = (outside.run(FUSE, OPEN), inside.run(FUSE, OPEN));
    let refused = watch.run(REFUSED, OPEN);
    granted.go_on(1000);
    agent.kill()?;
    for run in [&denied, &granted, &refused] {
        run.go_on(10_000);
    }
    let mut enforcer = KernelEnforcer::open(scratch.config())?;
    let applied = enforcer.read_back()?;
    assert_eq!(
        applied.cgroups.iter().map(|cgroup| cgroup.id).collect::<Vec<_>>(),
        sorted([revoked.id(), container.id()])
    );
    let [rule] = applied.rules[..] else { panic!("{applied:?}") };
    assert_eq!((rule.key, rule.current), (RuleKey { cgroup: container.id(), device: FUSE }, true));
    for run in [&denied, &granted, &refused] {
        run.go_on(10_000);
    }
    enforcer.activate()?;
    for run in [&denied, &granted, &refused] {
        run.go_on(10_000);
    }
    for (run, answer) in [(denied, DENIED), (granted, ALLOWED), (refused, DENIED)] {
        let counts = run.stop();
        assert_eq!(counts.of(answer), counts.total(), "{counts:?}");
    }
    // The new agent does not only read: what it changes is in force.
    enforcer.revoke(container.id(), FUSE, Revocation::Forget)?;
    assert_eq!(inside.open(FUSE, Access::READ), DENIED);
    enforcer.manage(&revoked, Policy::default())?;
    assert_eq!(outside.open(FUSE, Access::READ), ALLOWED);
    Ok(())
}

/// Maps of another shape under the same names, in the folder of another version, and a folder of one that is to come.
// Fault: agent/src/executors/enforcer/layout.rs
// - root.join(format!("v{LAYOUT_VERSION}"))
// + root.join("v0")
// Fault: agent/src/executors/enforcer/layout.rs
// - if path.is_dir() && path != self.maps() {
// + if path.is_dir() && path == self.maps() {
fn b26_pins_of_an_old_layout_deny_nothing() -> TestResult {
    let scratch = Scratch::new("b26")?;
    let config = scratch.config();
    let container = scratch.cgroup("container")?;
    let mut prober = scratch.prober(&container)?;
    for version in ["v0", "v999"] {
        let folder = config.pin_root.join(version);
        fs::create_dir_all(&folder)?;
        for name in [map::STATE, map::CGROUPS, map::RULES, map::EPOCHS] {
            let shape = raw::Shape { kind: 1, key_size: 4, value_size: 4, max_entries: 9, flags: 0 };
            sys::pin(RawMap::create(shape)?.as_fd(), &folder.join(name))?;
        }
    }
    let mut enforcer = scratch.enforcer()?;
    for device in [FUSE, DeviceNumber::char(1, 3), DeviceNumber::char(5, 0)] {
        assert_eq!(prober.access(device, Access::READ), ALLOWED, "{device}");
    }
    enforcer.manage(&container, Policy::default())?;
    enforcer.revoke(container.id(), FUSE, Revocation::Deny)?;
    assert_eq!(prober.open(FUSE, Access::READ), DENIED);
    drop(enforcer);
    let _enforcer = scratch.enforcer()?;
    assert_eq!(prober.open(FUSE, Access::READ), DENIED);
    assert_eq!(prober.access(REFUSED, Access::READ), ALLOWED);
    let left: BTreeSet<OsString> = fs::read_dir(&config.pin_root)?.flatten().map(|entry| entry.file_name()).collect();
    assert_eq!(left, ["link".into(), format!("v{LAYOUT_VERSION}").into()].into());
    Ok(())
}

/// A class that has matched devices and matches none any more: all were unplugged.
// Fault: agent/src/executors/enforcer/kernel.rs
// - let strict = self.index.any_strict() || self.config.unclassified.is_about_others();
// + let strict = self.index.any_strict() && !self.index.rules.is_empty();
fn b27_without_any_device_the_filter_stays() -> TestResult {
    let scratch = Scratch::new("b27")?;
    let mut enforcer = scratch.enforcer()?;
    let container = scratch.cgroup("container")?;
    let mut prober = scratch.prober(&container)?;
    enforcer.manage(&container, Policy::DENY_OTHERS)?;
    assert_eq!(prober.open(FUSE, Access::READ), DENIED, "before there was any device");
    let devices = [FUSE, LOOP, ABSENT];
    for device in devices {
        enforcer.give(&container, device, &Grant { hotplug: true, ..granting(Access::READ) })?;
    }
    assert_eq!(prober.open(FUSE, Access::READ), ALLOWED);
    for device in devices {
        enforcer.void(device)?;
        enforcer.revoke(container.id(), device, Revocation::Forget)?;
        // A change of the container while there is nothing to grant.
        enforcer.manage(&container, Policy::DENY_OTHERS)?;
    }
    assert_eq!(enforcer.read_back()?.rules, []);
    assert_eq!(sys::attached_programs(scratch.ancestor().as_fd())?.len(), 1);
    for device in devices {
        assert_eq!(prober.open(device, Access::READ), DENIED, "{device}");
    }
    drop(enforcer);
    let _enforcer = scratch.enforcer()?;
    for device in devices {
        assert_eq!(prober.open(device, Access::READ), DENIED, "{device} with the next agent");
    }
    Ok(())
}

// Fault: agent/src/executors/enforcer/kernel.rs
// - enforcer.restore_bits();
// + let state = enforcer.maps.state();
// + for id in 0..=u64::from(u16::MAX) {
// + state.set_slot(id, 0);
// + }
// + enforcer.restore_bits();
// Fault: agent/src/executors/enforcer/kernel.rs
// - Some(link) if link.info()?.cgroup == self.ancestor.id() => link.update(program, &self.ancestor)?,
// + Some(link) if link.info()?.cgroup == self.ancestor.id() => {
// + std::fs::remove_file(self.pins.link()).unwrap();
// + self.link = None;
// + self.link = Some(PinnedLink::create(program, &self.ancestor, &self.pins.link())?);
// + }
fn agents_follow_each_other_while_devices_are_opened() -> TestResult {
    let scratch = Scratch::new("follow")?;
    let container = scratch.cgroup("container")?;
    let revoked = scratch.cgroup("revoked")?;
    let mut runtime = deny_all(&container)?;
    let set_up = |enforcer: &mut KernelEnforcer, generation| -> TestResult {
        enforcer.manage(&container, Policy::RECORD)?;
        enforcer.manage(&revoked, Policy::default())?;
        enforcer.give(&container, FUSE, &Grant { generation, ..granting(Access::READ) })?;
        Ok(enforcer.revoke(revoked.id(), FUSE, Revocation::Deny)?)
    };
    let mut enforcer = scratch.enforcer()?;
    set_up(&mut enforcer, 0)?;
    let (mut granted, mut denied) = (scratch.prober(&container)?, scratch.prober(&revoked)?);
    let runs = [granted.run(FUSE, OPEN), denied.run(FUSE, OPEN)];
    for generation in 1..=50 {
        drop(enforcer);
        enforcer = scratch.enforcer()?;
        for _ in 0..10 {
            set_up(&mut enforcer, generation)?;
            runtime.replace(&sys::return_constant(0))?;
        }
        for run in &runs {
            run.go_on(2);
        }
    }
    for run in &runs {
        run.go_on(100_000_u64.saturating_sub(run.counts().total()));
    }
    for (run, answer) in runs.into_iter().zip([ALLOWED, DENIED]) {
        let counts = run.stop();
        assert!(counts.total() >= 100_000, "{counts:?}");
        assert_eq!(counts.of(answer), counts.total(), "{counts:?}");
    }
    Ok(())
}

/// The maps of the program that is in force are those of an older version: the folder is renamed.
// Fault: agent/src/executors/enforcer/kernel.rs
// - self.pins.remove_others()
// + Ok(())
// Fault: agent/src/executors/enforcer/kernel.rs
// - link: PinnedLink::open(&pins.link())?,
// + link: PinnedLink::open(&pins.link())?.filter(|_| std::fs::remove_file(pins.link()).is_err()),
fn a_layout_is_upgraded_while_devices_are_opened() -> TestResult {
    let scratch = Scratch::new("upgrade")?;
    let config = scratch.config();
    let container = scratch.cgroup("container")?;
    let revoked = scratch.cgroup("revoked")?;
    let _runtime = deny_all(&container)?;
    let set_up = |enforcer: &mut KernelEnforcer| -> TestResult {
        enforcer.give(&container, FUSE, &granting(Access::READ))?;
        enforcer.revoke(revoked.id(), FUSE, Revocation::Deny)?;
        enforcer.manage(&container, Policy::default())?;
        Ok(enforcer.manage(&revoked, Policy::default())?)
    };
    let mut enforcer = scratch.enforcer()?;
    set_up(&mut enforcer)?;
    drop(enforcer);
    let old_folder = config.pin_root.join("v0");
    fs::rename(config.pin_root.join(format!("v{LAYOUT_VERSION}")), &old_folder)?;
    let old_rules = RawMap::pinned(&old_folder.join(map::RULES))?;

    let (mut granted, mut refused) = (scratch.prober(&container)?, scratch.prober(&container)?);
    let mut denied = scratch.prober(&revoked)?;
    let runs = [granted.run(FUSE, OPEN), refused.run(REFUSED, OPEN), denied.run(FUSE, OPEN)];
    let go_on = || runs.iter().for_each(|run| run.go_on(10_000));
    let mut enforcer = KernelEnforcer::open(config)?;
    assert_eq!(enforcer.read_back()?, AppliedRules::default(), "the new maps are empty");
    go_on();
    set_up(&mut enforcer)?;
    go_on();
    assert!(old_folder.exists(), "until it is activated the old maps may be needed");
    enforcer.activate()?;
    assert!(!old_folder.exists());
    go_on();
    // Whoever still has the old maps changes nothing by them.
    let key = RuleKey { cgroup: revoked.id(), device: FUSE };
    let old_rule: Rule = old_rules.get(&key)?.expect("the old rule is there");
    old_rules.set(&key, &Rule { deny: Access::NONE, allow: Access::ALL, ..old_rule })?;
    go_on();
    for (run, answer) in runs.into_iter().zip([ALLOWED, DENIED, DENIED]) {
        let counts = run.stop();
        assert_eq!(counts.of(answer), counts.total(), "{counts:?}");
    }
    enforcer.revoke(revoked.id(), FUSE, Revocation::Forget)?;
    assert_eq!(scratch.prober(&revoked)?.open(FUSE, Access::READ), ALLOWED);
    Ok(())
}

// Fault: agent/src/executors/enforcer/layout.rs
// - match flock(&folder, FlockOperation::NonBlockingLockExclusive) {
// + match flock(&folder, FlockOperation::NonBlockingLockShared) {
fn two_agents_do_not_enforce_with_the_same_pins() -> TestResult {
    let scratch = Scratch::new("two")?;
    let config = scratch.config();
    let mut agent = Agent::start(&config)?;
    let refused = KernelEnforcer::open(config.clone()).map(drop);
    assert!(matches!(&refused, Err(EnforcerError::AlreadyRunning(path)) if *path == config.pin_root), "{refused:?}");
    let text = refused.unwrap_err().to_string();
    assert!(text.contains(&config.pin_root.display().to_string()), "{text}");
    assert_eq!(agent.check()?, "", "the first one is not disturbed");
    agent.kill()?;
    scratch.enforcer()?;
    Ok(())
}

fn sorted<const N: usize>(mut ids: [u64; N]) -> [u64; N] {
    ids.sort_unstable();
    ids
}
