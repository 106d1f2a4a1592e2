//! A network namespace of a test, with character devices that are plugged and unplugged in it.
//!
//! Devices of a class that belongs to network namespaces, such as macvtap's, send their uevents there alone.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    path::PathBuf,
    process::Command,
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
};

use anyhow::{Context, Result, bail};
use devgate_abi::DeviceNumber;
use rustix::{
    io::Errno,
    net::{
        AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, netlink, recv, sendto, socket_with, sockopt,
    },
    thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe},
};

use crate::wait::wait_readable;

/// The kernel's own group of uevents.
const KERNEL_GROUP: u32 = 1;
/// udev's group.
const UDEV_GROUP: u32 = 2;
/// Bytes for uevents that nobody has read yet.
const BUFFER: usize = 32 << 20;
/// `TUNGETIFF` of `include/uapi/linux/if_tun.h`.
const TUNGETIFF: libc::Ioctl = 0x8004_54d2;
/// How the names of macvtap devices begin.
const PREFIX: &str = "mvt";

/// A network namespace. It is gone with the value, and all in it.
#[derive(Debug)]
pub struct Network {
    namespace: OwnedFd,
}

impl Network {
    /// An empty one.
    pub fn new() -> Result<Self> {
        let namespace = in_thread(|| {
            // SAFETY: the thread shares nothing with others that a network namespace of its own would take from them.
            unsafe { unshare_unsafe(UnshareFlags::NEWNET) }?;
            Ok(std::fs::File::open("/proc/thread-self/ns/net")?.into())
        })?;
        Ok(Self { namespace })
    }

    /// A path by which processes of this user can open it.
    pub fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.namespace.as_raw_fd()).into()
    }

    /// Runs `ip` in it.
    pub fn ip(&self, arguments: &str) -> Result<()> {
        let output = self.enter(|| Ok(Command::new("ip").args(arguments.split_whitespace()).output()?))?;
        if !output.status.success() {
            bail!("ip {arguments}: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(())
    }

    /// A socket on the group of the kernel's uevents.
    pub fn uevents(&self) -> Result<Uevents> {
        self.enter(|| {
            let protocol = Some(netlink::KOBJECT_UEVENT);
            let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, protocol)?;
            // Other tests plug hundreds of devices meanwhile, which are heard of here too.
            sockopt::set_socket_recv_buffer_size_force(&socket, BUFFER)?;
            bind(&socket, &netlink::SocketAddrNetlink::new(0, KERNEL_GROUP))?;
            Ok(Uevents(socket))
        })
    }

    /// Runs something in it, in a thread of its own.
    pub fn enter<T: Send>(&self, run: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        in_thread(|| {
            move_into_link_name_space(self.namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
            run()
        })
    }
}

/// A thread of its own, so that no other changes its namespace.
pub(crate) fn in_thread<T: Send>(run: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    thread::scope(|scope| scope.spawn(run).join()).unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// A socket on the kernel's uevents of a namespace.
#[derive(Debug)]
pub struct Uevents(OwnedFd);

impl Uevents {
    /// Sends a message to all that hear the kernel's uevents in the namespace. When this returns, socket filters have
    /// seen it.
    pub fn send(&self, message: &[u8]) -> io::Result<()> {
        self.send_to(KERNEL_GROUP, message)
    }

    /// The same, to all that hear udev's.
    pub fn send_as_udev(&self, message: &[u8]) -> io::Result<()> {
        self.send_to(UDEV_GROUP, message)
    }

    fn send_to(&self, group: u32, message: &[u8]) -> io::Result<()> {
        // Nobody is there to get it, if all sockets' filters drop it.
        match sendto(&self.0, message, SendFlags::empty(), &netlink::SocketAddrNetlink::new(0, group)) {
            Ok(_) | Err(Errno::SRCH) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// The next message, as text of lines.
    pub fn next(&self) -> Result<String> {
        wait_readable("a uevent is there", &self.0);
        let mut message = [0; 8192];
        let (length, _) = recv(&self.0, &mut message[..], RecvFlags::empty())?;
        Ok(String::from_utf8_lossy(&message[..length]).replace('\0', "\n"))
    }
}

/// One test at a time: numbers of macvtap devices are handed out in all namespaces together, and tests of reuse would
/// take them from each other.
static TURN: Mutex<()> = Mutex::new(());

/// macvtap devices in a namespace of their own.
#[derive(Debug)]
pub struct Taps {
    network: Network,
    events: Uevents,
    _turn: MutexGuard<'static, ()>,
}

impl Taps {
    /// A namespace without such a device.
    pub fn new() -> Result<Self> {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let network = Network::new()?;
        network.ip("link add vt0 type veth peer name vt1")?;
        let events = network.uevents()?;
        Ok(Self { network, events, _turn: turn })
    }

    /// The namespace.
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// Plugs a device, which answers [`identity`] with `name`. Returns its number.
    pub fn plug(&self, name: u8) -> Result<DeviceNumber> {
        self.network.ip(&format!("link add link vt1 name {PREFIX}{name} type macvtap"))?;
        loop {
            let event = self.events.next()?;
            let field = |name| event.lines().find_map(|line| line.strip_prefix(name));
            if field("ACTION=") == Some("add") && field("SUBSYSTEM=") == Some("macvtap") {
                let number = |name| anyhow::Ok(field(name).context("the device has no number")?.parse()?);
                return Ok(DeviceNumber::char(number("MAJOR=")?, number("MINOR=")?));
            }
        }
    }

    /// Unplugs a device. When this returns, its number may belong to another.
    pub fn unplug(&self, name: u8) -> Result<()> {
        self.network.ip(&format!("link del {PREFIX}{name}"))
    }
}

/// The namespace would take its devices with it some time after its last descriptor; the next test counts on their
/// numbers being free.
impl Drop for Taps {
    fn drop(&mut self) {
        if let Err(error) = self.network.ip("link del vt0") {
            eprintln!("cannot take the devices away: {error:#}");
        }
    }
}

/// The name that the macvtap device behind an open descriptor was plugged with.
pub(crate) fn identity(device: impl AsFd) -> Result<u8, Errno> {
    let mut request = [0_u8; 40];
    // SAFETY: the request writes a `struct ifreq`, which has 40 bytes and begins with the name.
    let result = unsafe { libc::ioctl(device.as_fd().as_raw_fd(), TUNGETIFF, request.as_mut_ptr()) };
    if result < 0 {
        return Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO));
    }
    let name = request.split(|&byte| byte == 0).next().and_then(|name| std::str::from_utf8(name).ok());
    name.and_then(|name| name.strip_prefix(PREFIX)?.parse().ok()).ok_or(Errno::BADMSG)
}
