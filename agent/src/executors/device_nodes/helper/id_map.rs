//! The ids of a user namespace and what they are on the host.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;

use rustix::fs::{Mode, OFlags, openat};

/// Both maps of one user namespace.
#[derive(Debug)]
pub(super) struct IdMaps {
    pub users: IdMap,
    pub groups: IdMap,
}

/// What `uid_map` or `gid_map` says: ranges of ids in the namespace, and where they begin on the host.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct IdMap(Vec<Range>);

#[derive(Debug, PartialEq, Eq)]
struct Range {
    inside: u32,
    host: u32,
    count: u32,
}

impl IdMaps {
    /// Reads the maps of a process; `process` is its directory in a procfs of the host.
    pub(super) fn read(process: impl AsFd) -> io::Result<Self> {
        let read = |name: &str| -> io::Result<IdMap> {
            let file = openat(&process, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
            let mut text = String::with_capacity(1 << 10);
            // The kernel admits 340 ranges, none longer than 34 bytes.
            File::from(file).take(1 << 16).read_to_string(&mut text)?;
            IdMap::parse(&text).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
        };
        Ok(Self { users: read("uid_map")?, groups: read("gid_map")? })
    }
}

impl IdMap {
    fn parse(text: &str) -> Option<Self> {
        let range = |line: &str| {
            let mut numbers = line.split_ascii_whitespace().map(str::parse::<u32>);
            let mut next = || numbers.next()?.ok();
            Some(Range { inside: next()?, host: next()?, count: next()? })
        };
        text.lines().map(range).collect::<Option<_>>().map(Self)
    }

    /// The host's id for an id inside, if there is one.
    pub(super) fn to_host(&self, id: u32) -> Option<u32> {
        let range =
            self.0.iter().find(|range| id.checked_sub(range.inside).is_some_and(|offset| offset < range.count))?;
        range.host.checked_add(id - range.inside)
    }

    /// The id to act as inside: 0 where there is one, or else the lowest.
    pub(super) fn root(&self) -> Option<u32> {
        self.0.iter().map(|range| range.inside).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_mapped_by_their_range() {
        let map = IdMap::parse("         0     100000      1000\n      5000       5000          1\n").expect("a map");
        assert_eq!(
            [0, 999, 1000, 5000, 5001].map(|id| map.to_host(id)),
            [Some(100_000), Some(100_999), None, Some(5000), None]
        );
        assert_eq!(map.root(), Some(0));
        assert_eq!(IdMap::parse("0 0 4294967295\n").expect("a map").to_host(u32::MAX - 1), Some(u32::MAX - 1));
        assert_eq!(IdMap::parse("1000 0 1\n").expect("a map").root(), Some(1000));
        assert_eq!(IdMap::parse("0 x 1\n"), None);
    }
}
