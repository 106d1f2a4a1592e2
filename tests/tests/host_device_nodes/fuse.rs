//! A FUSE file system that never answers (protocol: `include/uapi/linux/fuse.h`).

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::{read, write};
use rustix::mount::{MountFlags, mount};

/// Mounts it. With `greet` the kernel's first message is answered; before that it sends no other.
pub(crate) fn mount_fuse(device: &str, path: &str, greet: bool) -> io::Result<OwnedFd> {
    let fuse = open(device, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let options = format!("fd={},rootmode=40000,user_id=0,group_id=0,allow_other", fuse.as_raw_fd());
    mount("fuse", path, "fuse", MountFlags::empty(), CString::new(options)?.as_c_str())?;
    if greet {
        let unique = unique_of(&fuse)?;
        write(&fuse, &init_answer(unique))?;
    }
    Ok(fuse)
}

/// Reads one message, from when on not even a kill ends the wait of who sent it.
pub(crate) fn take_message(fuse: &OwnedFd) -> io::Result<()> {
    unique_of(fuse).map(drop)
}

/// The `unique` of the next `fuse_in_header { len u32, opcode u32, unique u64, … }`.
fn unique_of(fuse: &OwnedFd) -> io::Result<[u8; 8]> {
    let mut polled = [PollFd::new(fuse, PollFlags::IN)];
    if poll(&mut polled, Some(&Timespec { tv_sec: 10, tv_nsec: 0 }))? == 0 {
        return Err(io::Error::from_raw_os_error(libc::ETIMEDOUT));
    }
    // FUSE_MIN_READ_BUFFER, and room for what follows the header.
    let mut message = vec![0_u8; 1 << 17];
    let length = read(fuse, &mut message)?;
    message[..length].get(8..16).and_then(|bytes| bytes.try_into().ok()).ok_or(io::ErrorKind::InvalidData.into())
}

/// `fuse_out_header { len u32, error i32, unique u64 }` and a `fuse_init_out` of 64 bytes that begins with version 7.31.
fn init_answer(unique: [u8; 8]) -> Vec<u8> {
    let mut answer = vec![0_u8; 80];
    answer[..4].copy_from_slice(&80_u32.to_ne_bytes());
    answer[8..16].copy_from_slice(&unique);
    answer[16..20].copy_from_slice(&7_u32.to_ne_bytes());
    answer[20..24].copy_from_slice(&31_u32.to_ne_bytes());
    // max_write
    answer[36..40].copy_from_slice(&4096_u32.to_ne_bytes());
    answer
}
