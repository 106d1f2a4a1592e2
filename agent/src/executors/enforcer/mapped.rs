//! Arrays of the kernel programs, mapped into this process, so that words in them change in one step and without a call.

use std::{
    io,
    marker::PhantomData,
    ops::Deref,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    ptr::{self, NonNull},
};

use devgate_abi::Plain;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::sys::{self, MapInfo};

/// All elements of an array map that was made with `BPF_F_MMAPABLE` (Linux 5.5).
///
/// `T` holds atomics alone: the kernel and other processes change the elements at any time.
pub(super) struct MappedArray<T> {
    fd: OwnedFd,
    start: NonNull<T>,
    len: usize,
    bytes: usize,
    _element: PhantomData<T>,
}

// SAFETY: the memory is shared with the kernel anyway, and `T` can only be changed through atomics.
unsafe impl<T: Sync> Send for MappedArray<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for MappedArray<T> {}

impl<T: Plain> MappedArray<T> {
    /// Maps the array. Its layout must have been compared before.
    pub(super) fn new(map: BorrowedFd<'_>) -> io::Result<Self> {
        const { assert!(size_of::<T>().is_multiple_of(8)) };
        let info: MapInfo = sys::info(map)?;
        if info.value_size as usize != size_of::<T>() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the array's elements have another size"));
        }
        let bytes = info.max_entries as usize * size_of::<T>();
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at a place of the kernel's choice overlaps nothing.
        let start = unsafe { mmap(ptr::null_mut(), bytes, protection, MapFlags::SHARED, map, 0) }?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::InvalidData)?;
        let len = info.max_entries as usize;
        Ok(Self { fd: map.try_clone_to_owned()?, start, len, bytes, _element: PhantomData })
    }
}

impl<T> MappedArray<T> {
    /// The map itself.
    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl<T> Deref for MappedArray<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the mapping lives as long as `self` and has room for `len` elements, valid for every pattern of bits.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T> Drop for MappedArray<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nothing borrows from it any more.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}
