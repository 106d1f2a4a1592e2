//! Verdicts as the design says them, written down by hand: the decision function itself is not asked here.

use anyhow::{Context, Result, bail};
use devgate_tests::{prelude::*, prober::Attempt};

tests![
    the_important_verdicts_are_as_written_down,
    the_verdicts_in_nested_containers_are_as_written_down,
    an_expired_grant_ends_by_itself,
    an_agent_starts_anew_where_unclassified_cgroups_are_denied,
    a_policy_changes_with_the_next_call,
    a_cgroup_that_is_forgotten_has_the_runtime_s_verdict_again,
];

/// Policy: `-` for the runtime's word, `others` for denied, `mknod` for their nodes too, `audit-` before it for audited.
/// Rule: `+` and the accesses that are granted, `*` behind for the subtree; `!` for denied; `void` and `ended` for a grant
/// of everything. Task: in the container's own cgroup or one below. Asks: `f` for `access(F_OK)`.
const TABLE: &str = "
    policy        rule   task   runtime  asks  verdict

    -             -      own    allows   rw    allowed
    -             -      own    allows   f     allowed
    -             -      own    allows   m     allowed
    -             -      own    denies   rw    denied
    -             -      own    denies   f     denied
    -             -      own    denies   m     denied
    -             -      below  denies   r     denied

    -             +rw    own    denies   r     allowed
    -             +rw    own    denies   w     allowed
    -             +rw    own    denies   rw    allowed
    -             +rw    own    denies   f     allowed
    -             +rw    own    denies   m     denied
    -             +rw    own    allows   rw    allowed
    -             +rw    own    allows   m     allowed
    -             +r     own    denies   r     allowed
    -             +r     own    denies   w     denied
    -             +r     own    denies   rw    denied
    -             +r     own    allows   rw    allowed
    -             +m     own    denies   m     allowed
    -             +m     own    denies   f     allowed
    -             +m     own    denies   r     denied
    -             +rwm   own    denies   m     allowed

    -             +rw    below  denies   r     denied
    -             +rw    below  denies   f     denied
    -             +rw    below  allows   rw    allowed
    -             +rw*   below  denies   rw    allowed
    -             +rw*   below  denies   f     allowed
    -             +rw*   below  denies   m     denied
    -             +rw*   own    denies   rw    allowed

    -             !      own    allows   r     denied
    -             !      own    allows   f     denied
    -             !      own    allows   m     denied
    -             !      own    denies   r     denied
    -             !      below  allows   w     denied
    -             !      below  allows   f     denied

    -             void   own    denies   rw    denied
    -             void   own    allows   rw    denied
    -             void   own    allows   f     denied
    -             void   below  allows   r     denied
    -             ended  own    denies   rw    denied
    -             ended  own    denies   f     denied
    -             ended  own    allows   rw    allowed

    others        -      own    allows   r     denied
    others        -      own    allows   w     denied
    others        -      own    allows   f     allowed
    others        -      own    allows   m     allowed
    others        -      own    denies   m     denied
    others        -      below  allows   rw    denied
    others        +r     own    allows   r     allowed
    others        +r     own    allows   rw    denied
    others        +r     own    denies   r     allowed
    others        +r     below  allows   r     allowed
    others        +r     below  denies   r     denied
    others        +rw    own    allows   m     allowed
    others        ended  own    allows   r     denied
    others        void   own    allows   f     denied
    mknod         -      own    allows   m     denied
    mknod         -      own    allows   f     allowed
    mknod         -      below  allows   m     denied
    mknod         +rw    own    allows   m     denied
    mknod         +rwm   own    allows   m     allowed

    audit--       +rw    own    denies   rw    denied
    audit--       +rw    own    allows   rw    allowed
    audit--       !      own    allows   rw    allowed
    audit--       void   own    allows   rw    allowed
    audit-others  -      own    allows   rw    allowed
    audit-mknod   -      own    allows   m     allowed
    audit-others  -      own    denies   rw    denied
";

struct Row {
    policy: Policy,
    rule: &'static str,
    below: bool,
    denies: bool,
    asks: Access,
    verdict: Answer,
}

impl Row {
    fn parse(line: &'static str) -> Result<Self> {
        let words: Vec<_> = line.split_whitespace().collect();
        let [policy, rule, task, runtime, asks, verdict] = words[..] else { bail!("a row has six words: {line}") };
        Ok(Self {
            policy: parse_policy(policy)?,
            rule,
            below: one_of(task, "below", "own")?,
            denies: one_of(runtime, "denies", "allows")?,
            asks: if asks == "f" { Access::NONE } else { asks.parse()? },
            verdict: if one_of(verdict, "denied", "allowed")? { DENIED } else { ALLOWED },
        })
    }
}

fn one_of(word: &str, yes: &str, no: &str) -> Result<bool> {
    if word != yes && word != no {
        bail!("{word} is neither {yes} nor {no}");
    }
    Ok(word == yes)
}

fn parse_policy(word: &str) -> Result<Policy> {
    let (audit, word) =
        word.strip_prefix("audit-").map_or((Policy::default(), word), |rest| (Policy::AUDIT_ONLY, rest));
    let policy = match word {
        "-" => Policy::default(),
        "others" => Policy::DENY_OTHERS,
        "mknod" => Policy::DENY_OTHERS.union(Policy::DENY_MKNOD),
        _ => bail!("{word} is no policy"),
    };
    Ok(policy.union(audit))
}

fn apply(enforcer: &mut KernelEnforcer, container: &TestCgroup, device: DeviceNumber, rule: &str) -> Result<()> {
    let all = granting(Access::ALL);
    match rule {
        "-" => {}
        "!" => enforcer.revoke(container.id(), device, Revocation::Deny)?,
        "void" => {
            enforcer.give(container, device, &all)?;
            enforcer.void(device)?;
        }
        "ended" => drop(enforcer.give(container, device, &Grant { expires_at: Some(1), ..all })?),
        _ => {
            let accesses = rule.strip_prefix('+').context("a rule begins with a plus")?;
            let scope = if accesses.ends_with('*') { Scope::Subtree } else { Scope::Exact };
            let access = accesses.trim_end_matches('*').parse()?;
            enforcer.give(container, device, &Grant { scope, ..granting(access) })?;
        }
    }
    Ok(())
}

// Fault: agent-ebpf/src/device.rs
// - let policy = Policy(load(&own.policy) as u32);
// + let policy = Policy(load(&own.policy) as u32).without(Policy::DENY_MKNOD);
// Fault: agent-ebpf/abi/src/decide.rs
// - if denies_other(layer.policy, access) {
// + if denies_other(layer.policy, access) && layer.own {
// Fault: agent-ebpf/abi/src/decide.rs
// - if !expired && !rule.allow.is_empty() && rule.allow.contains(access) {
// + if !expired && !rule.allow.is_empty() && (rule.allow.intersects(access) || access.is_empty()) {
// Fault: agent-ebpf/abi/src/decide.rs
// - deny.intersects(access) || (access.is_empty() && deny.contains(Access::ALL))
// + deny.intersects(access)
fn the_important_verdicts_are_as_written_down() -> TestResult {
    let scratch = Scratch::new("table")?;
    let mut enforcer = scratch.enforcer()?;
    let mut prober = scratch.prober(scratch.ancestor())?;
    let mut wrong = Vec::new();
    let rows = TABLE.lines().skip(2).map(str::trim).filter(|line| !line.is_empty());
    for (index, line) in rows.enumerate() {
        let row = Row::parse(line)?;
        let device = absent(index as u32);
        let container = scratch.cgroup(&format!("container-{index}"))?;
        let below = container.child("below")?;
        enforcer.manage(&container, row.policy)?;
        apply(&mut enforcer, &container, device, row.rule)?;
        let _runtime = if row.denies { deny_all(&container)? } else { allow_all(&container)? };
        prober.move_to(if row.below { &below } else { &container })?;
        let mut answers = Vec::new();
        if row.asks == Access::MKNOD {
            answers.push(prober.mknod(device));
        } else {
            answers.push(prober.access(device, row.asks));
        }
        if row.asks.intersects(Access::READ_WRITE) {
            // No driver has the number; who gets so far was allowed.
            let answer = prober.open(device, row.asks);
            answers.push(if answer == NO_DEVICE { ALLOWED } else { answer });
        }
        if answers.iter().any(|&answer| answer != row.verdict) {
            wrong.push(format!("{line}: {answers:?}"));
        }
        enforcer.forget(container.id())?;
    }
    assert!(wrong.is_empty(), "wrong verdicts:\n{}", wrong.join("\n"));
    Ok(())
}

/// A container in a container: first what holds in the outer one, then in the inner, where the task is.
const NESTED: &str = "
    outer             inner        runtime  asks  verdict

    -             -      -       +rw    denies   rw    allowed
    -             -      others  +r     allows   r     allowed
    -             -      others  +r     allows   rw    denied
    -             +rw    -       -      denies   rw    denied
    -             +rw*   -       -      denies   rw    allowed
    -             +rw*   -       !      denies   rw    denied
    -             +rw*   -       void   allows   rw    denied
    -             !      -       +rw    denies   r     denied
    -             !      -       +rw    allows   f     denied
    -             void   -       +rwm   denies   m     denied
    -             void   -       +rw    allows   r     denied

    others        -      -       +rw    allows   r     denied
    others        -      -       +rw    denies   r     denied
    others        -      -       +rw    denies   f     allowed
    others        +r     -       +rw    allows   rw    denied
    others        +r     -       +rw    denies   rw    denied
    others        +r     -       +rw    denies   r     allowed
    others        +rw    -       +rw    denies   rw    allowed
    others        ended  -       +rw    denies   r     denied
    mknod         -      -       +rwm   denies   m     denied
    mknod         +rwm   -       +rwm   denies   m     allowed

    audit-others  -      -       +rw    denies   r     allowed
    audit--       !      -       +rw    denies   r     allowed
    audit--       +rw*   -       -      denies   r     denied
    -             !      audit-- +rw    denies   r     denied
    others        -      audit-- +rw    allows   r     denied
    -             +rw*   audit-- !      denies   r     allowed
";

// Fault: agent-ebpf/abi/src/decide.rs
// - let carried_out = u64::from(action != 0 && !policy.contains(Policy::AUDIT_ONLY));
// + let carried_out = u64::from(action != 0);
// Fault: agent-ebpf/abi/src/decide.rs
// - let decisive = new > old || new + old == 2;
// + let decisive = new >= old || action == 1;
// Fault: agent-ebpf/abi/src/decide.rs
// - (Stand::Denies(reason), _) => Decision::deny(reason),
// + (Stand::Denies(reason), _) => if prior == 0 { Decision::deny(reason) } else { Decision::keep(reason) },
fn the_verdicts_in_nested_containers_are_as_written_down() -> TestResult {
    let scratch = Scratch::new("nested-table")?;
    let mut enforcer = scratch.enforcer()?;
    let mut prober = scratch.prober(scratch.ancestor())?;
    let mut wrong = Vec::new();
    let rows = NESTED.lines().skip(2).map(str::trim).filter(|line| !line.is_empty());
    for (index, line) in rows.enumerate() {
        let words: Vec<_> = line.split_whitespace().collect();
        let [outer_policy, outer_rule, inner_policy, inner_rule, runtime, asks, verdict] = words[..] else {
            bail!("a row has seven words: {line}");
        };
        let device = absent(index as u32);
        let outer = scratch.cgroup(&format!("outer-{index}"))?;
        let inner = outer.child("between")?.child("inner")?;
        for (cgroup, policy, rule) in [(&outer, outer_policy, outer_rule), (&inner, inner_policy, inner_rule)] {
            enforcer.manage(cgroup, parse_policy(policy)?)?;
            // To void a number voids the rules of all: one that is voided comes first.
            if rule == "void" {
                apply(&mut enforcer, cgroup, device, rule)?;
            }
        }
        for (cgroup, rule) in [(&outer, outer_rule), (&inner, inner_rule)] {
            if rule != "void" {
                apply(&mut enforcer, cgroup, device, rule)?;
            }
        }
        let _runtime = if one_of(runtime, "denies", "allows")? { deny_all(&inner)? } else { allow_all(&inner)? };
        prober.move_to(&inner)?;
        let answer = match asks {
            "m" => prober.mknod(device),
            "f" => prober.access(device, Access::NONE),
            _ => prober.access(device, asks.parse()?),
        };
        if answer != if one_of(verdict, "denied", "allowed")? { DENIED } else { ALLOWED } {
            wrong.push(format!("{line}: {answer:?}"));
        }
        enforcer.forget(inner.id())?;
        enforcer.forget(outer.id())?;
    }
    assert!(wrong.is_empty(), "wrong verdicts:\n{}", wrong.join("\n"));
    Ok(())
}

// Fault: agent/src/executors/enforcer/kernel.rs
// - expires_at: grant.expires_at.unwrap_or(0),
// + expires_at: 0,
fn an_expired_grant_ends_by_itself() -> TestResult {
    let scratch = Scratch::new("expiry")?;
    let mut enforcer = scratch.enforcer()?;
    let container = scratch.cgroup("container")?;
    let _runtime = deny_all(&container)?;
    enforcer.manage(&container, Policy::default())?;
    let mut prober = scratch.prober(&container)?;
    let end = boot_time() + 300_000_000;
    enforcer.give(&container, ABSENT, &Grant { expires_at: Some(end), ..granting(Access::READ) })?;
    let run = prober.run(ABSENT, Attempt::Access(libc::R_OK));
    run.go_on(2);
    assert!(boot_time() >= end || run.counts().of(DENIED) == 0, "the grant holds until its end");
    wait_until("the grant has ended", || run.counts().of(DENIED) > 0);
    assert!(boot_time() >= end, "not before its end");
    let allowed = run.counts().of(ALLOWED);
    assert!(allowed > 0);
    run.go_on(1000);
    assert_eq!(run.stop().of(ALLOWED), allowed);
    Ok(())
}

/// The self-test's cgroup is unclassified too, and the earlier agent's program judges it after the test's own.
// Fault: agent/src/executors/enforcer/self_test.rs
// - ask(inner.as_fd(), node.folder(), node.name(), Question::Access(libc::F_OK))
// + ask(inner.as_fd(), node.folder(), node.name(), Question::Access(libc::R_OK))
fn an_agent_starts_anew_where_unclassified_cgroups_are_denied() -> TestResult {
    let scratch = Scratch::new("anew")?;
    let strict = |config: &mut EnforcerConfig| {
        config.unclassified = Policy::DENY_OTHERS.union(Policy::DENY_MKNOD);
    };
    let mut prober = scratch.prober(&scratch.cgroup("unclassified")?)?;
    for _ in 0..2 {
        let enforcer = scratch.enforcer_with(strict)?;
        assert_eq!(prober.open(ABSENT, Access::READ), DENIED);
        drop(enforcer);
        assert_eq!(prober.open(ABSENT, Access::READ), DENIED);
    }
    Ok(())
}

// Fault: agent/src/executors/enforcer/index.rs
// - self.count_policy(old.policy, -1);
// + self.count_policy(if old.slot > 0 { entry.policy } else { old.policy }, -1);
// Fault: agent/src/executors/enforcer/kernel.rs
// - let result = self.maps.cgroups.set(cgroup.id(), entry);
// + let result = if known.is_some() { Ok(true) } else { self.maps.cgroups.set(cgroup.id(), entry) };
fn a_policy_changes_with_the_next_call() -> TestResult {
    let scratch = Scratch::new("policy")?;
    let mut enforcer = scratch.enforcer()?;
    let (first, second) = (scratch.cgroup("first")?, scratch.cgroup("second")?);
    let mut probers = [scratch.prober(&first)?, scratch.prober(&second)?];
    let mut ask = || {
        let [first, second] = &mut probers;
        [first.access(ABSENT, Access::READ), second.access(ABSENT, Access::READ)]
    };
    enforcer.manage(&first, Policy::default())?;
    enforcer.manage(&second, Policy::default())?;
    assert_eq!(ask(), [ALLOWED, ALLOWED]);
    enforcer.manage(&second, Policy::DENY_OTHERS)?;
    assert_eq!(ask(), [ALLOWED, DENIED]);
    enforcer.manage(&first, Policy::DENY_OTHERS)?;
    assert_eq!(ask(), [DENIED, DENIED]);
    enforcer.manage(&second, Policy::AUDIT_ONLY)?;
    assert_eq!(ask(), [DENIED, ALLOWED]);
    enforcer.manage(&first, Policy::default())?;
    assert_eq!(ask(), [ALLOWED, ALLOWED]);
    Ok(())
}

// Fault: agent/src/executors/enforcer/kernel.rs
// - self.maps.cgroups.remove(cgroup)?;
// + drop(self.maps.cgroups.entries()?);
fn a_cgroup_that_is_forgotten_has_the_runtime_s_verdict_again() -> TestResult {
    let scratch = Scratch::new("forget")?;
    let mut enforcer = scratch.enforcer()?;
    let container = scratch.cgroup("container")?;
    let mut prober = scratch.prober(&container)?;
    enforcer.manage(&container, Policy::DENY_OTHERS)?;
    enforcer.revoke(container.id(), FUSE, Revocation::Deny)?;
    assert_eq!([prober.access(FUSE, Access::NONE), prober.access(ABSENT, Access::READ)], [DENIED, DENIED]);
    let counters = enforcer.forget(container.id())?;
    assert_eq!(counters.denied, 2);
    assert_eq!([prober.access(FUSE, Access::NONE), prober.access(ABSENT, Access::READ)], [ALLOWED, ALLOWED]);
    let left = enforcer.read_back()?;
    assert_eq!((left.cgroups, left.rules), (vec![], vec![]));
    Ok(())
}
