//! Messages that carry open files (`SCM_RIGHTS`, `unix(7)`).

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};

/// No message carries more.
const MOST: usize = 2;

/// Sends one message, without waiting for room and without a signal if nobody is there to read it.
pub(super) fn send(socket: impl AsFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let sent = sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
    if sent == bytes.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

/// Receives one message and its open files. It has no bytes when the other end has been closed.
pub(super) fn receive(socket: impl AsFd, bytes: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::io::retry_on_intr(|| {
        recvmsg(&socket, &mut [IoSliceMut::new(bytes)], &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(files) = message {
            descriptors.extend(files);
        }
    }
    Ok((received.bytes, descriptors))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use rustix::fs::fstat;

    use super::*;

    #[test]
    fn a_message_brings_its_bytes_and_files_and_then_the_end() -> io::Result<()> {
        let (ours, theirs) = UnixStream::pair()?;
        let file = tempfile()?;
        send(&ours, b"two", &[file.as_fd(), ours.as_fd()])?;
        let mut bytes = [0; 8];
        let (length, received) = receive(&theirs, &mut bytes)?;
        assert_eq!((&bytes[..length], received.len()), (&b"two"[..], 2));
        assert_eq!(fstat(&received[0])?.st_ino, fstat(&file)?.st_ino);
        drop((ours, received));
        assert_eq!(receive(&theirs, &mut bytes)?.0, 0);
        Ok(())
    }

    #[test]
    fn nobody_is_waited_for() -> io::Result<()> {
        let (ours, theirs) = UnixStream::pair()?;
        while send(&ours, &[0; 4096], &[]).is_ok() {}
        drop(theirs);
        assert_eq!(send(&ours, b"x", &[]).map_err(|error| error.kind()), Err(io::ErrorKind::BrokenPipe));
        Ok(())
    }

    fn tempfile() -> io::Result<OwnedFd> {
        Ok(rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC)?)
    }
}
