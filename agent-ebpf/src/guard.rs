//! The guards: they advance the epoch of a device's number while the device is being removed, before the kernel can give
//! the number to another. They look at numbers that have an epoch and leave all others alone.

use core::sync::atomic::AtomicU64;

use aya_ebpf::{
    Global,
    helpers::{bpf_probe_read_kernel, bpf_probe_read_kernel_buf},
    macros::{fentry, socket_filter},
    programs::{FEntryContext, SkBuffContext},
};
use devgate_abi::{DeviceKind, DeviceNumber, EPOCH_SLOT_NONE, State};

use crate::{
    atomic,
    maps::{EPOCH_SLOTS, EPOCHS, STATE},
};

/// What a socket filter returns to keep the message from the socket. The guard's socket has no reader.
const DROP: i64 = 0;

/// Runs in the kernel's broadcast of a uevent, which `device_del` waits for before the driver can free the number.
#[socket_filter]
pub(crate) fn devgate_uevent(ctx: SkBuffContext) -> i64 {
    if let Some(removed) = parse_removal(&ctx) {
        advance(removed, |state| &state.advanced_by_uevent);
    }
    DROP
}

/// Offset of `devt` in `struct device`; set from the running kernel's BTF.
#[unsafe(no_mangle)]
static DEVICE_DEVT: Global<u32> = Global::new(0);
/// Offset of `class` in `struct device`.
#[unsafe(no_mangle)]
static DEVICE_CLASS: Global<u32> = Global::new(0);
/// Offset of `name` in `struct class`.
#[unsafe(no_mangle)]
static CLASS_NAME: Global<u32> = Global::new(0);

/// Runs as `device_del` begins.
#[fentry(function = "device_del")]
pub(crate) fn devgate_devdel(ctx: FEntryContext) -> i32 {
    if let Ok(removed) = read_device(ctx.arg::<*const u8>(0)) {
        advance(removed, |state| &state.advanced_by_device_del);
    }
    0
}

#[inline(always)]
fn advance(number: DeviceNumber, counter: impl Fn(&State) -> &AtomicU64) {
    // SAFETY: the entry is only read; while the program runs its memory stays that of an entry of the map.
    let Some(&slot) = (unsafe { EPOCH_SLOTS.get(number) }) else { return };
    if slot == EPOCH_SLOT_NONE {
        return;
    }
    let Some(epoch) = EPOCHS.get(slot) else { return };
    atomic::add(epoch, 1);
    if let Some(state) = STATE.get(0) {
        atomic::add(counter(state), 1);
    }
}

/// Reads the number of a `struct device`. A number does not say whether it is a block device's; the name of the
/// device's class does.
#[inline(always)]
fn read_device(device: *const u8) -> Result<DeviceNumber, i32> {
    // SAFETY: the helper checks the address; the offset is that of a field of the structure.
    let devt: u32 = unsafe { bpf_probe_read_kernel(device.wrapping_add(DEVICE_DEVT.load() as usize).cast()) }?;
    if devt == 0 {
        return Err(0);
    }
    // SAFETY: as above.
    let class: *const u8 = unsafe { bpf_probe_read_kernel(device.wrapping_add(DEVICE_CLASS.load() as usize).cast()) }?;
    let mut name = [0; 6];
    if !class.is_null() {
        // SAFETY: as above.
        let text: *const u8 = unsafe { bpf_probe_read_kernel(class.wrapping_add(CLASS_NAME.load() as usize).cast()) }?;
        // SAFETY: as above; a shorter name is followed by other constants of the kernel.
        unsafe { bpf_probe_read_kernel_buf(text, &mut name) }?;
    }
    let kind = if name == *b"block\0" { DeviceKind::Block } else { DeviceKind::Char };
    DeviceNumber::new(kind, devt >> 20, devt & DeviceNumber::MAX_MINOR).ok_or(0)
}

const HEADER: &[u8; 7] = b"remove@";
const ACTION: &[u8; 22] = b"ACTION=remove\0DEVPATH=";
const SUBSYSTEM: &[u8; 10] = b"SUBSYSTEM=";
const MAJOR: &[u8; 6] = b"MAJOR=";
const MINOR: &[u8; 6] = b"MINOR=";

/// Reads the number from a message about a removed device.
///
/// The kernel writes `remove@PATH`, `ACTION=remove`, `DEVPATH=PATH`, `SUBSYSTEM=NAME` and, for a device with a number,
/// at once `MAJOR=` and `MINOR=` (`kobject_uevent_env` in `lib/kobject_uevent.c`, `dev_uevent` in
/// `drivers/base/core.c`), each ended by a zero. An event that somebody asked for by writing to a `uevent` file has other
/// fields in between and is not a removal.
#[inline(always)]
fn parse_removal(ctx: &SkBuffContext) -> Option<DeviceNumber> {
    let mut at = 0;
    expect(ctx, &mut at, HEADER)?;
    let path = length::<16, 80>(ctx, at)?;
    at = at + path + 1;
    expect(ctx, &mut at, ACTION)?;
    at = at + path + 1;
    expect(ctx, &mut at, SUBSYSTEM)?;
    let kind = if load::<6>(ctx, at)? == *b"block\0" { DeviceKind::Block } else { DeviceKind::Char };
    at = at + length::<8, 8>(ctx, at)? + 1;
    expect(ctx, &mut at, MAJOR)?;
    let major = number(ctx, &mut at)?;
    expect(ctx, &mut at, MINOR)?;
    let minor = number(ctx, &mut at)?;
    DeviceNumber::new(kind, major, minor)
}

/// Passes over an expected text.
#[inline(always)]
fn expect<const N: usize>(ctx: &SkBuffContext, at: &mut usize, text: &[u8; N]) -> Option<()> {
    let found = load::<N>(ctx, *at)?;
    for (found, expected) in found.iter().zip(text) {
        if found != expected {
            return None;
        }
    }
    *at += N;
    Some(())
}

/// How many bytes come before the next zero, looking at most at `CHUNKS` times `N`.
#[inline(always)]
fn length<const N: usize, const CHUNKS: usize>(ctx: &SkBuffContext, at: usize) -> Option<usize> {
    for chunk in 0..CHUNKS {
        let bytes = load::<N>(ctx, at + chunk * N)?;
        for (index, &byte) in bytes.iter().enumerate() {
            if byte == 0 {
                return Some(unknown(chunk * N + index)? & 0xfff);
            }
        }
    }
    None
}

/// Reads a decimal number and the zero behind it.
#[inline(always)]
fn number(ctx: &SkBuffContext, at: &mut usize) -> Option<u32> {
    let digits = load::<8>(ctx, *at)?;
    let mut value = 0;
    for (index, &byte) in digits.iter().enumerate() {
        if byte == 0 && index > 0 {
            *at += unknown(index)? & 7;
            *at += 1;
            return Some(value);
        }
        if !byte.is_ascii_digit() {
            return None;
        }
        value = value * 10 + u32::from(byte - b'0');
    }
    None
}

/// The same value, of which the verifier knows nothing: it would follow the program once for each place at which a text
/// can end. The word that is added is always zero, which only we know.
#[inline(always)]
fn unknown(value: usize) -> Option<usize> {
    Some(value.wrapping_add(devgate_abi::load(EPOCHS.get(EPOCH_SLOT_NONE)?) as usize))
}

#[inline(always)]
fn load<const N: usize>(ctx: &SkBuffContext, at: usize) -> Option<[u8; N]> {
    ctx.load(at).ok()
}
