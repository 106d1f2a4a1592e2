//! Elements of the containers array: counters and token buckets.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use devgate_abi::ContainerSlot;

use super::{Counters, config::RecordRate};

/// Prepares an element of the containers array for another cgroup.
pub(super) fn reset(slot: &ContainerSlot, cgroup: u64, rate: RecordRate) {
    let counters = [&slot.granted, &slot.denied, &slot.runtime_denied, &slot.recorded, &slot.limited, &slot.lost];
    for word in counters.into_iter().chain([&slot.bucket, &slot.policy, &slot.above]) {
        word.store(0, Relaxed);
    }
    set_rate(slot, rate);
    slot.cgroup.store(cgroup, Relaxed);
}

/// Sets how many records a bucket lets through.
pub(super) fn set_rate(slot: &ContainerSlot, rate: RecordRate) {
    let cost = 1_000_000_000_u64.checked_div(u64::from(rate.per_second)).unwrap_or(0);
    slot.cost.store(cost, Relaxed);
    slot.depth.store(cost * u64::from(rate.burst.max(1)), Relaxed);
}

/// What the kernel counted in an element.
pub(super) fn counters(slot: &ContainerSlot) -> Counters {
    let read = |word: &AtomicU64| word.load(Relaxed);
    Counters {
        granted: read(&slot.granted),
        denied: read(&slot.denied),
        runtime_denied: read(&slot.runtime_denied),
        recorded: read(&slot.recorded),
        limited: read(&slot.limited),
        lost: read(&slot.lost),
    }
}
