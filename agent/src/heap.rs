//! Memory that was freed and that the allocator still holds.

/// Gives it back to the system. Reading the kernel's types and loading the programs takes twenty megabytes for a moment;
/// what stays is small, but lies between what went.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the call takes no pointer and may be made at any time (malloc_trim(3)).
    unsafe {
        libc::malloc_trim(0);
    }
}
