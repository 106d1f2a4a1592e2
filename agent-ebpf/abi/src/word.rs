use core::sync::atomic::AtomicU64;

/// Reads a word that others write meanwhile, without any order among words.
#[inline(always)]
pub fn load(word: &AtomicU64) -> u64 {
    #[cfg(not(target_arch = "bpf"))]
    {
        word.load(core::sync::atomic::Ordering::Relaxed)
    }
    // The LLVM backend of eBPF has no relaxed atomic load. A volatile load of an aligned word is one instruction.
    #[cfg(target_arch = "bpf")]
    {
        // SAFETY: the pointer is that of a live, aligned word.
        unsafe { word.as_ptr().read_volatile() }
    }
}
