//! Maps that are full: nothing more can be granted, and everything can be taken away.

use devgate::executors::enforcer::{AppliedRule, Limits};
use devgate_abi::RuleKey;
use devgate_tests::{prelude::*, raw::RawRules};

tests![
    a_full_map_of_rules_refuses_grants_and_no_revocation,
    a_full_map_of_cgroups_refuses_the_next_and_changes_those_it_has,
    the_place_of_an_unused_number_is_given_to_another_and_the_old_rule_is_void,
];

const RULES: u32 = 4;

fn small(config: &mut EnforcerConfig) {
    config.limits = Limits { cgroups: 2, rules: RULES, devices: 8, audit_bytes: 4096 };
}

/// Where the agent says that something is full, the configuration's field is named.
fn assert_full<T: std::fmt::Debug>(result: Result<T, EnforcerError>, expected_field: &str, expected_limit: u32) {
    match result {
        Err(error @ EnforcerError::Full { .. }) => {
            let text = error.to_string();
            assert!(text.contains(&format!("enforcer.limits.{expected_field}")), "{text}");
            assert!(text.contains(&expected_limit.to_string()), "{text}");
        }
        other => panic!("{other:?}, though there is no room"),
    }
}

// Fault: agent/src/executors/enforcer/kernel.rs
// - let old = self.index.rules.get(&key).copied().unwrap_or_default();
// + let old = self.index.rules.get(&key).copied().unwrap_or_default();
// + if self.index.rules.len() as u32 >= self.config.limits.rules {
// + return Err(EnforcerError::Full { what: "rules", limit: self.config.limits.rules, field: "rules" });
// + }
// Fault: agent/src/executors/enforcer/kernel.rs
// - Err(EnforcerError::Full { what: "rules", limit: self.config.limits.rules, field: "rules" })
// + Ok(())
fn a_full_map_of_rules_refuses_grants_and_no_revocation() -> TestResult {
    let scratch = Scratch::new("rules")?;
    let mut enforcer = scratch.enforcer_with(small)?;
    let container = scratch.cgroup("container")?;
    let _runtime = deny_all(&container)?;
    enforcer.manage(&container, Policy::default())?;
    let mut prober = scratch.prober(&container)?;
    let mut ask = |index| prober.access(absent(index), Access::READ);
    for index in 0..RULES {
        enforcer.give(&container, absent(index), &granting(Access::READ))?;
    }
    assert_full(enforcer.give(&container, absent(RULES), &granting(Access::READ)), "rules", RULES);
    // A rule for a major that no other names leaves nothing behind.
    assert_full(enforcer.give(&container, LOOP, &granting(Access::READ)), "rules", RULES);
    assert_eq!([0, 1, 2, 3, 4].map(&mut ask), [ALLOWED, ALLOWED, ALLOWED, ALLOWED, DENIED]);

    enforcer.revoke(container.id(), absent(0), Revocation::Deny)?;
    enforcer.void(absent(1))?;
    assert_eq!([0, 1, 2, 3, 4].map(&mut ask), [DENIED, DENIED, ALLOWED, ALLOWED, DENIED]);
    // Granting anew what is there takes no room.
    enforcer.give(&container, absent(1), &granting(Access::READ_WRITE))?;
    assert_full(enforcer.revoke(container.id(), absent(RULES), Revocation::Deny), "rules", RULES);
    enforcer.revoke(container.id(), absent(2), Revocation::Forget)?;
    assert_eq!([0, 1, 2, 3, 4].map(&mut ask), [DENIED, ALLOWED, DENIED, ALLOWED, DENIED]);
    enforcer.give(&container, absent(RULES), &granting(Access::READ))?;
    assert_eq!([0, 1, 2, 3, 4].map(&mut ask), [DENIED, ALLOWED, DENIED, ALLOWED, ALLOWED]);
    assert_full(enforcer.give(&container, absent(2), &granting(Access::READ)), "rules", RULES);
    enforcer.forget(container.id())?;
    assert_eq!([0, 1, 2, 3, 4].map(&mut ask), [DENIED; 5]);
    assert_eq!(enforcer.read_back()?.rules, vec![]);
    Ok(())
}

// Fault: agent/src/executors/enforcer/kernel.rs
// - let slot = self.index.take_container_slot().ok_or_else(full)?;
// + let slot = self.index.take_container_slot().unwrap_or(1);
// Fault: agent/src/executors/enforcer/index.rs
// - self.cooling_containers.push_back(entry.slot);
// + self.cooling_containers.push_back(0);
fn a_full_map_of_cgroups_refuses_the_next_and_changes_those_it_has() -> TestResult {
    let scratch = Scratch::new("cgroups")?;
    let mut enforcer = scratch.enforcer_with(small)?;
    let [first, second, third] = ["first", "second", "third"].map(|name| scratch.cgroup(name));
    let [first, second, third] = [first?, second?, third?];
    let mut prober = scratch.prober(&third)?;
    enforcer.manage(&first, Policy::default())?;
    enforcer.manage(&second, Policy::default())?;
    assert_full(enforcer.manage(&third, Policy::DENY_OTHERS), "cgroups", 2);
    assert_eq!(prober.open(FUSE, Access::READ), ALLOWED);
    enforcer.manage(&first, Policy::DENY_OTHERS)?;
    prober.move_to(&first)?;
    assert_eq!(prober.open(FUSE, Access::READ), DENIED);
    assert_eq!(enforcer.forget(first.id())?.denied, 1);
    enforcer.manage(&third, Policy::DENY_OTHERS)?;
    prober.move_to(&third)?;
    assert_eq!([FUSE, FUSE].map(|device| prober.open(device, Access::READ)), [DENIED; 2]);
    let counted: Vec<_> =
        enforcer.read_back()?.cgroups.iter().map(|cgroup| (cgroup.id, cgroup.counters.denied)).collect();
    let mut expected = [(second.id(), 0), (third.id(), 2)];
    expected.sort_unstable();
    assert_eq!(counted, expected);
    assert_eq!(enforcer.unmanaged_counters().denied, 0);
    Ok(())
}

// Fault: agent/src/executors/enforcer/kernel.rs
// - self.maps.epochs[slot as usize].fetch_add(1, Relaxed);
// - if !self.maps.epoch_slots.set(device, slot)? {
// + if !self.maps.epoch_slots.set(device, slot)? {
// Fault: agent/src/executors/enforcer/index.rs
// - self.epochs.iter().find(|(_, number)| number.rules == 0).map(|(&device, _)| device)
// + self.epochs.iter().find(|(_, number)| number.rules <= 1).map(|(&device, _)| device)
fn the_place_of_an_unused_number_is_given_to_another_and_the_old_rule_is_void() -> TestResult {
    let scratch = Scratch::new("epochs")?;
    let mut enforcer = scratch.enforcer_with(|config| config.limits.devices = 3)?;
    let container = scratch.cgroup("container")?;
    let _runtime = deny_all(&container)?;
    enforcer.manage(&container, Policy::default())?;
    let mut prober = scratch.prober(&container)?;
    let old = enforcer.epoch(absent(0))?;
    for index in 0..3 {
        enforcer.give(&container, absent(index), &granting(Access::READ))?;
    }
    assert_full(enforcer.epoch(absent(3)), "devices", 3);
    let old_rule = rule_of(&enforcer, absent(0))?;

    enforcer.revoke(container.id(), absent(0), Revocation::Forget)?;
    enforcer.give(&container, absent(3), &granting(Access::READ))?;
    assert_eq!(rule_of(&enforcer, absent(3))?.rule.epoch_slot, old_rule.rule.epoch_slot, "the place is the same");
    let answers = [0, 1, 2, 3].map(|index| prober.access(absent(index), Access::READ));
    assert_eq!(answers, [DENIED, ALLOWED, ALLOWED, ALLOWED]);

    // Neither an epoch that was read long ago nor a rule that came late from somewhere opens the old number.
    let outcome = enforcer.grant(&container, absent(0), old, &granting(Access::READ))?;
    assert!(matches!(outcome, GrantOutcome::Withheld(_)), "{outcome:?}");
    let key = RuleKey { cgroup: container.id(), device: absent(0) };
    RawRules::open(&scratch.config())?.set(key, old_rule.rule)?;
    assert_eq!(prober.access(absent(0), Access::READ), DENIED);
    assert!(!rule_of(&enforcer, absent(0))?.current);
    Ok(())
}

fn rule_of(enforcer: &KernelEnforcer, device: DeviceNumber) -> anyhow::Result<AppliedRule> {
    let rules = enforcer.read_back()?.rules;
    rules.into_iter().find(|rule| rule.key.device == device).ok_or_else(|| anyhow::anyhow!("there is no rule"))
}
