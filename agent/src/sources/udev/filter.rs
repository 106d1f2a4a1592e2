//! Filters of the sockets in the kernel, so that what concerns nobody does not wake the agent.
//!
//! They are classic socket filters (socket(7), `SO_ATTACH_FILTER`), which any kernel has. What passes is judged again.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::message::{MAGIC, MAGIC_OFFSET, SUBSYSTEM_HASH_OFFSET};

// Instructions of linux/bpf_common.h, with the numbers of linux/filter.h.
const LOAD_WORD: u16 = 0x20;
const JUMP_IF_EQUAL: u16 = 0x15;
const RETURN: u16 = 0x06;
const PASS: u32 = u32::MAX;
const DROP: u32 = 0;

/// A jump has eight bits for the distance.
const MAX_SUBSYSTEMS: usize = 200;

/// A filter for one socket.
#[derive(Clone, Debug)]
pub(super) struct Filter(Vec<libc::sock_filter>);

impl Filter {
    /// For the kernel's group: only the actions that are taken from it, told by their first four letters.
    pub(super) fn of_removals() -> Self {
        let words = [b"remo", b"offl", b"move"].map(|word| u32::from_be_bytes(*word));
        Self(any_of(0, &words))
    }

    /// For udev's group: only these subsystems; all if `None`. A message of another form passes, so that it is noticed.
    pub(super) fn of_subsystems(subsystems: Option<&BTreeSet<String>>) -> Self {
        let Some(subsystems) = subsystems.filter(|subsystems| subsystems.len() <= MAX_SUBSYSTEMS) else {
            return Self(vec![instruction(RETURN, PASS)]);
        };
        let hashes: Vec<_> = subsystems.iter().map(|subsystem| subsystem_hash(subsystem)).collect();
        let mut program = vec![
            instruction(LOAD_WORD, MAGIC_OFFSET),
            libc::sock_filter { code: JUMP_IF_EQUAL, jt: 1, jf: 0, k: MAGIC },
            instruction(RETURN, PASS),
        ];
        program.extend(any_of(SUBSYSTEM_HASH_OFFSET, &hashes));
        Self(program)
    }

    /// Puts the filter in the place of the one before, if there was one.
    pub(super) fn attach(&mut self, socket: BorrowedFd<'_>) -> io::Result<()> {
        let program = libc::sock_fprog { len: self.0.len() as u16, filter: self.0.as_mut_ptr() };
        // SAFETY: the option's value is a `sock_fprog` that says truly how many instructions there are, and where; the
        // kernel copies them (socket(7)).
        let result = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_ATTACH_FILTER,
                (&raw const program).cast(),
                size_of_val(&program) as libc::socklen_t,
            )
        };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

/// Passes messages with one of these words, in network byte order, at an offset.
fn any_of(offset: u32, words: &[u32]) -> Vec<libc::sock_filter> {
    let mut program = vec![instruction(LOAD_WORD, offset)];
    for (index, word) in words.iter().enumerate() {
        // Over the comparisons that are left and the return that drops.
        let distance = words.len() - index;
        program.push(libc::sock_filter { code: JUMP_IF_EQUAL, jt: distance as u8, jf: 0, k: *word });
    }
    program.extend([instruction(RETURN, DROP), instruction(RETURN, PASS)]);
    program
}

fn instruction(code: u16, k: u32) -> libc::sock_filter {
    libc::sock_filter { code, jt: 0, jf: 0, k }
}

/// The hash of a subsystem's name in the header of udev's messages: `MurmurHash2` with the seed 0.
pub fn subsystem_hash(name: &str) -> u32 {
    const FACTOR: u32 = 0x5bd1_e995;
    let mut hash = name.len() as u32;
    let (words, rest) = name.as_bytes().as_chunks::<4>();
    for word in words {
        let mut mixed = u32::from_le_bytes(*word).wrapping_mul(FACTOR);
        mixed = (mixed ^ mixed >> 24).wrapping_mul(FACTOR);
        hash = hash.wrapping_mul(FACTOR) ^ mixed;
    }
    if !rest.is_empty() {
        hash ^= rest.iter().rev().fold(0, |bits, byte| bits << 8 | u32::from(*byte));
        hash = hash.wrapping_mul(FACTOR);
    }
    hash = (hash ^ hash >> 13).wrapping_mul(FACTOR);
    hash ^ hash >> 15
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixDatagram;

    use super::super::message::tests::udev_message;
    use super::*;

    /// Sends messages through a filter and returns those that pass. Any socket has such filters.
    fn pass(mut filter: Filter, messages: &[&[u8]]) -> Vec<Vec<u8>> {
        let (sender, receiver) = UnixDatagram::pair().expect("two sockets");
        receiver.set_nonblocking(true).expect("a socket");
        filter.attach(receiver.as_fd()).expect("a filter that the kernel takes");
        let mut buffer = [0; 1024];
        let mut passed = Vec::new();
        for message in messages {
            // A stream of datagrams refuses what the filter drops in some kernels, and swallows it in others.
            let _ = sender.send(message);
            while let Ok(length) = receiver.recv(&mut buffer) {
                passed.push(buffer[..length].to_vec());
            }
        }
        passed
    }

    #[test]
    fn only_removals_are_heard_from_the_kernel() {
        let messages: [&[u8]; 7] =
            [b"add@/d", b"remove@/d", b"change@/d", b"bind@/d", b"move@/d", b"offline@/d", b"online@/d"];
        assert_eq!(pass(Filter::of_removals(), &messages), [&b"remove@/d"[..], b"move@/d", b"offline@/d"]);
    }

    #[test]
    fn only_the_subsystems_asked_for_are_heard_from_udev() {
        let (tty, net, usb) = (udev_message("tty", ""), udev_message("net", ""), udev_message("usb", ""));
        let other = b"something that is not libudev's, as long as its header is".as_slice();
        let messages = [&tty[..], &net, &usb, other];
        let asked = BTreeSet::from(["tty".to_owned(), "usb".to_owned()]);
        assert_eq!(pass(Filter::of_subsystems(Some(&asked)), &messages), [&tty[..], &usb, other]);
        assert_eq!(pass(Filter::of_subsystems(Some(&BTreeSet::new())), &messages), [other]);
        assert_eq!(pass(Filter::of_subsystems(None), &messages).len(), 4);
    }
}
