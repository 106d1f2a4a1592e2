//! Arrays of the kernel programs, mapped into this process, so that words in them change in one step and without a call.

use std::{
    io,
    marker::PhantomData,
    ops::{Deref, Range},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    ptr::{self, NonNull},
};

use devgate_abi::Plain;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::sys::{self, MapInfo};

/// Elements of an array map that was made with `BPF_F_MMAPABLE` (Linux 5.5). What is mapped counts as memory of this
/// process.
///
/// `T` holds atomics alone: the kernel and other processes change the elements at any time.
pub(super) struct MappedArray<T> {
    fd: OwnedFd,
    /// Where the mapping begins, and how long it is.
    mapping: NonNull<u8>,
    bytes: usize,
    /// The first element, and how many there are.
    start: NonNull<T>,
    len: usize,
    _element: PhantomData<T>,
}

// SAFETY: the memory is shared with the kernel anyway, and `T` can only be changed through atomics.
unsafe impl<T: Sync> Send for MappedArray<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for MappedArray<T> {}

impl<T: Plain> MappedArray<T> {
    /// Maps the array. Its layout must have been compared before.
    pub(super) fn new(map: BorrowedFd<'_>) -> io::Result<Self> {
        let len = Self::len_of(map)?;
        Self::map(map, 0..len)
    }

    /// Maps one element.
    pub(super) fn element(map: BorrowedFd<'_>, index: usize) -> io::Result<Self> {
        if index >= Self::len_of(map)? {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the array has no such element"));
        }
        Self::map(map, index..index + 1)
    }

    /// How many elements the array has.
    pub(super) fn len_of(map: BorrowedFd<'_>) -> io::Result<usize> {
        let info: MapInfo = sys::info(map)?;
        if info.value_size as usize != size_of::<T>() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the array's elements have another size"));
        }
        Ok(info.max_entries as usize)
    }

    fn map(map: BorrowedFd<'_>, range: Range<usize>) -> io::Result<Self> {
        const { assert!(size_of::<T>().is_multiple_of(8)) };
        let first = range.start * size_of::<T>();
        // A mapping begins with a page.
        let before = first % rustix::param::page_size();
        let bytes = before + range.len() * size_of::<T>();
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let offset = (first - before) as u64;
        // SAFETY: a new mapping at a place of the kernel's choice overlaps nothing.
        let mapping = unsafe { mmap(ptr::null_mut(), bytes, protection, MapFlags::SHARED, map, offset) }?;
        let mapping = NonNull::new(mapping.cast::<u8>()).ok_or(io::ErrorKind::InvalidData)?;
        // SAFETY: the mapping is longer than that.
        let start = unsafe { mapping.add(before) }.cast();
        let fd = map.try_clone_to_owned()?;
        Ok(Self { fd, mapping, bytes, start, len: range.len(), _element: PhantomData })
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
        // SAFETY: the mapping lives as long as `self` and has `len` elements from there on, valid for every pattern of bits.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T> Drop for MappedArray<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nothing borrows from it any more.
        let _ = unsafe { munmap(self.mapping.as_ptr().cast(), self.bytes) };
    }
}
