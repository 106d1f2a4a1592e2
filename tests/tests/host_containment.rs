//! Where a verdict holds: a container's own cgroup, those below, those that come later.

use anyhow::Context;
use devgate_abi::{MAX_LEVEL, MAX_LEVELS};
use devgate_tests::{prelude::*, prober::Attempt};

tests![
    a_child_cgroup_escapes_no_denial,
    a_task_that_walks_down_is_never_out_of_sight,
    a_nested_runtime_s_denial_stands_unless_the_subtree_was_granted,
    a_grant_does_not_go_along_with_a_task,
    a_cgroup_made_later_is_judged_from_its_first_moment,
    the_deepest_managed_cgroup_is_judged_and_a_deeper_one_is_refused,
    managed_cgroups_at_too_many_levels_are_refused,
    what_was_learned_is_void_when_another_cgroup_becomes_managed,
    a_cgroup_elsewhere_is_refused,
];

/// At every depth, whoever made the cgroup and whatever a nested runtime attached to it.
// Fault: agent-ebpf/src/device.rs
// - for _ in 0..MAX_LEVELS + 1 {
// + for _ in 0..0 {
// Fault: agent-ebpf/src/device.rs
// - let last = above == 0 || above == self.current;
// + let last = true;
fn a_child_cgroup_escapes_no_denial() -> TestResult {
    let scratch = Scratch::new("escape")?;
    let mut enforcer = scratch.enforcer()?;
    let outer = scratch.cgroup("pod")?.child("a")?.child("b")?;
    let container = outer.child("container")?;
    let mut prober = scratch.prober(&container)?;
    enforcer.manage(&container, Policy::DENY_OTHERS)?;
    let [denied, voided, permitted, other] = [absent(0), absent(1), absent(2), absent(3)];
    enforcer.revoke(container.id(), denied, Revocation::Deny)?;
    enforcer.give(&container, voided, &Grant { scope: Scope::Subtree, ..granting(Access::ALL) })?;
    enforcer.void(voided)?;
    enforcer.give(&container, permitted, &granting(Access::READ))?;

    let mut cgroup = container;
    for depth in 0..8 {
        let answers = [denied, voided, other].map(|device| prober.open(device, Access::READ));
        assert_eq!(answers, [DENIED; 3], "at depth {depth}");
        assert_eq!(prober.access(denied, Access::NONE), DENIED, "at depth {depth}");
        assert_eq!(prober.open(permitted, Access::READ), NO_DEVICE, "at depth {depth}");
        cgroup = cgroup.child("deeper")?;
        prober.move_to(&cgroup)?;
        let nested = allow_all(&cgroup)?;
        assert_eq!(prober.open(denied, Access::READ), DENIED, "a nested runtime allows it at depth {depth}");
        drop(nested);
    }
    Ok(())
}

// Fault: agent-ebpf/abi/src/decide.rs
// - if denies(rule.deny, access) {
// + if denies(rule.deny, access) && layer.own {
fn a_task_that_walks_down_is_never_out_of_sight() -> TestResult {
    let scratch = Scratch::new("walk")?;
    let mut enforcer = scratch.enforcer()?;
    let container = scratch.cgroup("container")?;
    let mut places = vec![container];
    for _ in 0..3 {
        places.push(places[places.len() - 1].child("deeper")?);
    }
    enforcer.manage(&places[0], Policy::default())?;
    enforcer.revoke(places[0].id(), FUSE, Revocation::Deny)?;
    let mut prober = scratch.prober(&places[0])?;
    let pid = prober.pid();
    let run = prober.run(FUSE, Attempt::Open(libc::O_RDONLY));
    for place in places.iter().cycle().take(40) {
        place.take(pid)?;
        run.go_on(2);
    }
    let counts = run.stop();
    assert_eq!(counts.of(DENIED), counts.total(), "{counts:?}");
    Ok(())
}

// Fault: agent/src/executors/enforcer/kernel.rs
// - if grant.scope == Scope::Subtree {
// + if grant.scope == Scope::Exact {
fn a_nested_runtime_s_denial_stands_unless_the_subtree_was_granted() -> TestResult {
    let scratch = Scratch::new("scope")?;
    let mut enforcer = scratch.enforcer()?;
    let container = scratch.cgroup("container")?;
    let nested = container.child("nested")?;
    let deeper = nested.child("deeper")?;
    enforcer.manage(&container, Policy::default())?;
    let _runtime = deny_all(&nested)?;
    let mut prober = scratch.prober(&container)?;
    let mut ask = |place: &TestCgroup| -> anyhow::Result<Answer> {
        prober.move_to(place)?;
        Ok(prober.open(FUSE, Access::READ))
    };
    enforcer.give(&container, FUSE, &granting(Access::READ))?;
    assert_eq!([ask(&container)?, ask(&nested)?, ask(&deeper)?], [ALLOWED, DENIED, DENIED]);
    enforcer.give(&container, FUSE, &Grant { scope: Scope::Subtree, ..granting(Access::READ) })?;
    assert_eq!([ask(&container)?, ask(&nested)?, ask(&deeper)?], [ALLOWED, ALLOWED, ALLOWED]);
    enforcer.revoke(container.id(), FUSE, Revocation::Forget)?;
    assert_eq!([ask(&container)?, ask(&nested)?, ask(&deeper)?], [ALLOWED, DENIED, DENIED]);
    Ok(())
}

// Fault: agent/src/executors/enforcer/kernel.rs
// - self.write_rule(RuleKey { cgroup: cgroup.id(), device }, rule)?;
// + let first = self.index.cgroups.keys().next().copied();
// + self.write_rule(RuleKey { cgroup: first.unwrap_or(cgroup.id()), device }, rule)?;
fn a_grant_does_not_go_along_with_a_task() -> TestResult {
    let scratch = Scratch::new("sibling")?;
    let mut enforcer = scratch.enforcer()?;
    // Their ids follow each other.
    let containers = ["first", "second", "third"].map(|name| scratch.cgroup(name));
    let mut runtimes = Vec::new();
    let mut prober = scratch.prober(scratch.ancestor())?;
    let containers = containers.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
    for container in &containers {
        runtimes.push(deny_all(container)?);
        enforcer.manage(container, Policy::default())?;
    }
    for granted in &containers {
        enforcer.give(granted, FUSE, &Grant { scope: Scope::Subtree, ..granting(Access::READ) })?;
        for container in &containers {
            prober.move_to(container)?;
            let expected = if container.id() == granted.id() { ALLOWED } else { DENIED };
            assert_eq!(prober.open(FUSE, Access::READ), expected);
        }
        enforcer.revoke(granted.id(), FUSE, Revocation::Forget)?;
    }
    Ok(())
}

// Fault: agent/src/executors/enforcer/kernel.rs
// - let strict = self.index.any_strict() || self.config.unclassified.is_about_others();
// + let strict = self.index.any_strict();
fn a_cgroup_made_later_is_judged_from_its_first_moment() -> TestResult {
    let scratch = Scratch::new("later")?;
    let mut enforcer = scratch.enforcer_with(|config| config.unclassified = Policy::DENY_OTHERS)?;
    let mut prober = scratch.prober(scratch.ancestor())?;
    assert_eq!(prober.open(FUSE, Access::READ), ALLOWED);
    let later = scratch.cgroup("later")?;
    prober.move_to(&later)?;
    assert_eq!(prober.open(FUSE, Access::READ), DENIED);
    // It gets its rule before its policy, and has both with the last call.
    enforcer.give(&later, FUSE, &granting(Access::READ))?;
    assert_eq!(prober.open(FUSE, Access::READ), DENIED);
    enforcer.manage(&later, Policy::DENY_OTHERS)?;
    assert_eq!(prober.open(FUSE, Access::READ), ALLOWED);
    assert_eq!(prober.open(FUSE, Access::WRITE), DENIED);
    enforcer.set_unclassified(Policy::default());
    let last = scratch.cgroup("last")?;
    prober.move_to(&last)?;
    assert_eq!(prober.open(FUSE, Access::WRITE), ALLOWED);
    Ok(())
}

// Fault: agent/src/executors/enforcer/kernel.rs
// - if cgroup.level() > MAX_LEVEL {
// + if cgroup.level() > MAX_LEVEL + 1 {
// Fault: agent/src/executors/enforcer/index.rs
// - let levels: BTreeSet<u32> = self.levels.keys().copied().chain(and).collect();
// + let levels: BTreeSet<u32> = self.levels.keys().map(|level| level % 31).chain(and).collect();
fn the_deepest_managed_cgroup_is_judged_and_a_deeper_one_is_refused() -> TestResult {
    let scratch = Scratch::new("deep")?;
    let mut enforcer = scratch.enforcer()?;
    let mut deepest = scratch.cgroup("1")?;
    while deepest.level() < MAX_LEVEL {
        deepest = deepest.child("deeper")?;
    }
    let too_deep = deepest.child("deeper")?;
    let mut prober = scratch.prober(&too_deep)?;
    assert!(matches!(enforcer.manage(&too_deep, Policy::DENY_OTHERS), Err(EnforcerError::TooDeep(_))));
    assert_eq!(prober.open(FUSE, Access::READ), ALLOWED);
    enforcer.manage(&deepest, Policy::DENY_OTHERS)?;
    assert_eq!(prober.open(FUSE, Access::READ), DENIED);
    prober.move_to(&deepest)?;
    assert_eq!(prober.open(FUSE, Access::READ), DENIED);
    let _runtime = deny_all(&deepest)?;
    enforcer.give(&deepest, FUSE, &granting(Access::READ))?;
    assert_eq!(prober.open(FUSE, Access::READ), ALLOWED);
    Ok(())
}

// Fault: agent-ebpf/abi/src/state.rs
// - return None;
// + break;
fn managed_cgroups_at_too_many_levels_are_refused() -> TestResult {
    let scratch = Scratch::new("levels")?;
    let mut enforcer = scratch.enforcer()?;
    let mut cgroups = vec![scratch.cgroup("1")?];
    for _ in 0..MAX_LEVELS {
        cgroups.push(cgroups[cgroups.len() - 1].child("deeper")?);
    }
    let (last, others) = cgroups.split_last().context("there are some")?;
    for cgroup in others {
        enforcer.manage(cgroup, Policy::default())?;
    }
    assert!(matches!(enforcer.manage(last, Policy::DENY_OTHERS), Err(EnforcerError::TooManyLevels(_))));
    let mut prober = scratch.prober(last)?;
    // All of the others are judged, wherever they are.
    for cgroup in others {
        assert_eq!(prober.open(FUSE, Access::READ), ALLOWED);
        enforcer.manage(cgroup, Policy::DENY_OTHERS)?;
        assert_eq!(prober.open(FUSE, Access::READ), DENIED);
        enforcer.manage(cgroup, Policy::default())?;
    }
    enforcer.forget(others[0].id())?;
    enforcer.manage(last, Policy::DENY_OTHERS)?;
    assert_eq!(prober.open(FUSE, Access::READ), DENIED);
    Ok(())
}

/// The kernel program remembers above which cgroups there is no managed one.
// Fault: agent/src/executors/enforcer/kernel.rs
// - if known.is_none() {
// - self.begin_generation();
// - }
// + let _ = known;
// Fault: agent-ebpf/src/device.rs
// - if way.is_short()
// - && let Some(answer) = answer_at_once(ctx, state, flags, &question, current, own)
// + if let Some(answer) = answer_at_once(ctx, state, flags, &question, current, own)
fn what_was_learned_is_void_when_another_cgroup_becomes_managed() -> TestResult {
    let scratch = Scratch::new("learned")?;
    let mut enforcer = scratch.enforcer()?;
    let outer = scratch.cgroup("outer")?;
    let inner = outer.child("inner")?;
    let other = scratch.cgroup("other")?;
    // So that there is something to look for at every level.
    enforcer.manage(&other, Policy::DENY_OTHERS)?;
    let below = other.child("below")?;
    enforcer.manage(&below, Policy::DENY_OTHERS)?;
    let mut prober = scratch.prober(&inner)?;
    for managed in [false, true] {
        if managed {
            enforcer.manage(&inner, Policy::default())?;
        }
        for _ in 0..3 {
            assert_eq!(prober.open(FUSE, Access::READ), ALLOWED);
        }
        enforcer.manage(&outer, Policy::DENY_OTHERS)?;
        for _ in 0..3 {
            assert_eq!(prober.open(FUSE, Access::READ), DENIED);
        }
        enforcer.forget(outer.id())?;
        for _ in 0..3 {
            assert_eq!(prober.open(FUSE, Access::READ), ALLOWED);
        }
    }
    Ok(())
}

// Fault: agent/src/executors/enforcer/kernel.rs
// - fn manage(&mut self, cgroup: &Cgroup, policy: Policy) -> Result<(), EnforcerError> {
// - if !cgroup.is_within(&self.ancestor) {
// + fn manage(&mut self, cgroup: &Cgroup, policy: Policy) -> Result<(), EnforcerError> {
// + if cgroup.level() == 0 {
fn a_cgroup_elsewhere_is_refused() -> TestResult {
    let (scratch, other) = (Scratch::new("here")?, Scratch::new("elsewhere")?);
    let mut enforcer = scratch.enforcer()?;
    let elsewhere = other.cgroup("container")?;
    let error = enforcer.manage(&elsewhere, Policy::default()).expect_err("it is not below the ancestor");
    assert!(matches!(error, EnforcerError::NotBelowAncestor { .. }), "{error}");
    let error = enforcer.give(&elsewhere, FUSE, &granting(Access::READ)).expect_err("it is not below the ancestor");
    assert!(matches!(error, EnforcerError::NotBelowAncestor { .. }), "{error}");
    assert_eq!(enforcer.read_back()?.rules, vec![]);
    Ok(())
}
