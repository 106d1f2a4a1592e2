/// A type that can be copied to and from a kernel map as bytes.
///
/// # Safety
///
/// The type is `repr(C)` or `repr(transparent)`, has no padding, holds no reference and is valid for every pattern of
/// bits: a map may hold what an older program wrote.
pub unsafe trait Plain: Sized + 'static {}

// SAFETY: an integer is valid for every pattern of bits and has no padding.
unsafe impl Plain for u32 {}
// SAFETY: as above.
unsafe impl Plain for u64 {}
// SAFETY: as above; the atomic types have the layout of their integers.
unsafe impl Plain for core::sync::atomic::AtomicU64 {}
