//! Sockets that hear uevents, in the network namespace where they are sent.

use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::thread;

use rustix::net::netlink::{KOBJECT_UEVENT, SocketAddrNetlink};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::filter::Filter;

/// A multicast group of uevents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Group {
    /// What the kernel itself sends.
    Kernel = 1,
    /// What udev sends when it has finished with what the kernel sent.
    Udev = 2,
}

/// Longer than any uevent: the kernel's end at 2 KiB, udev's at a few more.
pub(super) const MAX_MESSAGE: usize = 64 << 10;

/// Opens a socket that hears a group, with the filter in place before the first message.
///
/// A thread of its own enters the namespace, so that no other thread leaves the agent's.
pub(super) fn open(namespace: &Path, group: Group, buffer: usize, mut filter: Filter) -> io::Result<OwnedFd> {
    let namespace = File::open(namespace)?;
    let open = || {
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, Some(KOBJECT_UEVENT))?;
        // The first takes CAP_NET_ADMIN and knows no limit; the second stops at net.core.rmem_max.
        if sockopt::set_socket_recv_buffer_size_force(&socket, buffer).is_err() {
            sockopt::set_socket_recv_buffer_size(&socket, buffer)?;
        }
        sockopt::set_socket_passcred(&socket, true)?;
        filter.attach(socket.as_fd())?;
        bind(&socket, &SocketAddrNetlink::new(0, group as u32))?;
        Ok(socket)
    };
    thread::scope(|scope| {
        let opened = scope.spawn(open).join();
        opened.unwrap_or_else(|_| Err(io::Error::other("the thread that opens the socket panicked")))
    })
}

/// A message's size and sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Received {
    pub(super) length: usize,
    /// It was longer than the buffer.
    pub(super) cut: bool,
    /// The group that it was sent to; 0 if it was sent to this socket alone.
    group: u32,
    /// The sender's port; 0 for the kernel.
    port: u32,
    /// The sender's user, as the kernel attests it.
    user: Option<libc::uid_t>,
}

impl Received {
    /// Whether it comes from the kernel in its own group, or from a process of root in udev's. Any process with
    /// `CAP_NET_ADMIN` in the network namespace can be the latter, so what udev's group carries remains a hint.
    pub(super) fn is_from(&self, group: Group) -> bool {
        self.group == group as u32
            && match group {
                Group::Kernel => self.port == 0,
                Group::Udev => self.user == Some(0),
            }
    }
}

/// Room for the sender's credentials, aligned as `struct cmsghdr` wants it.
#[repr(C, align(8))]
struct Control([MaybeUninit<u8>; 64]);

/// Takes one message. `ENOBUFS` tells once that messages were lost; the kernel then drops what comes until all that was
/// heard before has been taken.
///
/// rustix cannot be used for it: its type for credentials has no room for the process number 0, which the kernel gives as
/// its own, and as that of senders in another pid namespace.
pub(super) fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Received> {
    let mut control = Control([MaybeUninit::uninit(); 64]);
    // SAFETY: all zero is a valid address without a family.
    let mut sender: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: all zero is a valid message without parts.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_name = (&raw mut sender).cast();
    message.msg_namelen = size_of_val(&sender) as libc::socklen_t;
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut control).cast();
    message.msg_controllen = size_of_val(&control);
    // SAFETY: every pointer in the message leads to memory of the length beside it that lives until the call returns.
    let length = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC) };
    let length = usize::try_from(length).map_err(|_| io::Error::last_os_error())?;
    Ok(Received {
        length,
        cut: message.msg_flags & libc::MSG_TRUNC != 0,
        group: sender.nl_groups,
        port: sender.nl_pid,
        user: user(&message),
    })
}

/// The user in the credentials that came with a message.
fn user(message: &libc::msghdr) -> Option<libc::uid_t> {
    // SAFETY: recvmsg(2) has filled in the message, and its control buffer lives.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(message) };
    while !header.is_null() {
        // SAFETY: the kernel writes whole headers, and the buffer is aligned for them.
        let found = unsafe { header.read() };
        if (found.cmsg_level, found.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) {
            // SAFETY: the header is within the buffer.
            let data = unsafe { libc::CMSG_DATA(header) };
            // SAFETY: the data of this type is a `ucred`.
            let credentials = unsafe { data.cast::<libc::ucred>().read_unaligned() };
            return Some(credentials.uid);
        }
        // SAFETY: as for the first.
        header = unsafe { libc::CMSG_NXTHDR(message, header) };
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(group: u32, port: u32, user: Option<u32>) -> Received {
        Received { length: 0, cut: false, group, port, user }
    }

    #[test]
    fn strangers_are_told_from_the_kernel_and_udev() {
        assert!(received(1, 0, Some(0)).is_from(Group::Kernel));
        assert!(!received(1, 4242, Some(0)).is_from(Group::Kernel), "root is not the kernel");
        assert!(!received(2, 0, Some(0)).is_from(Group::Kernel));
        assert!(received(2, 4242, Some(0)).is_from(Group::Udev));
        assert!(!received(2, 4242, Some(1000)).is_from(Group::Udev));
        assert!(!received(2, 4242, None).is_from(Group::Udev));
        assert!(!received(0, 4242, Some(0)).is_from(Group::Udev), "it was sent to this socket alone");
    }
}
