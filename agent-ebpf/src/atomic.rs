//! Read-modify-write operations, which eBPF has for 64-bit words (instruction set v3, kernel 5.12).

use core::{
    intrinsics::{
        AtomicOrdering::{AcqRel, Relaxed},
        atomic_cxchg, atomic_xadd, atomic_xchg,
    },
    sync::atomic::AtomicU64,
};

/// Writes a word, without any order among words.
#[inline(always)]
pub(crate) fn store(word: &AtomicU64, value: u64) {
    // SAFETY: the pointer is that of a live, aligned word that is only ever accessed by whole instructions.
    unsafe { word.as_ptr().write_volatile(value) };
}

/// Adds `value`.
#[inline(always)]
pub(crate) fn add(word: &AtomicU64, value: u64) {
    // SAFETY: the pointer is that of a live, aligned word that is only ever accessed atomically.
    unsafe { atomic_xadd::<u64, u64, { Relaxed }>(word.as_ptr(), value) };
}

/// Adds `value` and returns what was there before.
///
/// Never relaxed: for a relaxed addition LLVM 22 chooses the instruction without a result and takes the operand for it.
#[inline(always)]
pub(crate) fn fetch_add(word: &AtomicU64, value: u64) -> u64 {
    // SAFETY: as above.
    unsafe { atomic_xadd::<u64, u64, { AcqRel }>(word.as_ptr(), value) }
}

/// Writes `value` and returns what was there before.
#[inline(always)]
pub(crate) fn swap(word: &AtomicU64, value: u64) -> u64 {
    // SAFETY: as above.
    unsafe { atomic_xchg::<u64, { Relaxed }>(word.as_ptr(), value) }
}

/// Writes `new` if the word is still `old`; returns whether it was.
#[inline(always)]
pub(crate) fn replace(word: &AtomicU64, old: u64, new: u64) -> bool {
    // SAFETY: as above.
    unsafe { atomic_cxchg::<u64, { Relaxed }, { Relaxed }>(word.as_ptr(), old, new).1 }
}
