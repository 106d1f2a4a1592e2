//! The Devgate kernel programs.
//!
//! - `devgate`: judges each access of a task below the ancestor to a device node ([`devgate_abi::judge`]), and
//!   `devgate_alive`, what it tail-calls while a guard process lives.
//! - `devgate_uevent` and `devgate_devdel`: the guards, which advance the epoch of a number while its device is being
//!   removed.
//!
//! Kernel 6.1 or newer: `bpf_get_retval` and `bpf_set_retval` in cgroup device programs.
#![no_std]
#![no_main]
#![feature(core_intrinsics)]
#![expect(clippy::needless_pass_by_value, reason = "the macros pass a program its context by value")]
#![expect(internal_features, reason = "eBPF has no stable read-modify-write atomics in Rust")]

mod atomic;
mod audit;
mod device;
mod find;
mod guard;
mod hide;
mod maps;
mod way;

#[cfg(not(test))]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // Nothing here can panic: a call of this function would not pass the verifier.
    loop {}
}

/// The crate may be used under Apache-2.0 or GPL-2.0. The kernel takes it under the latter, without which it lends a
/// program neither kernel memory to read nor some other helpers.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 4] = *b"GPL\0";
