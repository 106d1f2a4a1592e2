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
    Request, Rule, RuleKey, RuleView, Stand, State, StateFlags, Tally, conclude, judge_other, judge_unmanaged_other,
    load,
};

use crate::{
    atomic,
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
    let question = Question { request, named, guard };
    // Read before everything else: what is found in maps that change meanwhile is learned for an old generation.
    let generation = load(&state.generation);
    let way = match find::managed(state, current) {
        Some(own) => {
            let way = Way::to_container(generation, own);
            if way.is_short()
                && let Some(answer) = answer_at_once(ctx, state, flags, &question, current, own)
            {
                return answer;
            }
            way
        }
        None => {
            let way = Way::to_other(state, generation, current);
            if way.is_short() && load(&state.unclassified) == 0 && !flags.intersects(WATCHED) {
                return KEEP;
            }
            way
        }
    };

    let Some(nobody) = CONTAINERS.get(0) else { return KEEP };
    // What the verifier knows of the ways up to here would only multiply its work from here on.
    let hide = Hide(state);
    let (current, flags, way) = (hide.word(current), StateFlags(hide.word(flags.0)), way.hide(hide));
    let prior = hide.word(u64::from(prior().cast_unsigned())) as i32;
    let mut walk = Walk::outside(state, &question, prior, current, nobody);
    walk.along(state, flags, &question, &way);
    if walk.tally.decision().reason_number() == Reason::Unguarded as u16 {
        ask_guard(ctx);
    }
    audit::account(state, flags, &question, &walk);
    match walk.tally.action() {
        Action::Keep => KEEP,
        Action::Deny => REFUSE,
        Action::Grant => grant(),
    }
}

/// Answers for a task in a container with no other above, where nothing is recorded: that is, nearly all that is asked
/// about. `None` if more has to be looked at.
///
/// The verdict of the programs before is asked for only if something depends on it.
#[inline(always)]
fn answer_at_once(
    ctx: &DeviceContext,
    state: &State,
    flags: StateFlags,
    question: &Question,
    current: u64,
    own: &ContainerSlot,
) -> Option<i32> {
    let Question { request, named, guard } = *question;
    let policy = Policy(load(&own.policy) as u32);
    if !policy.is_plain() || flags.intersects(StateFlags::AUDIT_ALL) {
        return None;
    }
    let key = RuleKey { cgroup: current, device: request.device };
    let (words, exists) = if named { find::rule(state, key) } else { find::NO_RULE };
    let layer = Layer { policy, own: true, rule: exists.then(|| view(Rule::from_words(words))) };
    let stand = Stand::of(request.access, &layer, guard);
    match stand {
        Stand::Denies(reason) => {
            if reason as u16 == Reason::Unguarded as u16 {
                ask_guard(ctx);
            }
            atomic::add(&own.denied, 1);
            return Some(REFUSE);
        }
        // Nobody counts denials of this device.
        Stand::Leaves if !named && !flags.intersects(WATCHED) => return Some(KEEP),
        Stand::Permits | Stand::Leaves => {}
    }
    let prior = prior();
    if conclude(stand, prior, &layer).action() as u8 == Action::Grant as u8 {
        atomic::add(&own.granted, 1);
        return Some(grant());
    }
    if prior != 0 {
        atomic::add(&own.runtime_denied, 1);
    }
    Some(KEEP)
}

/// Continues with `devgate_alive` if a guard lives. Comes back if not.
#[inline(always)]
fn ask_guard(ctx: &DeviceContext) {
    // SAFETY: the array holds programs of this type alone. Without a holder it is empty.
    unsafe { GUARDED.tail_call(ctx, 0) };
}

/// Overrides the denial of the programs before. Returns what our program then returns.
#[inline(always)]
fn grant() -> i32 {
    // The one value that is ever set: kernels differ in what else they take (7.2: -4095 to 0).
    // SAFETY: the helper takes a number.
    if unsafe { bpf_set_retval(0) } == 0 { KEEP } else { REFUSE }
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
    /// Whether any rule can be about the device.
    named: bool,
    guard: Guard,
}

/// What was found on the way from the root to the task's cgroup.
pub(crate) struct Walk {
    /// The task's cgroup.
    pub(crate) current: u64,
    /// The verdict of the programs that ran before.
    pub(crate) prior: i32,
    pub(crate) tally: Tally,
    /// Who decided.
    pub(crate) subject: Subject,
}

impl Walk {
    /// For a task in no managed cgroup.
    #[inline(always)]
    fn outside(state: &State, question: &Question, prior: i32, current: u64, nobody: &'static ContainerSlot) -> Self {
        let policy = if current == load(&state.ancestor) { 0 } else { load(&state.unclassified) };
        let hide = Hide(state);
        let policy = Policy(hide.word(policy) as u32);
        let decision = judge_unmanaged_other(question.request, prior, policy);
        let (container, rule_id, generation) = (hide.word(0), hide.word(0), hide.word(0) as u32);
        let subject = Subject { container, slot: nobody, policy, rule_id, generation };
        Self { current, prior, tally: Tally::new(decision, policy), subject }
    }

    /// Judges for every managed cgroup from the root to the task's own.
    #[inline(always)]
    fn along(&mut self, state: &State, flags: StateFlags, question: &Question, way: &Way) {
        let hide = Hide(state);
        let question = Question {
            request: Request {
                device: DeviceNumber::from_bits(hide.word(question.request.device.bits())),
                access: Access::from_bits(hide.word(u64::from(question.request.access.bits())) as u32),
            },
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
                let (decision, subject) = judge(state, &question, self.prior, cgroup, managed, last);
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
    prior: i32,
    cgroup: u64,
    managed: &'static ContainerSlot,
    own: bool,
) -> (Decision, Subject) {
    let hide = Hide(state);
    let Question { request, named, guard } = *question;
    let policy = Policy(load(&managed.policy) as u32);
    let key = RuleKey { cgroup, device: request.device };
    let (words, exists) = if named { find::rule(state, key) } else { find::NO_RULE };
    let (rule, exists) = (Rule::from_words(words.map(|word| hide.word(word))), hide.bool(exists));
    let RuleView { rule, current, expired } = view(rule);
    let (current, expired) = (hide.bool(current), hide.bool(expired));
    let layer = Layer { policy, own, rule: exists.then_some(RuleView { rule, current, expired }) };
    let decision = judge_other(request, prior, &layer, guard);
    let (rule_id, generation) = (hide.word(rule.rule_id), hide.word(u64::from(rule.generation)) as u32);
    (decision, Subject { container: hide.word(cgroup), slot: managed, policy, rule_id, generation })
}

/// The rule as it stands now.
#[inline(always)]
fn view(rule: Rule) -> RuleView {
    RuleView { rule, current: is_current(&rule), expired: is_expired(&rule) }
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
