//! The program that judges accesses.

use aya_ebpf::{
    helpers::{
        bpf_get_current_ancestor_cgroup_id, bpf_get_current_cgroup_id, bpf_get_retval, bpf_ktime_get_boot_ns,
        bpf_set_retval,
    },
    macros::cgroup_device,
    programs::DeviceContext,
};
use devgate_abi::{
    Action, EPOCH_SLOT_NONE, Guard, Layer, MAX_LEVELS, Policy, Reason, Request, Rule, RuleKey, RuleView, State,
    StateFlags, Tally, judge, judge_unmanaged, load,
};

use crate::{
    audit::{self, Subject, Verdict},
    maps::{CGROUPS, EPOCHS, GUARDED, RULES, STATE},
};

/// What a cgroup program returns to leave the verdict as it is.
const KEEP: i32 = 1;
/// What a cgroup program returns to deny with `EPERM`.
const REFUSE: i32 = 0;

/// Linked to the ancestor.
#[cgroup_device]
pub(crate) fn devgate(ctx: DeviceContext) -> i32 {
    let Some(state) = STATE.get(0) else { return KEEP };
    let flags = StateFlags(load(&state.flags));
    let guard = if flags.intersects(StateFlags::REQUIRE_GUARD) { Guard::Unproven } else { Guard::Trusted };
    run(&ctx, state, flags, guard)
}

/// What `devgate` continues with while the program array that leads here has a holder, which is the guard process.
#[cgroup_device]
pub(crate) fn devgate_alive(ctx: DeviceContext) -> i32 {
    let Some(state) = STATE.get(0) else { return KEEP };
    run(&ctx, state, StateFlags(load(&state.flags)), Guard::Trusted)
}

#[inline(always)]
fn run(ctx: &DeviceContext, state: &State, flags: StateFlags, guard: Guard) -> i32 {
    let Some(request) = read_request(ctx) else { return KEEP };
    // SAFETY: the helper has no arguments.
    let prior = unsafe { bpf_get_retval() };

    // The short cut, for nearly every call: nobody asked about this kind of device.
    let names = state.names_major(request.device) || flags.intersects(StateFlags::STRICT);
    let interesting = prior != 0 || (names && !request.device.is_standard());
    if !interesting && !flags.intersects(StateFlags::AUDIT_ALL) {
        return KEEP;
    }

    // SAFETY: the helper has no arguments.
    let current = unsafe { bpf_get_current_cgroup_id() };
    let outside =
        if current == load(&state.ancestor) { Policy::default() } else { Policy(load(&state.unclassified) as u32) };
    let mut tally = Tally::new(judge_unmanaged(request, prior, outside), outside);
    let mut subject = Subject { policy: outside, ..Subject::default() };

    let levels = load(&state.levels);
    for level in 0..MAX_LEVELS {
        if levels >> level & 1 == 0 {
            continue;
        }
        // SAFETY: the helper takes any level and answers 0 for one that the task's cgroup does not have.
        let cgroup = unsafe { bpf_get_current_ancestor_cgroup_id(level as i32) };
        if cgroup == 0 {
            break;
        }
        if !state.may_manage(cgroup) {
            continue;
        }
        // SAFETY: the entry is only read; while the program runs its memory stays that of an entry of the map.
        let Some(entry) = (unsafe { CGROUPS.get(cgroup) }) else { continue };
        let entry = *entry;
        // SAFETY: as above.
        let rule = unsafe { RULES.get(RuleKey { cgroup, device: request.device }) }.map(|rule| view(rule));
        let layer = Layer { policy: entry.policy, own: cgroup == current, rule };
        if tally.add(judge(request, prior, &layer, guard), entry.policy) {
            let (rule_id, generation) = layer.rule.map_or((0, 0), |view| (view.rule.rule_id, view.rule.generation));
            subject = Subject { container: cgroup, slot: entry.slot, policy: entry.policy, rule_id, generation };
        }
    }

    let decision = tally.decision();
    if decision.reason as u16 == Reason::Unguarded as u16 {
        // SAFETY: the array holds programs of this type alone. Without a holder it is empty, and we go on to deny.
        unsafe { GUARDED.tail_call(ctx, 0) };
    }
    let verdict = tally.verdict(prior);
    audit::account(
        state,
        flags,
        &subject,
        &Verdict { request, current, prior, verdict, decision, audit_only: tally.audit_only() },
    );
    if tally.audit_only() {
        return KEEP;
    }
    match decision.action {
        Action::Keep => KEEP,
        Action::Deny => REFUSE,
        Action::Grant => {
            // The one value that is ever set: kernels differ in what else they take (7.2: -4095 to 0).
            // SAFETY: the helper takes a number.
            if unsafe { bpf_set_retval(0) } == 0 { KEEP } else { REFUSE }
        }
    }
}

#[inline(always)]
fn read_request(ctx: &DeviceContext) -> Option<Request> {
    // SAFETY: the kernel passes a valid context; the verifier allows loads of these three words alone, one by one.
    let access_type = unsafe { (&raw const (*ctx.device).access_type).read_volatile() };
    // SAFETY: as above.
    let major = unsafe { (&raw const (*ctx.device).major).read_volatile() };
    // SAFETY: as above.
    let minor = unsafe { (&raw const (*ctx.device).minor).read_volatile() };
    Request::from_kernel(access_type, major, minor)
}

/// A rule as it stands now.
#[inline(always)]
fn view(rule: &Rule) -> RuleView {
    let rule = *rule;
    let current = rule.epoch_slot != EPOCH_SLOT_NONE
        && EPOCHS.get(rule.epoch_slot).is_some_and(|epoch| load(epoch) == rule.epoch);
    // SAFETY: the helper has no arguments.
    let expired = rule.expires_at != 0 && unsafe { bpf_ktime_get_boot_ns() } >= rule.expires_at;
    RuleView { rule, current, expired }
}
