//! Reading `/proc/<pid>/mountinfo` (`proc_pid_mountinfo(5)`) line by line: a container can make it very long.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::os::fd::AsFd;

use rustix::fs::{Mode, OFlags, openat};

use crate::executors::device_nodes::SOURCE;
use crate::executors::device_nodes::change::NodeTag;

/// One mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mount {
    pub id: u64,
    /// `major:minor` of the superblock.
    pub superblock: String,
    /// What of the file system is mounted.
    pub root: Vec<u8>,
    /// Where, seen from the reader's root directory.
    pub point: Vec<u8>,
    /// The peer group to which mounts made here spread.
    pub shared: Option<u64>,
    pub fs_type: String,
    pub source: Vec<u8>,
}

impl Mount {
    /// The tag, if this looks like a node of ours. A container that may mount can make something that looks the same.
    pub(super) fn tag(&self) -> Option<NodeTag> {
        if self.fs_type != "tmpfs" || self.source != SOURCE.as_bytes() {
            return None;
        }
        let root = std::str::from_utf8(&self.root).ok()?;
        let (index, tag) = root.strip_prefix('/')?.split_once('/')?;
        index.parse::<u32>().ok()?;
        NodeTag::try_from(tag.to_owned()).ok()
    }
}

/// The mounts of the namespace that the process `process` (a directory in procfs) is in when this is called.
pub(super) fn read(process: impl AsFd) -> io::Result<impl Iterator<Item = io::Result<Mount>>> {
    let file = openat(process, "mountinfo", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    Ok(mounts(File::from(file)))
}

/// The mounts in an open mountinfo file.
pub(super) fn mounts(file: File) -> impl Iterator<Item = io::Result<Mount>> {
    with_buffer(1 << 13, file)
}

/// The first mount in an open mountinfo file. The kernel writes no more of the table than is asked for.
pub(super) fn first(file: File) -> io::Result<Option<Mount>> {
    with_buffer(1 << 7, file).next().transpose()
}

fn with_buffer(size: usize, file: File) -> impl Iterator<Item = io::Result<Mount>> {
    let lines = BufReader::with_capacity(size, file).split(b'\n');
    lines.map(|line| parse(&line?).ok_or_else(|| io::ErrorKind::InvalidData.into()))
}

fn parse(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|byte| *byte == b' ');
    let text = |field: &[u8]| std::str::from_utf8(field).ok().map(str::to_owned);
    let id = text(fields.next()?)?.parse().ok()?;
    let superblock = text(fields.nth(1)?)?;
    let root = unescape(fields.next()?);
    let point = unescape(fields.next()?);
    fields.next()?;
    let mut shared = None;
    loop {
        let field = fields.next()?;
        if field == b"-" {
            break;
        }
        if let Some(group) = field.strip_prefix(b"shared:") {
            shared = Some(text(group)?.parse().ok()?);
        }
    }
    let fs_type = text(fields.next()?)?;
    let source = unescape(fields.next()?);
    Some(Mount { id, superblock, root, point, shared, fs_type, source })
}

/// Space, tab, newline and backslash are written as three octal digits.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, after)) = rest.split_first() {
        let octal = after.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(value) if byte == b'\\' => {
                plain.push(value);
                rest = &after[3..];
            }
            _ => {
                plain.push(byte);
                rest = after;
            }
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_found() {
        let line = b"62 60 0:41 /0/usb-1+2 /dev/a\\040b\\134 rw,nosuid shared:7 master:3 - tmpfs devgate rw,size=4k";
        let mount = parse(line).expect("a mount");
        assert_eq!(
            (mount.id, mount.superblock.as_str(), mount.point.as_slice(), mount.shared),
            (62, "0:41", &b"/dev/a b\\"[..], Some(7))
        );
        assert_eq!(mount.tag().expect("a tag").as_str(), "usb-1+2");
    }

    #[test]
    fn what_is_not_ours_has_no_tag() {
        for line in [
            "1 0 0:1 /0/x /dev/x rw - tmpfs tmpfs rw",
            "1 0 0:1 /0/x /dev/x rw - ext4 devgate rw",
            "1 0 0:1 / /dev/x rw - tmpfs devgate rw",
            "1 0 0:1 /x/y /dev/x rw - tmpfs devgate rw",
            "1 0 0:1 /0/x//deleted /dev/x rw - tmpfs devgate rw",
        ] {
            assert_eq!(parse(line.as_bytes()).expect("a mount").tag(), None, "{line}");
        }
        assert_eq!(parse(b"1 0 0:1 / /dev rw shared:1"), None);
    }
}
