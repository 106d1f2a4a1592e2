//! The kernel program and the decision function, asked the same questions in real cgroups.

#[path = "host_equivalence/space.rs"]
mod space;
#[path = "host_equivalence/survey.rs"]
mod survey;

use anyhow::{Context, Result};
use devgate::executors::enforcer::{Cgroup, RecordRate, Unguarded, status};
use devgate_abi::{Guard, Rule, RuleKey, RuleView};
use devgate_tests::{prelude::*, prober::QUESTIONS, raw::RawRules};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use space::{Level, PRIORS, policies, rules};
use survey::{Comparison, Situation, leave};

tests![
    kernel_and_function_agree_on_every_rule,
    kernel_and_function_agree_where_nothing_is_recorded,
    kernel_and_function_agree_on_nested_containers,
    kernel_and_function_agree_on_cgroups_that_nobody_manages,
];

const CHARS: DeviceNumber = absent(0);
const BLOCKS: DeviceNumber = DeviceNumber::block(4094, 0);

/// A managed cgroup, one below it, and its policy.
struct Container {
    own: TestCgroup,
    below: TestCgroup,
    policy: Policy,
}

/// A container of each policy.
fn containers(scratch: &Scratch, enforcer: &mut KernelEnforcer) -> Result<Vec<Container>> {
    policies()
        .into_iter()
        .map(|policy| {
            let own = scratch.cgroup(&format!("policy-{}", policy.0))?;
            let below = own.child("below")?;
            enforcer.manage(&own, policy)?;
            Ok(Container { own, below, policy })
        })
        .collect()
}

/// A rule with the epoch of a number. It is that of another minor number than those asked about, so that the enforcer
/// knows of a rule with their majors.
fn template(enforcer: &mut KernelEnforcer, cgroup: &Cgroup) -> Result<Rule> {
    const MINOR: u32 = DeviceNumber::MAX_MINOR;
    for device in [DeviceNumber::char(CHARS.major(), MINOR), DeviceNumber::block(BLOCKS.major(), MINOR)] {
        enforcer.give(cgroup, device, &granting(Access::READ))?;
    }
    let applied = enforcer.read_back()?;
    let rule = applied.rules.iter().find(|rule| !rule.key.device.is_block()).context("the rule is there")?.rule;
    Ok(rule)
}

/// Gives the devices from `first` on one rule each.
fn write(map: &RawRules, cgroup: &Cgroup, first: DeviceNumber, rules: &[Option<RuleView>]) -> Result<()> {
    let devices = space::requests(first, rules.len() as u32).step_by(QUESTIONS.len());
    for (index, request) in devices {
        if let Some(view) = &rules[index] {
            map.set(RuleKey { cgroup: cgroup.id(), device: request.device }, view.rule)?;
        }
    }
    Ok(())
}

/// Everything is recorded, without limit.
fn all_recorded(config: &mut EnforcerConfig) {
    config.audit_everything = true;
    config.record_rate = RecordRate { per_second: 0, burst: 1 };
    config.limits.audit_bytes = 1 << 22;
}

// Fault: agent-ebpf/src/device.rs
// - let layer = Layer { policy, own, rule: exists.then_some(RuleView { rule, current, expired }) };
// + let layer = Layer { policy, own: true, rule: exists.then_some(RuleView { rule, current, expired }) };
// Fault: agent-ebpf/src/device.rs
// - if rule.epoch_slot == EPOCH_SLOT_NONE {
// + if rule.epoch_slot > 1 << 20 {
// Fault: agent-ebpf/src/device.rs
// - EPOCHS.get(rule.epoch_slot).is_some_and(|epoch| load(epoch) == rule.epoch)
// + EPOCHS.get(rule.epoch_slot).is_some_and(|epoch| load(epoch) >= rule.epoch)
// Fault: agent-ebpf/src/device.rs
// - rule.expires_at != 0 && unsafe { bpf_ktime_get_boot_ns() } >= rule.expires_at
// + rule.expires_at != 0
// Fault: agent-ebpf/src/device.rs
// - match walk.tally.action() {
// + match walk.tally.decision().action() {
fn kernel_and_function_agree_on_every_rule() -> TestResult {
    let scratch = Scratch::new("every-rule")?;
    let mut enforcer = scratch.enforcer_with(all_recorded)?;
    let mut reader = enforcer.audit_reader()?;
    let containers = containers(&scratch, &mut enforcer)?;
    let rules = rules(template(&mut enforcer, &containers[0].own)?);
    let map = RawRules::open(&scratch.config())?;
    for container in &containers {
        write(&map, &container.own, CHARS, &rules)?;
        write(&map, &container.own, BLOCKS, &rules)?;
    }
    let mut prober = scratch.prober(&containers[0].own)?;
    let mut comparison = Comparison::default();
    let mut compare = |guard, reader: &mut _, kinds: &[DeviceNumber], prober: &mut Prober| -> Result<()> {
        for container in &containers {
            for prior in PRIORS {
                let _runtime = leave(prior, &container.own)?;
                for (own, cgroup) in [(true, &container.own), (false, &container.below)] {
                    prober.move_to(cgroup)?;
                    let (id, policy) = (container.own.id(), container.policy);
                    let levels = |index: usize| vec![Level { id, policy, own, rule: rules[index] }];
                    let place = if own { "own" } else { "below" };
                    let situation = Situation { prior, outside: Policy::default(), guard, levels: &levels, place };
                    for &first in kinds {
                        comparison.survey(prober, Some(reader), first, rules.len() as u32, &situation);
                    }
                }
            }
        }
        Ok(())
    };
    compare(Guard::Trusted, &mut reader, &[CHARS, BLOCKS], &mut prober)?;

    drop(enforcer);
    let enforcer = scratch.enforcer_with(|config| {
        all_recorded(config);
        config.unguarded = Unguarded::Deny;
    })?;
    // The self-test of the second enforcer happened below the first one's program.
    reader.drain(|_| {});
    compare(Guard::Trusted, &mut reader, &[CHARS], &mut prober)?;

    // The agent and its guard are gone, and with them the array that proves that a guard lives.
    let guards = status(&scratch.config())?.guards;
    drop(enforcer);
    let guard = Pid::from_raw(guards.uevent_process.context("there is a guard")?).context("it has a number")?;
    kill_process(guard, Signal::KILL)?;
    waitpid(Some(guard), WaitOptions::empty())?;
    let mut proof = Guard::Trusted;
    if guards.unguarded == Unguarded::Deny {
        proof = Guard::Unproven;
        let hotplug = Some(devgate_abi::RuleFlags::HOTPLUG);
        let granted = |view: &RuleView| view.rule.allow == Access::ALL && view.rule.deny.is_empty() && view.current;
        let index = rules
            .iter()
            .position(|rule| rule.as_ref().is_some_and(|view| granted(view) && Some(view.rule.flags) == hotplug))
            .context("a granted device can be unplugged")?;
        prober.move_to(&containers[0].own)?;
        wait_until("the array of the dead guard is empty", || {
            prober.access(absent(index as u32), Access::READ) == DENIED
        });
        reader.drain(|_| {});
    }
    compare(proof, &mut reader, &[CHARS], &mut prober)?;
    comparison.finish(1_000_000);
    Ok(())
}

/// Without records the short cut is taken for majors that no rule names; verdicts are those of the function all the
/// same.
// Fault: agent-ebpf/src/device.rs
// - if !named && !flags.intersects(WATCHED.union(StateFlags::STRICT)) {
// + if !named && !flags.intersects(WATCHED) {
// Fault: agent-ebpf/src/device.rs
// - if conclude(stand, prior, &layer).action() as u8 == Action::Grant as u8 {
// + if conclude(stand, prior, &layer).action() as u8 == Action::Grant as u8 || prior == -13 {
// Fault: agent-ebpf/src/device.rs
// - if !policy.is_plain() || flags.intersects(StateFlags::AUDIT_ALL) {
// + if flags.intersects(StateFlags::AUDIT_ALL) {
// Fault: agent/src/executors/enforcer/kernel.rs
// - self.maps.state().set_major(key.device, true);
// + self.maps.state().set_major(DeviceNumber::char(1, 0), true);
fn kernel_and_function_agree_where_nothing_is_recorded() -> TestResult {
    let scratch = Scratch::new("unrecorded")?;
    let mut enforcer = scratch.enforcer()?;
    let mut comparison = Comparison::default();
    let mut prober = scratch.prober(scratch.ancestor())?;
    let own = scratch.cgroup("container")?;
    let below = own.child("below")?;
    enforcer.manage(&own, Policy::default())?;
    let rules = rules(template(&mut enforcer, &own)?);
    let map = RawRules::open(&scratch.config())?;
    write(&map, &own, CHARS, &rules)?;
    let none = [None; 16];
    let places: [(DeviceNumber, &[Option<RuleView>]); 4] = [
        (CHARS, &rules),
        (DeviceNumber::char(4000, 0), &none),
        (DeviceNumber::block(4000, 0), &none),
        // Memory devices, the standard ones and others.
        (DeviceNumber::char(1, 0), &none),
    ];
    for policy in policies() {
        enforcer.manage(&own, policy)?;
        for prior in PRIORS {
            let _runtime = leave(prior, &own)?;
            for (is_own, cgroup) in [(true, &own), (false, &below)] {
                prober.move_to(cgroup)?;
                for (first, rules) in places {
                    let levels = |index: usize| vec![Level { id: own.id(), policy, own: is_own, rule: rules[index] }];
                    let guard = Guard::Trusted;
                    let place = if is_own { "own" } else { "below" };
                    let situation = Situation { prior, outside: Policy::default(), guard, levels: &levels, place };
                    comparison.survey(&mut prober, None, first, rules.len() as u32, &situation);
                }
            }
        }
    }
    comparison.finish(200_000);
    Ok(())
}

/// Every pair of rules, of which no two do the same, in an outer and an inner container.
// Fault: agent-ebpf/src/device.rs
// - let last = above == 0 || above == self.current;
// + let last = above == 0 || above == self.current || find::managed(state, above).is_none();
// Fault: agent-ebpf/src/device.rs
// - if decisive {
// + if decisive && last {
fn kernel_and_function_agree_on_nested_containers() -> TestResult {
    let scratch = Scratch::new("nested")?;
    let mut enforcer = scratch.enforcer_with(all_recorded)?;
    let mut reader = enforcer.audit_reader()?;
    let outer = scratch.cgroup("outer")?;
    let inner = outer.child("between")?.child("inner")?;
    // So that the level between is one at which there are managed cgroups.
    let beside = outer.child("beside")?;
    enforcer.manage(&beside, Policy::DENY_OTHERS)?;
    let below = inner.child("below")?;
    enforcer.manage(&outer, Policy::default())?;
    let kinds = few(&rules(template(&mut enforcer, &outer)?));
    let count = kinds.len() * kinds.len();
    let map = RawRules::open(&scratch.config())?;
    let pairs: Vec<_> = (0..count).map(|index| (kinds[index / kinds.len()], kinds[index % kinds.len()])).collect();
    let (outer_rules, inner_rules): (Vec<_>, Vec<_>) = pairs.iter().copied().unzip();
    write(&map, &outer, CHARS, &outer_rules)?;
    write(&map, &inner, CHARS, &inner_rules)?;
    let mut prober = scratch.prober(&inner)?;
    let mut comparison = Comparison::default();
    for outer_policy in policies() {
        enforcer.manage(&outer, outer_policy)?;
        for inner_policy in policies() {
            enforcer.manage(&inner, inner_policy)?;
            for prior in PRIORS {
                let _runtime = leave(prior, &inner)?;
                for (own, cgroup) in [(true, &inner), (false, &below)] {
                    prober.move_to(cgroup)?;
                    let levels = |index: usize| {
                        let (outer_rule, inner_rule) = pairs[index];
                        let level = |id, policy, own, rule| Level { id, policy, own, rule };
                        vec![
                            level(outer.id(), outer_policy, false, outer_rule),
                            level(inner.id(), inner_policy, own, inner_rule),
                        ]
                    };
                    let guard = Guard::Trusted;
                    let situation =
                        Situation { prior, outside: Policy::default(), guard, levels: &levels, place: "nested" };
                    comparison.survey(&mut prober, Some(&mut reader), CHARS, count as u32, &situation);
                }
            }
        }
    }
    comparison.finish(100_000);
    Ok(())
}

/// Some rules of which no two do the same, and none.
fn few(rules: &[Option<RuleView>]) -> Vec<Option<RuleView>> {
    let ask = |view: &RuleView| {
        let level = |own| Level { id: 1, policy: Policy::default(), own, rule: Some(*view) };
        [true, false].map(|own| {
            space::requests(CHARS, 1)
                .map(|(_, request)| {
                    let decided = PRIORS.map(|prior| {
                        space::decide(request, prior, Policy::default(), &[level(own)], Guard::Trusted).reason
                    });
                    format!("{decided:?}")
                })
                .collect::<Vec<_>>()
        })
    };
    let mut seen = Vec::new();
    let mut few = vec![None];
    for view in rules.iter().flatten() {
        let plain = [Access::NONE, Access::READ, Access::READ_WRITE, Access::ALL].contains(&view.rule.allow);
        let answers = ask(view);
        if plain && !seen.contains(&answers) {
            seen.push(answers);
            few.push(Some(*view));
        }
    }
    few
}

/// In the ancestor itself the policy of unmanaged cgroups does not hold: it is where the host's own services are.
// Fault: agent/src/executors/enforcer/kernel.rs
// - state.ancestor.store(self.ancestor.id(), Relaxed);
// + state.ancestor.store(0, Relaxed);
// Fault: agent-ebpf/src/device.rs
// - let (container, rule_id, generation) = (hide.word(0), hide.word(0), hide.word(0) as u32);
// + let (container, rule_id, generation) = (current, hide.word(0), hide.word(0) as u32);
fn kernel_and_function_agree_on_cgroups_that_nobody_manages() -> TestResult {
    let scratch = Scratch::new("unmanaged")?;
    let mut enforcer = scratch.enforcer_with(all_recorded)?;
    let mut reader = enforcer.audit_reader()?;
    let container = scratch.cgroup("managed")?;
    enforcer.manage(&container, Policy::default())?;
    enforcer.give(&container, CHARS, &granting(Access::READ))?;
    let nobody_s = scratch.cgroup("unmanaged")?;
    let below = nobody_s.child("below")?;
    let mut prober = scratch.prober(&nobody_s)?;
    let mut comparison = Comparison::default();
    for policy in policies() {
        enforcer.set_unclassified(policy);
        for prior in PRIORS {
            let _runtime = leave(prior, &nobody_s)?;
            let mut places = vec![(policy, &nobody_s, "unmanaged"), (policy, &below, "below unmanaged")];
            if prior == 0 {
                places.push((Policy::default(), scratch.ancestor(), "ancestor"));
            }
            for (outside, cgroup, place) in places {
                prober.move_to(cgroup)?;
                let levels = |_: usize| vec![];
                let situation = Situation { prior, outside, guard: Guard::Trusted, levels: &levels, place };
                for first in [CHARS, DeviceNumber::block(4000, 7)] {
                    comparison.survey(&mut prober, Some(&mut reader), first, 8, &situation);
                }
            }
        }
    }
    comparison.finish(3_000);
    Ok(())
}
