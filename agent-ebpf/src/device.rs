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
    Access, Action, ContainerSlot, Decision, DeviceNumber, EPOCH_SLOT_NONE, Guard, Layer, MAX_LEVELS, Policy, Reason,
    Request, Rule, RuleKey, RuleView, State, StateFlags, Tally, judge_other, judge_unmanaged_other, load,
};

use crate::{
    audit::{self, Subject},
    find,
    hide::Hide,
    maps::{CONTAINERS, EPOCHS, GUARDED, STATE},
    way::Way,
};

/// What a cgroup program returns to leave the verdict as it is.
const KEEP: i32 = 1;
/// What a cgroup program returns to deny with `EPERM`.
const REFUSE: i32 = 0;

/// What is denied by others is looked at, whoever asked for whatever.
const WATCHED: StateFlags = StateFlags::DENIALS.union(StateFlags::AUDIT_ALL);

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
    // The short cut, for nearly every call: nobody asked about this kind of device. It comes before any helper, each of
    // which costs more than all of this, and before the check of the numbers.
    // `struct bpf_cgroup_dev_ctx` is three words: access_type, major, minor.
    let words = ctx.device.cast::<u32>().cast_const();
    // SAFETY: the kernel passes a valid context; the verifier allows loads of these three words alone, one by one.
    let access_type = unsafe { words.read_volatile() };
    // SAFETY: as above.
    let major = unsafe { words.wrapping_add(1).read_volatile() };
    let named = state.names(access_type, major);
    let all = flags.intersects(StateFlags::STRICT.union(StateFlags::AUDIT_ALL));
    if !named && !flags.intersects(WATCHED.union(StateFlags::STRICT)) {
        return KEEP;
    }
    // SAFETY: as above.
    let minor = unsafe { words.wrapping_add(2).read_volatile() };
    let Some(request) = Request::from_kernel(access_type, major, minor) else { return KEEP };
    if request.device.is_standard() {
        return KEEP;
    }
    if !named && !all && prior() == 0 {
        return KEEP;
    }
    // SAFETY: the helper has no arguments.
    let current = unsafe { bpf_get_current_cgroup_id() };
    let way = Way::to(state, current);
    if way.is_outside() && load(&state.unclassified) == 0 && !flags.intersects(WATCHED) {
        return KEEP;
    }
    let prior = Hide(Some(state)).word(u64::from(prior().cast_unsigned())) as i32;
    let question = Question { request, prior, named, guard };
    let walk = match way.own {
        Some(own) if way.is_short() => Walk::to_container(state, &question, current, own),
        _ => {
            let Some(nobody) = CONTAINERS.get(0) else { return KEEP };
            let mut walk = Walk::outside(state, &question, current, nobody);
            if !way.is_short() {
                walk.along(state, flags, &question, &way);
            }
            walk
        }
    };

    let decision = walk.tally.decision();
    if decision.reason_number() == Reason::Unguarded as u16 {
        // SAFETY: the array holds programs of this type alone. Without a holder it is empty, and we go on to deny.
        unsafe { GUARDED.tail_call(ctx, 0) };
    }
    audit::account(state, flags, &question, &walk);
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

/// The verdict of the programs that ran before: 0 or a negative error number.
#[inline(always)]
fn prior() -> i32 {
    // SAFETY: the helper has no arguments.
    unsafe { bpf_get_retval() }
}

/// What is asked.
#[derive(Clone, Copy)]
pub(crate) struct Question {
    pub(crate) request: Request,
    /// The verdict of the programs that ran before.
    pub(crate) prior: i32,
    /// Whether any rule can be about the device.
    named: bool,
    guard: Guard,
}

/// What was found on the way from the root to the task's cgroup.
pub(crate) struct Walk {
    /// The task's cgroup.
    pub(crate) current: u64,
    pub(crate) tally: Tally,
    /// Who decided.
    pub(crate) subject: Subject,
}

impl Walk {
    /// For a task in a managed cgroup with no other above: that is, for nearly every task in a container.
    #[inline(always)]
    fn to_container(state: &State, question: &Question, current: u64, own: &'static ContainerSlot) -> Self {
        let (decision, subject) = judge(state, question, current, own, true, Hide(None));
        Self { current, tally: Tally::new(decision, subject.policy), subject }
    }

    /// For a task in no managed cgroup.
    #[inline(always)]
    fn outside(state: &State, question: &Question, current: u64, nobody: &'static ContainerSlot) -> Self {
        let policy = if current == load(&state.ancestor) { 0 } else { load(&state.unclassified) };
        let policy = Policy(policy as u32);
        let decision = judge_unmanaged_other(question.request, question.prior, policy);
        let subject = Subject { container: 0, slot: nobody, policy, rule_id: 0, generation: 0 };
        Self { current, tally: Tally::new(decision, policy), subject }
    }

    /// Judges for every managed cgroup from the root to the task's own.
    #[inline(always)]
    fn along(&mut self, state: &State, flags: StateFlags, question: &Question, way: &Way) {
        let hide = Hide(Some(state));
        let question = Question {
            request: Request {
                device: DeviceNumber::from_bits(hide.word(question.request.device.bits())),
                access: Access::from_bits(hide.word(u64::from(question.request.access.bits())) as u32),
            },
            prior: question.prior,
            named: hide.bool(question.named),
            guard: question.guard,
        };
        self.tally = hide.tally(self.tally);
        let wanted = hide.word(u64::from(way.levels())) as u32;
        let mut levels = load(&state.levels);
        let mut found = 0;
        for _ in 0..MAX_LEVELS + 1 {
            let next = levels as u8;
            levels >>= 8;
            let level = u32::from(next).wrapping_sub(1) % 32;
            if next != 0 && wanted >> level & 1 == 0 {
                continue;
            }
            // SAFETY: the helper takes any level and answers 0 for one that the task's cgroup does not have.
            let above = if next == 0 { 0 } else { unsafe { bpf_get_current_ancestor_cgroup_id(level.cast_signed()) } };
            let last = above == 0 || above == self.current;
            let cgroup = if last { self.current } else { above };
            if let Some(managed) = if last { way.own } else { find::managed(state, cgroup) } {
                let (decision, subject) = judge(state, &question, cgroup, managed, last, hide);
                let decisive = self.tally.add(hide.decision(decision), subject.policy);
                self.tally = hide.tally(self.tally);
                if decisive {
                    self.subject = subject;
                }
                found |= if last { 0 } else { 1 << level };
            }
            if last {
                break;
            }
        }
        way.learn(state, flags, self.current, hide.word(found) as u32);
    }
}

/// Judges for one managed cgroup, which is the task's `own` or one above it.
#[inline(always)]
fn judge(
    state: &State,
    question: &Question,
    cgroup: u64,
    managed: &'static ContainerSlot,
    own: bool,
    hide: Hide<'_>,
) -> (Decision, Subject) {
    let Question { request, prior, named, guard } = *question;
    let policy = Policy(load(&managed.policy) as u32);
    let slot = managed;
    let key = RuleKey { cgroup, device: request.device };
    let (rule, exists) = find::rule(state, named, key, hide);
    let (current, expired) = (hide.bool(is_current(&rule)), hide.bool(is_expired(&rule)));
    let layer = Layer { policy, own, rule: exists.then_some(RuleView { rule, current, expired }) };
    let decision = judge_other(request, prior, &layer, guard);
    (decision, Subject { container: cgroup, slot, policy, rule_id: rule.rule_id, generation: rule.generation })
}

/// Whether the number of the rule's device has not passed to another since.
#[inline(always)]
fn is_current(rule: &Rule) -> bool {
    if rule.epoch_slot == EPOCH_SLOT_NONE {
        return false;
    }
    EPOCHS.get(rule.epoch_slot).is_some_and(|epoch| load(epoch) == rule.epoch)
}

#[inline(always)]
fn is_expired(rule: &Rule) -> bool {
    // SAFETY: the helper has no arguments.
    rule.expires_at != 0 && unsafe { bpf_ktime_get_boot_ns() } >= rule.expires_at
}
