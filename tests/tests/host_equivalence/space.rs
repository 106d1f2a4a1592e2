//! All that can be asked, and what the decision function says to it.

use devgate_abi::{
    Access, Action, DeviceNumber, EPOCH_SLOT_NONE, Guard, Layer, Policy, Reason, Request, Rule, RuleFlags, RuleView,
    Tally, judge, judge_unmanaged,
};
use devgate_tests::prober::QUESTIONS;

/// The verdicts that programs below ours can leave: allowed, denied, and an error that is no device program's denial.
pub(crate) const PRIORS: [i32; 3] = [0, -libc::EPERM, -libc::EACCES];

const ALLOWING: [Access; 8] = [
    Access::NONE,
    Access::MKNOD,
    Access::READ,
    Access::from_bits(3),
    Access::WRITE,
    Access::from_bits(5),
    Access::READ_WRITE,
    Access::ALL,
];
const DENYING: [Access; 4] = [Access::NONE, Access::READ, Access::READ_WRITE, Access::ALL];
const FLAGS: [RuleFlags; 4] =
    [RuleFlags(0), RuleFlags::SUBTREE, RuleFlags::HOTPLUG, RuleFlags::SUBTREE.union(RuleFlags::HOTPLUG)];
/// The first nanosecond after boot, and a time that this machine does not see.
const ENDS: [u64; 3] = [0, 1, u64::MAX];

/// Every set of the switches that change verdicts.
pub(crate) fn policies() -> Vec<Policy> {
    (0..8).map(Policy).collect()
}

/// What a cgroup can have for a device: no rule, or each rule that there can be. `current` carries the number's epoch.
pub(crate) fn rules(current: Rule) -> Vec<Option<RuleView>> {
    let mut rules = vec![None];
    for allow in ALLOWING {
        for deny in DENYING {
            for flags in FLAGS {
                for expires_at in ENDS {
                    for (slot, epoch) in epochs(current) {
                        let number = rules.len() as u32;
                        let rule = Rule {
                            allow,
                            deny,
                            flags,
                            epoch_slot: slot,
                            epoch,
                            expires_at,
                            rule_id: u64::from(number),
                            generation: number * 3,
                            reserved: 0,
                        };
                        let is_current = (slot, epoch) == (current.epoch_slot, current.epoch);
                        rules.push(Some(RuleView { rule, current: is_current, expired: expires_at == 1 }));
                    }
                }
            }
        }
    }
    rules
}

/// The epoch as it is, an earlier one, and that of no number.
fn epochs(current: Rule) -> [(u32, u64); 3] {
    [(current.epoch_slot, current.epoch), (current.epoch_slot, current.epoch - 1), (EPOCH_SLOT_NONE, 0)]
}

/// A managed cgroup on the way from the root to the task.
#[derive(Clone, Copy)]
pub(crate) struct Level {
    pub(crate) id: u64,
    pub(crate) policy: Policy,
    pub(crate) own: bool,
    pub(crate) rule: Option<RuleView>,
}

/// What is decided, and who decides it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) prior: i32,
    pub(crate) verdict: i32,
    pub(crate) action: Option<Action>,
    pub(crate) reason: Option<Reason>,
    pub(crate) audit_only: bool,
    pub(crate) container: u64,
    pub(crate) rule_id: u64,
    pub(crate) generation: u32,
}

/// What the decision function says of a request. `outside` is the policy of cgroups that are not managed.
pub(crate) fn decide(request: Request, prior: i32, outside: Policy, levels: &[Level], guard: Guard) -> Outcome {
    let mut tally = Tally::new(judge_unmanaged(request, prior, outside), outside);
    let mut by = (0, None);
    for &Level { id, policy, own, rule } in levels {
        let decision = judge(request, prior, &Layer { policy, own, rule }, guard);
        if tally.add(decision, policy) {
            by = (id, rule.map(|view| view.rule));
        }
    }
    Outcome {
        prior,
        verdict: tally.verdict(prior),
        action: Some(tally.decision().action()),
        reason: tally.decision().reason(),
        audit_only: tally.audit_only(),
        container: by.0,
        rule_id: by.1.map_or(0, |rule| rule.rule_id),
        generation: by.1.map_or(0, |rule| rule.generation),
    }
}

/// The requests of a survey, in its order, each with the index of its device.
pub(crate) fn requests(first: DeviceNumber, count: u32) -> impl Iterator<Item = (usize, Request)> {
    (0..count).flat_map(move |index| {
        let minor = first.minor() + index;
        let device = if first.is_block() {
            DeviceNumber::block(first.major(), minor)
        } else {
            DeviceNumber::char(first.major(), minor)
        };
        QUESTIONS.map(|access| (index as usize, Request { device, access }))
    })
}
