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
    Access, Action, Decision, DeviceNumber, EPOCH_SLOT_NONE, Guard, Layer, MAX_LEVELS, Policy, Reason, Request, Rule,
    RuleKey, RuleView, State, StateFlags, Tally, judge_other, judge_unmanaged, load,
};

use crate::{
    audit::{self, Subject},
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

    // The short cut, for nearly every call: nobody asked about this kind of device. It comes before any helper, each of
    // which costs more than all of this.
    let asked = state.names_major(request.device) || flags.intersects(StateFlags::STRICT.union(StateFlags::AUDIT_ALL));
    if (!asked && !flags.intersects(StateFlags::DENIALS)) || request.device.is_standard() {
        return KEEP;
    }
    // SAFETY: the helper has no arguments.
    let prior = unsafe { bpf_get_retval() };
    if !asked && prior == 0 {
        return KEEP;
    }

    let hide = Hide(load(&state.zero));
    let request = Request {
        device: DeviceNumber::from_bits(hide.word(request.device.bits())),
        access: Access::from_bits(hide.word(u64::from(request.access.bits())) as u32),
    };
    let prior = hide.word(u64::from(prior.cast_unsigned())) as i32;
    let walk = walk(state, request, prior, guard, hide);

    let decision = walk.tally.decision();
    if decision.reason_number() == Reason::Unguarded as u16 {
        // SAFETY: the array holds programs of this type alone. Without a holder it is empty, and we go on to deny.
        unsafe { GUARDED.tail_call(ctx, 0) };
    }
    audit::account(state, flags, request, prior, &walk);
    if walk.tally.audit_only() {
        return KEEP;
    }
    match decision.action() {
        Action::Keep => KEEP,
        Action::Deny => REFUSE,
        Action::Grant => {
            // The one value that is ever set: kernels differ in what else they take (7.2: -4095 to 0).
            // SAFETY: the helper takes a number.
            if unsafe { bpf_set_retval(0) } == 0 { KEEP } else { REFUSE }
        }
    }
}

/// Hides a word's value from the verifier, which else follows the program once for each value that it knows a word to
/// have, and gives up. The word inside is always zero.
///
/// What is carried from one round of a loop to the next must look the same to it in each. Linux 6.1 in particular takes
/// for different what is known and what is not: it gave up while one number was at first known to be 0.
#[derive(Clone, Copy)]
struct Hide(u64);

impl Hide {
    #[inline(always)]
    fn word(self, word: u64) -> u64 {
        word ^ self.0
    }
}

/// What was found on the way from the root to the task's cgroup.
pub(crate) struct Walk {
    /// The task's cgroup.
    pub(crate) current: u64,
    pub(crate) tally: Tally,
    /// Who decided.
    pub(crate) subject: Subject,
}

/// Judges the request for every managed cgroup from the root to the task's own.
#[inline(always)]
fn walk(state: &State, request: Request, prior: i32, guard: Guard, hide: Hide) -> Walk {
    // SAFETY: the helper has no arguments.
    let current = unsafe { bpf_get_current_cgroup_id() };
    let outside = if current == load(&state.ancestor) { 0 } else { load(&state.unclassified) };
    let outside = Policy(hide.word(outside) as u32);
    let unmanaged = judge_unmanaged(request, prior, outside);
    let mut tally = Tally::from_bits(hide.word(Tally::new(unmanaged, outside).bits()));
    let mut subject = Subject {
        container: hide.word(0),
        slot: 0,
        policy: outside,
        rule_id: hide.word(0),
        generation: hide.word(0) as u32,
    };

    let levels = load(&state.levels);
    for level in 0..MAX_LEVELS {
        let rest = levels >> level;
        if rest & 1 == 0 {
            if rest == 0 {
                break;
            }
            continue;
        }
        // SAFETY: the helper takes any level and answers 0 for one that the task's cgroup does not have.
        let cgroup = unsafe { bpf_get_current_ancestor_cgroup_id(level.cast_signed()) };
        if cgroup == 0 {
            break;
        }
        if !state.may_manage(cgroup) {
            continue;
        }
        // SAFETY: the entry is only read; while the program runs its memory stays that of an entry of the map.
        let Some(entry) = (unsafe { CGROUPS.get(cgroup) }) else { continue };
        let (slot, policy) = (entry.slot, entry.policy);
        // SAFETY: as above.
        let rule = unsafe { RULES.get(RuleKey { cgroup, device: request.device }) };
        let (rule_id, generation) = rule.map_or((0, 0), |rule| (rule.rule_id, rule.generation));
        let (rule_id, generation) = (hide.word(rule_id), hide.word(u64::from(generation)) as u32);
        let layer = Layer { policy, own: cgroup == current, rule: rule.map(view) };
        let decision = judge_other(request, prior, &layer, guard);
        let decision = Decision::from_bits(hide.word(u64::from(decision.bits())) as u32);
        let decisive = tally.add(decision, policy);
        tally = Tally::from_bits(hide.word(tally.bits()));
        if decisive {
            subject = Subject { container: hide.word(cgroup), slot, policy, rule_id, generation };
        }
    }
    Walk { current, tally, subject }
}

#[inline(always)]
fn read_request(ctx: &DeviceContext) -> Option<Request> {
    // `struct bpf_cgroup_dev_ctx` is three words: access_type, major, minor.
    let words = ctx.device.cast::<u32>().cast_const();
    // SAFETY: the kernel passes a valid context; the verifier allows loads of these three words alone, one by one.
    let access_type = unsafe { words.read_volatile() };
    // SAFETY: as above.
    let major = unsafe { words.wrapping_add(1).read_volatile() };
    // SAFETY: as above.
    let minor = unsafe { words.wrapping_add(2).read_volatile() };
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
