//! Loop devices: real block devices that are plugged and unplugged by a call, and that tell which of them answers.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
};

use anyhow::{Context, Result};
use devgate_abi::DeviceNumber;
use rustix::{
    fs::{MemfdFlags, Mode, OFlags, ftruncate, memfd_create, openat},
    io::Errno,
};

use crate::{nodes::Nodes, wait::wait_until};

// Requests of include/uapi/linux/loop.h.
const LOOP_SET_FD: libc::Ioctl = 0x4c00;
const LOOP_CLR_FD: libc::Ioctl = 0x4c01;
const LOOP_SET_STATUS64: libc::Ioctl = 0x4c04;
const LOOP_GET_STATUS64: libc::Ioctl = 0x4c05;
const LOOP_CTL_ADD: libc::Ioctl = 0x4c80;
const LOOP_CTL_REMOVE: libc::Ioctl = 0x4c81;

/// One loop device. It is removed with the value.
#[derive(Debug)]
pub struct LoopDevice {
    control: File,
    index: u32,
    number: DeviceNumber,
}

impl LoopDevice {
    /// Plugs the device of an index, which no other test at the same time must use.
    pub fn plug(index: u32) -> Result<Self> {
        let control = OpenOptions::new().read(true).write(true).open("/dev/loop-control")?;
        // One of this index was left there if an earlier test was killed.
        let _ = request(&control, LOOP_CTL_REMOVE, index.into());
        request(&control, LOOP_CTL_ADD, index.into()).with_context(|| format!("cannot add loop device {index}"))?;
        let number = number(index)?;
        Ok(Self { control, index, number })
    }

    /// Its number.
    pub fn number(&self) -> DeviceNumber {
        self.number
    }

    /// Puts a file behind the device, and the name by which it answers [`identity`].
    pub fn load(&self, nodes: &Nodes, name: u8) -> Result<()> {
        let file = memfd_create("devgate-test-loop", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, 4096)?;
        let device = self.open(nodes)?;
        request(&device, LOOP_SET_FD, file.as_raw_fd().cast_unsigned().into()).context("cannot load a loop device")?;
        let mut status = LoopStatus { file_name: [0; 64], ..LoopStatus::default() };
        status.file_name[0] = name;
        // SAFETY: the request reads a structure of this layout.
        let result = unsafe { libc::ioctl(device.as_raw_fd(), LOOP_SET_STATUS64, &raw const status) };
        if result < 0 { Err(io::Error::last_os_error()).context("cannot name a loop device") } else { Ok(()) }
    }

    /// Takes the file away.
    pub fn unload(&self, nodes: &Nodes) -> Result<()> {
        request(&self.open(nodes)?, LOOP_CLR_FD, 0).context("cannot unload a loop device")
    }

    /// Unplugs it. When this returns, the number may belong to another. Tried again as long as somebody has it open.
    pub fn unplug(self) {
        wait_until("the loop device is removed", || self.try_unplug().is_ok());
    }

    fn try_unplug(&self) -> io::Result<()> {
        request(&self.control, LOOP_CTL_REMOVE, self.index.into())
    }

    fn open(&self, nodes: &Nodes) -> Result<OwnedFd> {
        let name = nodes.ensure(self.number)?;
        Ok(openat(nodes.as_fd(), name, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?)
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        // After `unplug` there is none. While a test panics its file may still be behind it.
        if self.try_unplug().is_err_and(|error| error.raw_os_error() != Some(libc::ENODEV)) {
            let cleared = Nodes::new().map_err(Into::into).and_then(|nodes| self.unload(&nodes));
            let removed = cleared.and_then(|()| Ok(self.try_unplug()?));
            if let Err(error) = removed {
                eprintln!("loop device {} stays behind: {error:#}", self.index);
            }
        }
    }
}

/// The name that the device behind an open descriptor was [loaded](LoopDevice::load) with.
pub(crate) fn identity(device: impl AsFd) -> Result<u8, Errno> {
    let mut status = LoopStatus::default();
    // SAFETY: the request writes a structure of this layout.
    let result = unsafe { libc::ioctl(device.as_fd().as_raw_fd(), LOOP_GET_STATUS64, &raw mut status) };
    if result < 0 {
        return Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO));
    }
    Ok(status.file_name[0])
}

/// `struct loop_info64` of `include/uapi/linux/loop.h`.
#[repr(C)]
struct LoopStatus {
    numbers: [u64; 5],
    words: [u32; 4],
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    key: [u8; 32],
    init: [u64; 2],
}

impl Default for LoopStatus {
    fn default() -> Self {
        Self { numbers: [0; 5], words: [0; 4], file_name: [0; 64], crypt_name: [0; 64], key: [0; 32], init: [0; 2] }
    }
}

const _: () = assert!(size_of::<LoopStatus>() == 232);

fn request(device: impl AsFd, request: libc::Ioctl, argument: u64) -> io::Result<()> {
    // SAFETY: these requests take a number and touch no memory.
    let result = unsafe { libc::ioctl(device.as_fd().as_raw_fd(), request, argument) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn number(index: u32) -> Result<DeviceNumber> {
    let path = format!("/sys/block/loop{index}/dev");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    let (major, minor) = text.trim().split_once(':').with_context(|| format!("{path} says {text}"))?;
    Ok(DeviceNumber::block(major.parse()?, minor.parse()?))
}
