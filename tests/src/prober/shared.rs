//! Memory that a test and its prober share, so that counting costs no call.

use std::{
    io,
    ops::Deref,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    ptr::{self, NonNull},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use rustix::{
    fs::{MemfdFlags, ftruncate, memfd_create},
    mm::{MapFlags, ProtFlags, mmap, munmap},
};

/// Larger than any error number of Linux.
const ERRORS: usize = 256;

/// What is in the memory.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Words {
    /// Not 0 once a run is to end.
    pub(super) stop: AtomicU64,
    /// How often each answer was given.
    pub(super) counts: [AtomicU64; ERRORS],
}

impl Words {
    /// Zeros.
    pub(super) fn clear(&self) {
        self.stop.store(0, Relaxed);
        for count in &self.counts {
            count.store(0, Relaxed);
        }
    }

    /// Counts an answer. There must be no other writer.
    pub(super) fn count(&self, errno: i32) {
        if let Some(count) = self.counts.get(errno.unsigned_abs() as usize) {
            count.store(count.load(Relaxed) + 1, Relaxed);
        }
    }
}

/// The memory, mapped.
#[derive(Debug)]
pub(super) struct Shared(NonNull<Words>);

// SAFETY: the memory holds atomics alone.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    /// New memory, and the descriptor by which another process maps it too.
    pub(super) fn new() -> io::Result<(Self, OwnedFd)> {
        let memory = memfd_create("devgate-test", MemfdFlags::CLOEXEC)?;
        ftruncate(&memory, size_of::<Words>() as u64)?;
        Ok((Self::map(memory.as_fd())?, memory))
    }

    /// Maps what another process has made.
    pub(super) fn map(memory: BorrowedFd<'_>) -> io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at a place of the kernel's choice overlaps nothing.
        let start = unsafe { mmap(ptr::null_mut(), size_of::<Words>(), protection, MapFlags::SHARED, memory, 0) }?;
        NonNull::new(start.cast()).map(Self).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }
}

impl Deref for Shared {
    type Target = Words;

    fn deref(&self) -> &Words {
        // SAFETY: the mapping lives as long as `self`, and atomics are valid for every pattern of bits.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nothing borrows from it any more.
        let _ = unsafe { munmap(self.0.as_ptr().cast(), size_of::<Words>()) };
    }
}
