//! Counters and records of decisions.

use core::mem::offset_of;

use aya_ebpf::{
    bindings::{BPF_RB_FORCE_WAKEUP, BPF_RB_NO_WAKEUP},
    helpers::{
        bpf_get_current_pid_tgid, bpf_get_current_uid_gid, bpf_ktime_get_boot_ns, generated::bpf_get_current_comm,
    },
};
use devgate_abi::{
    Action, COMM_LEN, ContainerSlot, LAYOUT_VERSION, Policy, Record, RecordFlags, State, StateFlags, load,
};

use crate::{
    atomic,
    device::{Question, Walk},
    maps::AUDIT,
};

/// How often a token is tried for while other CPUs take tokens of the same bucket.
const BUCKET_TRIES: u32 = 4;

/// Who a decision is accounted to.
#[derive(Clone, Copy)]
pub(crate) struct Subject {
    pub(crate) container: u64,
    pub(crate) slot: &'static ContainerSlot,
    pub(crate) policy: Policy,
    pub(crate) rule_id: u64,
    pub(crate) generation: u32,
}

/// Counts the decision, and records it if the policy of its container asks for that.
#[inline(always)]
pub(crate) fn account(state: &State, flags: StateFlags, question: &Question, walk: &Walk) {
    let (slot, prior) = (walk.subject.slot, walk.prior);
    match walk.tally.action() {
        Action::Deny => atomic::add(&slot.denied, 1),
        Action::Grant => atomic::add(&slot.granted, 1),
        Action::Keep if prior != 0 => atomic::add(&slot.runtime_denied, 1),
        Action::Keep => {}
    }
    let wanted = match walk.tally.decision().action() {
        Action::Grant => Policy::RECORD_GRANTS,
        Action::Deny => Policy::RECORD_DENIALS,
        Action::Keep if prior != 0 => Policy::RECORD_DENIALS,
        Action::Keep => Policy::RECORD_REST,
    };
    if walk.subject.policy.contains(wanted) || flags.intersects(StateFlags::AUDIT_ALL) {
        record(state, question, walk);
    }
    #[cfg(feature = "debug-log")]
    log(question.request, prior, walk);
}

#[inline(always)]
fn record(state: &State, question: &Question, walk: &Walk) {
    let request = question.request;
    let Walk { current, prior, tally, subject } = walk;
    let slot = subject.slot;
    // SAFETY: the helper has no arguments.
    let now = unsafe { bpf_ktime_get_boot_ns() };
    if !take_token(slot, now) {
        atomic::add(&slot.limited, 1);
        return;
    }
    let Some(mut entry) = AUDIT.reserve(0) else {
        atomic::add(&slot.lost, 1);
        return;
    };
    let task = bpf_get_current_pid_tgid();
    let user = bpf_get_current_uid_gid();
    let record = entry.as_mut_ptr();
    // Field by field, where it stays: a whole record is made on the stack first, and copied by a function.
    macro_rules! write {
        ($($field:ident: $value:expr),* $(,)?) => {
            $(
                // SAFETY: the entry has room for a record.
                unsafe { (&raw mut (*record).$field).write($value) };
            )*
        };
    }
    write! {
        version: LAYOUT_VERSION as u16,
        length: size_of::<Record>() as u16,
        reason: tally.decision().reason_number(),
        action: tally.decision().action() as u8,
        flags: if tally.audit_only() { RecordFlags::AUDIT_ONLY } else { RecordFlags::default() },
        time: now,
        cgroup: *current,
        container: subject.container,
        rule_id: subject.rule_id,
        sequence: atomic::fetch_add(&slot.recorded, 1),
        generation: subject.generation,
        access: request.access.bits(),
        device: request.device,
        prior: *prior,
        verdict: tally.verdict(*prior),
        pid: (task >> 32) as u32,
        tid: task as u32,
        uid: user as u32,
        gid: (user >> 32) as u32,
    }
    let comm = record.wrapping_byte_add(offset_of!(Record, comm));
    // SAFETY: the name's buffer is the record's own, of the length given. The helper fills all of it.
    unsafe { bpf_get_current_comm(comm.cast(), COMM_LEN as u32) };
    // Waking costs several times as much as the record. Only the first record after the reader went to sleep pays.
    let asleep = load(&state.reader_asleep) != 0 && atomic::swap(&state.reader_asleep, 0) != 0;
    entry.submit(u64::from(if asleep { BPF_RB_FORCE_WAKEUP } else { BPF_RB_NO_WAKEUP }));
}

/// Takes a token from the container's bucket (the generic cell rate algorithm: one word holds the time at which the
/// bucket will be full again). Returns whether there was one.
#[inline(always)]
fn take_token(slot: &ContainerSlot, now: u64) -> bool {
    let cost = load(&slot.cost);
    if cost == 0 {
        return true;
    }
    let latest = now + load(&slot.depth);
    for _ in 0..BUCKET_TRIES {
        let full_at = load(&slot.bucket);
        let after = if full_at > now { full_at } else { now } + cost;
        if after > latest {
            return false;
        }
        if atomic::replace(&slot.bucket, full_at, after) {
            return true;
        }
    }
    // So many at once are more than any bucket that is limited should let through.
    false
}

#[cfg(feature = "debug-log")]
#[inline(always)]
fn log(request: devgate_abi::Request, prior: i32, walk: &Walk) {
    aya_log_ebpf::info!(
        &(),
        "container {} {} {}:{} access {} prior {} verdict {} reason {}",
        walk.subject.container,
        if request.device.is_block() { "block" } else { "char" },
        request.device.major(),
        request.device.minor(),
        request.access.bits(),
        prior,
        walk.tally.verdict(prior),
        walk.tally.decision().reason_number()
    );
}
