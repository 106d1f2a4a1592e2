use crate::{Access, Action, DENIED, Policy, Reason, Request, Rule, RuleFlags};

/// A rule as it stands at the moment of a request.
#[derive(Clone, Copy, Debug)]
pub struct RuleView {
    /// The rule.
    pub rule: Rule,
    /// Whether the epoch of the device's number is still the rule's.
    pub current: bool,
    /// Whether the time of the grant is over.
    pub expired: bool,
}

/// What is known of one managed cgroup on the way from the root of the hierarchy to the task.
#[derive(Clone, Copy, Debug)]
pub struct Layer {
    /// What holds in the cgroup.
    pub policy: Policy,
    /// Whether the task is in this very cgroup and not in one below.
    pub own: bool,
    /// Its rule for the device.
    pub rule: Option<RuleView>,
}

/// Whether a grant of a device that can be unplugged may be relied on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guard {
    /// A guard sees the removal of devices, or the agent is configured not to ask for one.
    Trusted,
    /// It is not known whether a guard lives.
    Unproven,
}

/// What is to be done with the verdict so far, and why: an [`Action`] and a [`Reason`].
///
/// Kept in one word, so that the verifier, which follows a program once for each combination of known values, sees one
/// value and not a dozen pairs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Decision(u32);

impl Decision {
    /// A decision.
    #[inline(always)]
    pub const fn new(action: Action, reason: Reason) -> Self {
        Self((action as u32) << 16 | reason as u32)
    }

    /// What.
    #[inline(always)]
    pub const fn action(self) -> Action {
        match self.0 >> 16 {
            KEEP => Action::Keep,
            GRANT => Action::Grant,
            _ => Action::Deny,
        }
    }

    /// Why, as the number of a [`Reason`].
    #[inline(always)]
    pub const fn reason_number(self) -> u16 {
        self.0 as u16
    }

    /// Why.
    pub const fn reason(self) -> Option<Reason> {
        Reason::from_raw(self.reason_number())
    }

    /// The decision in one word.
    #[inline(always)]
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// The decision whose [`bits`](Self::bits) these are.
    #[inline(always)]
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    #[inline(always)]
    const fn keep(reason: Reason) -> Self {
        Self::new(Action::Keep, reason)
    }

    #[inline(always)]
    const fn deny(reason: Reason) -> Self {
        Self::new(Action::Deny, reason)
    }
}

impl core::fmt::Debug for Decision {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{:?}", self.action())?;
        match self.reason() {
            Some(reason) => write!(f, "({reason:?})"),
            None => write!(f, "({})", self.reason_number()),
        }
    }
}

/// Decides one request for one managed cgroup. `prior` is the verdict of the programs that ran before: 0 if they allow,
/// else a negative error number.
///
/// A grant overrides [`DENIED`] alone: another error is not the denial of a device program. It holds for tasks in the
/// cgroup itself, and below it only where the rule says so, since a nested runtime's denial would be overridden too.
/// Denials hold in the whole subtree, or a container that makes child cgroups would walk out of them.
#[inline(always)]
pub fn judge(request: Request, prior: i32, layer: &Layer, guard: Guard) -> Decision {
    if request.device.is_standard() {
        Decision::keep(Reason::Standard)
    } else {
        judge_other(request, prior, layer, guard)
    }
}

/// [`judge`] for a device that is known not to be a standard one.
#[inline(always)]
pub fn judge_other(request: Request, prior: i32, layer: &Layer, guard: Guard) -> Decision {
    conclude(Stand::of(request.access, layer, guard), prior, layer)
}

/// What a managed cgroup says to a request, whatever the verdict so far is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stand {
    /// It is denied.
    Denies(Reason),
    /// Its rule permits all that is asked.
    Permits,
    /// It has nothing to say.
    Leaves,
}

impl Stand {
    /// What the cgroup says to this access to a device that is not a standard one.
    #[inline(always)]
    pub fn of(access: Access, layer: &Layer, guard: Guard) -> Self {
        if let Some(RuleView { rule, current, expired }) = layer.rule {
            if !current {
                return Self::Denies(Reason::StaleEpoch);
            }
            if denies(rule.deny, access) {
                return Self::Denies(Reason::DeniedByRule);
            }
            if !expired && !rule.allow.is_empty() && rule.allow.contains(access) {
                if rule.flags.contains(RuleFlags::HOTPLUG) && guard as u8 == Guard::Unproven as u8 {
                    return Self::Denies(Reason::Unguarded);
                }
                return Self::Permits;
            }
        }
        // Also where the runtime denies already: else a grant in a container further in would override both.
        if denies_other(layer.policy, access) {
            return Self::Denies(Reason::OtherDevice);
        }
        Self::Leaves
    }
}

/// What follows from what the cgroup says and the verdict so far.
#[inline(always)]
pub fn conclude(stand: Stand, prior: i32, layer: &Layer) -> Decision {
    match (stand, layer.rule) {
        (Stand::Denies(reason), _) => Decision::deny(reason),
        (Stand::Permits, _) if prior == 0 => Decision::keep(Reason::Agreed),
        (Stand::Permits, Some(RuleView { rule, .. }))
            if prior == DENIED && (layer.own || rule.flags.contains(RuleFlags::SUBTREE)) =>
        {
            Decision::new(Action::Grant, Reason::Granted)
        }
        (Stand::Permits, _) => Decision::keep(Reason::OutOfScope),
        (Stand::Leaves, Some(RuleView { expired: true, .. })) if prior != 0 => Decision::keep(Reason::Expired),
        (Stand::Leaves, Some(_)) if prior != 0 => Decision::keep(Reason::NotCovered),
        (Stand::Leaves, _) => Decision::keep(Reason::Runtime),
    }
}

/// Decides one request of a task that is in no managed cgroup. `policy` is that of unclassified cgroups, or nothing for
/// a task in the ancestor itself.
#[inline(always)]
pub fn judge_unmanaged(request: Request, prior: i32, policy: Policy) -> Decision {
    if request.device.is_standard() {
        return Decision::keep(Reason::Standard);
    }
    judge_unmanaged_other(request, prior, policy)
}

/// [`judge_unmanaged`] for a device that is known not to be a standard one.
#[inline(always)]
pub fn judge_unmanaged_other(request: Request, prior: i32, policy: Policy) -> Decision {
    if prior == 0 && denies_other(policy, request.access) {
        return Decision::deny(Reason::Unclassified);
    }
    Decision::keep(Reason::Unmanaged)
}

/// Whether the denied accesses meet the requested ones. `access(F_OK)` asks for nothing and is denied only with
/// everything else.
#[inline(always)]
fn denies(deny: Access, access: Access) -> bool {
    deny.intersects(access) || (access.is_empty() && deny.contains(Access::ALL))
}

/// Whether a policy denies this access to a device that is not permitted. Looking for a node (`F_OK`) gives nothing
/// away, and one that is made can still not be opened; runtimes allow both for every device.
#[inline(always)]
fn denies_other(policy: Policy, access: Access) -> bool {
    policy.contains(Policy::DENY_OTHERS)
        && (access.intersects(Access::READ_WRITE)
            || (policy.contains(Policy::DENY_MKNOD) && access.contains(Access::MKNOD)))
}

/// Sums up the decisions for nested managed cgroups, from the outermost to the innermost.
///
/// A denial anywhere on the way holds; else a grant anywhere; else the verdict is kept. What an audited cgroup would
/// have done is reported only if nothing was really changed.
///
/// In one word, as [`Decision`]: the decision, above it whether it is only audited, above that its rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tally(u64);

const AUDIT_ONLY_BIT: u32 = 32;
const RANK_SHIFT: u32 = 40;

impl Tally {
    /// The sum before the first cgroup, with the decision for tasks in none.
    #[inline(always)]
    pub const fn new(unmanaged: Decision, policy: Policy) -> Self {
        Self::with_rank(0, unmanaged, policy)
    }

    #[inline(always)]
    const fn with_rank(rank: u64, decision: Decision, policy: Policy) -> Self {
        let audit_only = policy.contains(Policy::AUDIT_ONLY) as u64;
        Self(rank << RANK_SHIFT | audit_only << AUDIT_ONLY_BIT | decision.0 as u64)
    }

    /// Adds the decision for a cgroup. Returns whether the sum is now this one.
    #[inline(always)]
    pub fn add(&mut self, decision: Decision, policy: Policy) -> bool {
        // 1 to keep the verdict, 2 and 3 for what an audited cgroup would do, 4 and 5 for what is done.
        let action = u64::from(decision.0 >> 16);
        let carried_out = u64::from(action != 0 && !policy.contains(Policy::AUDIT_ONLY));
        let sum = Self::with_rank(1 + action + 2 * carried_out, decision, policy);
        // Of several that are kept the innermost is named, of several denials the outermost.
        let (new, old) = (sum.0 >> RANK_SHIFT, self.0 >> RANK_SHIFT);
        let decisive = new > old || new + old == 2;
        if decisive {
            *self = sum;
        }
        decisive
    }

    /// What is to be done, or would be if the cgroup were not only audited.
    #[inline(always)]
    pub const fn decision(self) -> Decision {
        Decision(self.0 as u32)
    }

    /// Whether the decision is not carried out.
    #[inline(always)]
    pub const fn audit_only(self) -> bool {
        self.0 >> AUDIT_ONLY_BIT & 1 != 0
    }

    /// What is done.
    #[inline(always)]
    pub const fn action(self) -> Action {
        if self.audit_only() { Action::Keep } else { self.decision().action() }
    }

    /// The verdict after the program has run.
    #[inline(always)]
    pub const fn verdict(self, prior: i32) -> i32 {
        match self.action() {
            Action::Grant => 0,
            Action::Deny if prior == 0 => DENIED,
            Action::Keep | Action::Deny => prior,
        }
    }

    /// The sum in one word.
    #[inline(always)]
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// The sum whose [`bits`](Self::bits) these are.
    #[inline(always)]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }
}

const KEEP: u32 = Action::Keep as u32;
const GRANT: u32 = Action::Grant as u32;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DeviceNumber;

    const FUSE: DeviceNumber = DeviceNumber::char(10, 229);

    fn asks(access: Access) -> Request {
        Request { device: FUSE, access }
    }

    fn layer(rule: Rule) -> Layer {
        Layer { policy: Policy::default(), own: true, rule: Some(RuleView { rule, current: true, expired: false }) }
    }

    fn allowing(access: Access) -> Rule {
        Rule { allow: access, epoch_slot: 1, ..Rule::default() }
    }

    fn reason(request: Request, prior: i32, layer: &Layer) -> (Action, Reason) {
        let decision = judge(request, prior, layer, Guard::Trusted);
        (decision.action(), decision.reason().unwrap())
    }

    #[test]
    fn a_grant_overrides_the_runtime_and_nothing_else() {
        let layer = layer(allowing(Access::READ_WRITE));
        assert_eq!(reason(asks(Access::READ), DENIED, &layer), (Action::Grant, Reason::Granted));
        assert_eq!(reason(asks(Access::READ), -13, &layer), (Action::Keep, Reason::OutOfScope));
        assert_eq!(reason(asks(Access::READ), 0, &layer), (Action::Keep, Reason::Agreed));
        assert_eq!(reason(asks(Access::MKNOD), DENIED, &layer), (Action::Keep, Reason::NotCovered));
    }

    // Fault: agent-ebpf/abi/src/decide.rs
    // - if !expired && !rule.allow.is_empty() && rule.allow.contains(access) {
    // + if !expired && !access.is_empty() && rule.allow.contains(access) {
    #[test]
    fn access_f_ok_is_granted_with_anything_else() {
        assert_eq!(reason(asks(Access::NONE), DENIED, &layer(allowing(Access::READ))).0, Action::Grant);
        let denying = Rule { deny: Access::WRITE, ..allowing(Access::NONE) };
        assert_eq!(reason(asks(Access::NONE), DENIED, &layer(denying)).0, Action::Keep);
    }

    #[test]
    fn access_f_ok_is_denied_only_with_everything() {
        let most = layer(Rule { deny: Access::READ_WRITE, ..Rule::default() });
        assert_eq!(reason(asks(Access::NONE), 0, &most).0, Action::Keep);
        let all = layer(Rule { deny: Access::ALL, ..Rule::default() });
        assert_eq!(reason(asks(Access::NONE), 0, &all), (Action::Deny, Reason::DeniedByRule));
    }

    // Fault: agent-ebpf/abi/src/decide.rs
    // - if prior == DENIED && (layer.own || rule.flags.contains(RuleFlags::SUBTREE)) =>
    // + if prior == DENIED && rule.allow.contains(Access::NONE) =>
    #[test]
    fn a_grant_is_for_the_exact_cgroup_unless_asked() {
        let mut layer = Layer { own: false, ..layer(allowing(Access::READ)) };
        assert_eq!(reason(asks(Access::READ), DENIED, &layer), (Action::Keep, Reason::OutOfScope));
        layer.rule.as_mut().unwrap().rule.flags = RuleFlags::SUBTREE;
        assert_eq!(reason(asks(Access::READ), DENIED, &layer).0, Action::Grant);
    }

    // Fault: agent-ebpf/abi/src/decide.rs
    // - return Self::Denies(Reason::StaleEpoch);
    // + return Self::Leaves;
    #[test]
    fn a_rule_of_an_older_epoch_denies_what_the_runtime_allows() {
        let mut layer = layer(allowing(Access::ALL));
        layer.rule.as_mut().unwrap().current = false;
        layer.own = false;
        for prior in [0, DENIED] {
            for access in [Access::NONE, Access::READ, Access::MKNOD] {
                assert_eq!(reason(asks(access), prior, &layer), (Action::Deny, Reason::StaleEpoch));
            }
        }
    }

    #[test]
    fn an_ended_grant_leaves_the_runtime_its_word() {
        let mut layer = layer(allowing(Access::ALL));
        layer.rule.as_mut().unwrap().expired = true;
        assert_eq!(reason(asks(Access::READ), DENIED, &layer), (Action::Keep, Reason::Expired));
        assert_eq!(reason(asks(Access::READ), 0, &layer), (Action::Keep, Reason::Runtime));
        layer.policy = Policy::DENY_OTHERS;
        assert_eq!(reason(asks(Access::READ), 0, &layer), (Action::Deny, Reason::OtherDevice));
    }

    #[test]
    fn where_others_are_denied_rules_and_standard_devices_remain() {
        let strict = Layer { policy: Policy::DENY_OTHERS, own: false, rule: None };
        assert_eq!(reason(asks(Access::READ), 0, &strict), (Action::Deny, Reason::OtherDevice));
        assert_eq!(reason(asks(Access::NONE), 0, &strict).0, Action::Keep);
        assert_eq!(reason(asks(Access::MKNOD), 0, &strict).0, Action::Keep);
        let null = Request { device: DeviceNumber::char(1, 3), access: Access::READ };
        assert_eq!(reason(null, 0, &strict), (Action::Keep, Reason::Standard));
        assert_eq!(reason(asks(Access::READ), DENIED, &strict), (Action::Deny, Reason::OtherDevice));
        let permitted = Layer { policy: Policy::DENY_OTHERS, own: false, ..layer(allowing(Access::READ)) };
        assert_eq!(reason(asks(Access::READ), 0, &permitted), (Action::Keep, Reason::Agreed));
        assert_eq!(reason(asks(Access::READ_WRITE), 0, &permitted), (Action::Deny, Reason::OtherDevice));
        let no_nodes = Layer { policy: Policy::DENY_OTHERS.union(Policy::DENY_MKNOD), ..strict };
        assert_eq!(reason(asks(Access::MKNOD), 0, &no_nodes).0, Action::Deny);
    }

    #[test]
    fn a_device_that_can_be_unplugged_needs_a_guard_where_asked() {
        let mut layer = layer(allowing(Access::READ));
        let ask = |layer: &Layer| judge(asks(Access::READ), DENIED, layer, Guard::Unproven);
        assert_eq!(ask(&layer).action(), Action::Grant);
        layer.rule.as_mut().unwrap().rule.flags = RuleFlags::HOTPLUG;
        assert_eq!(ask(&layer).reason(), Some(Reason::Unguarded));
    }

    #[test]
    fn unclassified_cgroups_follow_their_own_policy() {
        assert_eq!(judge_unmanaged(asks(Access::READ), 0, Policy::DENY_OTHERS).reason(), Some(Reason::Unclassified));
        assert_eq!(judge_unmanaged(asks(Access::READ), 0, Policy::default()).action(), Action::Keep);
        assert_eq!(judge_unmanaged(asks(Access::READ), DENIED, Policy::DENY_OTHERS).action(), Action::Keep);
    }

    #[test]
    fn a_denial_anywhere_on_the_way_holds() {
        let keep = Decision::keep(Reason::Runtime);
        let grant = Decision::new(Action::Grant, Reason::Granted);
        let deny = Decision::deny(Reason::DeniedByRule);
        for order in [[keep, grant, deny], [deny, grant, keep], [grant, deny, keep]] {
            let mut tally = Tally::new(Decision::keep(Reason::Unmanaged), Policy::default());
            for decision in order {
                tally.add(decision, Policy::default());
            }
            assert_eq!(tally.decision(), deny);
            assert_eq!(tally.verdict(0), DENIED);
        }
    }

    #[test]
    fn an_audited_cgroup_changes_nothing_and_hides_no_other() {
        let deny = Decision::deny(Reason::DeniedByRule);
        let grant = Decision::new(Action::Grant, Reason::Granted);
        let mut tally = Tally::new(Decision::keep(Reason::Unmanaged), Policy::default());
        assert!(tally.add(deny, Policy::AUDIT_ONLY));
        assert_eq!((tally.verdict(0), tally.audit_only()), (0, true));
        assert!(tally.add(grant, Policy::default()));
        assert_eq!((tally.verdict(DENIED), tally.audit_only()), (0, false));
    }
}
