//! The eBPF object that is part of this binary.

/// The ELF object of the kernel programs, aligned for reading its headers in place.
///
/// Empty when the agent was built before `cargo xtask build-ebpf`; such a binary can show and check things but must not claim to enforce.
pub const OBJECT: &[u8] = &ALIGNED.0;

/// The alignment of the 64-bit ELF structures.
#[repr(C, align(8))]
struct Aligned<T: ?Sized>(T);

const ALIGNED: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/devgate.bpf.o")));

#[cfg(test)]
mod tests {
    use super::OBJECT;

    #[test]
    fn object_is_aligned_elf_or_empty() {
        assert_eq!(OBJECT.as_ptr().align_offset(8), 0);
        assert!(OBJECT.is_empty() || OBJECT.starts_with(b"\x7fELF"));
    }
}
