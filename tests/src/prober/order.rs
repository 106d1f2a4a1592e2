//! What a test says to its prober, and how.

use std::{
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use devgate_abi::{DeviceKind, DeviceNumber};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType, recv, recvmsg, send, sendmsg, socketpair,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::run::Attempt;

/// Longest message in bytes.
const LONGEST: usize = 1024;

/// One order. Each is answered by a number: 0 or an error number, unless it says otherwise. Names are of nodes in the
/// folder of nodes.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Order {
    Open {
        name: String,
        flags: i32,
    },
    Access {
        name: String,
        mode: i32,
    },
    MakeNode {
        device: u64,
    },
    Watch {
        name: String,
    },
    Stat {
        name: String,
    },
    /// Answered by an error number or [`Answer::of_device`](super::Answer::of_device).
    Which {
        name: String,
    },
    /// Answered by a descriptor or a negative error number.
    Hold {
        name: String,
        flags: i32,
    },
    Reopen {
        fd: i32,
        flags: i32,
    },
    Read {
        fd: i32,
    },
    Write {
        fd: i32,
    },
    Close {
        fd: i32,
    },
    /// Its answers are in the shared memory.
    Survey {
        first: u64,
        count: u32,
    },
    /// Answered when it has been stopped, or has come to its end after `times` unless that is 0.
    Run {
        name: String,
        attempt: Attempt,
        times: u64,
    },
}

/// Devices whose minor numbers follow each other.
pub(super) fn following(first: DeviceNumber, count: u32) -> impl Iterator<Item = DeviceNumber> {
    let number = move |minor| {
        let kind = if first.is_block() { DeviceKind::Block } else { DeviceKind::Char };
        DeviceNumber::new(kind, first.major(), minor).expect("the last minor is in range")
    };
    (first.minor()..first.minor() + count).map(number)
}

/// One end of a connection that keeps messages apart.
#[derive(Debug)]
pub(super) struct Line(OwnedFd);

impl Line {
    /// Our end and theirs.
    pub(super) fn pair() -> io::Result<(Self, OwnedFd)> {
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        Ok((Self(ours), theirs))
    }

    /// The end that is there already.
    pub(super) fn of(fd: OwnedFd) -> Self {
        Self(fd)
    }

    pub(super) fn send(&self, message: &impl Serialize) -> io::Result<()> {
        let text = serde_json::to_vec(message)?;
        assert!(text.len() <= LONGEST, "a message is too long");
        send(&self.0, &text, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// The next message; `None` if the other end is closed.
    pub(super) fn receive<T: DeserializeOwned>(&self) -> io::Result<Option<T>> {
        let mut text = [0; LONGEST];
        loop {
            match recv(&self.0, &mut text[..], RecvFlags::empty()) {
                Err(rustix::io::Errno::INTR) => {}
                Ok((0, _)) | Err(rustix::io::Errno::CONNRESET) => return Ok(None),
                Err(error) => return Err(error.into()),
                Ok((length, _)) => return Ok(Some(serde_json::from_slice(&text[..length])?)),
            }
        }
    }

    pub(super) fn send_fds(&self, fds: [BorrowedFd<'_>; 2]) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&fds)), "there is room for two descriptors");
        sendmsg(&self.0, &[IoSlice::new(b"fds")], &mut ancillary, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    pub(super) fn receive_fds(&self) -> io::Result<[OwnedFd; 2]> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut text = [0; 8];
        recvmsg(self.0.as_fd(), &mut [IoSliceMut::new(&mut text)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
        let fds = ancillary.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(fds) => Some(fds),
            _ => None,
        });
        let fds: Vec<OwnedFd> = fds.flatten().collect();
        fds.try_into().map_err(|_| io::Error::other("two descriptors were expected"))
    }
}
