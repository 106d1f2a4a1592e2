//! Tells whether the udev database speaks of the device that is there.
//!
//! udev keeps what it knows under the device's *number*. When a device leaves and the next one gets its number at once, the
//! kernel has the new one in sysfs while the database still has the old one's properties, serial number and all, until udev
//! has handled both events. Who reads at that moment would take the new device for the old one, and grant it.
//!
//! sysfs itself tells them apart: the inode number of a device's folder is given to no other folder until the next boot. If
//! it is new and the database says the same as before, the database is stale, until udev says that it has handled something
//! of this number that came after the removal. (That may leave `USEC_INITIALIZED` as it was: udev takes it over when it finds
//! an entry that it had no time to delete.)
//!
//! Who sees a number for the first time has nothing to compare with. Then the times tell: the kernel makes a device's node
//! before udev hears of the device, so an entry that was written before the node was made is another device's.

use std::collections::HashMap;

use devgate_core::{DevPath, DeviceNumber};

/// What is known of the stay of each number's device.
#[derive(Debug, Default)]
pub(super) struct Stays(HashMap<DeviceNumber, Stay>);

#[derive(Debug)]
struct Stay {
    devpath: DevPath,
    /// The folder's number in sysfs, and what the database said with it.
    inode: u64,
    initialized_usec: Option<u64>,
    /// What the database says is of a device that has left.
    stale: bool,
    /// The kernel's count of uevents when a device of this number was removed last.
    removed: u64,
    /// The same count of the last event of this number that udev has handled.
    handled: u64,
}

impl Stays {
    /// The kernel has removed a device.
    pub(super) fn removed(&mut self, number: DeviceNumber, sequence: u64) {
        if let Some(stay) = self.0.get_mut(&number) {
            stay.removed = stay.removed.max(sequence);
        }
    }

    /// udev has handled an event that leaves the device there.
    pub(super) fn handled(&mut self, number: DeviceNumber, sequence: u64) {
        if let Some(stay) = self.0.get_mut(&number) {
            stay.handled = stay.handled.max(sequence);
            stay.stale &= stay.handled <= stay.removed;
        }
    }

    /// Removals may have been lost: what udev has handled before says nothing any more.
    pub(super) fn events_lost(&mut self) {
        for stay in self.0.values_mut() {
            stay.removed = stay.removed.max(stay.handled);
        }
    }

    /// Whether what the database says, of which `initialized_usec` is the part that tells, is of the device that is there
    /// now, whose folder in sysfs has this inode number. `outdated` tells that the entry was written before the node was made.
    pub(super) fn is_current(
        &mut self,
        number: DeviceNumber,
        devpath: &DevPath,
        inode: u64,
        initialized_usec: Option<u64>,
        outdated: bool,
    ) -> bool {
        // Times count at first sight alone: a clock that was set back lets every later entry look older than its node.
        let stale = outdated;
        let fresh = Stay { devpath: devpath.clone(), inode, initialized_usec, stale, removed: 0, handled: 0 };
        let stay = self.0.entry(number).or_insert(fresh);
        let same_entry = stay.initialized_usec == initialized_usec && initialized_usec.is_some();
        if !same_entry {
            stay.stale = false;
        } else if stay.inode != inode {
            stay.stale = stay.handled <= stay.removed;
        }
        (stay.inode, stay.initialized_usec) = (inode, initialized_usec);
        stay.devpath.clone_from(devpath);
        !stay.stale
    }

    /// The devices below a folder in sysfs that was moved, and where they are now. The kernel says nothing of them.
    pub(super) fn moved_with(&mut self, from: &DevPath, to: &DevPath) -> Vec<(DevPath, DevPath)> {
        let mut moved = Vec::new();
        for stay in self.0.values_mut() {
            let below = stay.devpath.as_str().strip_prefix(from.as_str()).filter(|below| below.starts_with('/'));
            if let Some(below) = below {
                let new = DevPath::from(format!("{to}{below}").as_str());
                moved.push((std::mem::replace(&mut stay.devpath, new.clone()), new));
            }
        }
        moved.sort();
        moved
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NUMBER: DeviceNumber = DeviceNumber::char(188, 0);

    struct Reader(Stays);

    impl Reader {
        fn reads(&mut self, inode: u64, usec: u64) -> bool {
            self.0.is_current(NUMBER, &"/devices/a".into(), inode, Some(usec), false)
        }
    }

    #[test]
    fn a_device_that_stays_is_current() {
        let mut reader = Reader(Stays::default());
        assert!(reader.reads(1, 100));
        assert!(reader.reads(1, 100));
        assert!(reader.reads(1, 200), "udev may start its database anew");
    }

    #[test]
    fn an_entry_of_the_device_before_is_stale_until_udev_writes_another() {
        let mut reader = Reader(Stays::default());
        assert!(reader.reads(1, 100));
        reader.0.handled(NUMBER, 5);
        reader.0.removed(NUMBER, 7);
        assert!(!reader.reads(2, 100));
        assert!(!reader.reads(2, 100), "reading again changes nothing");
        reader.0.handled(NUMBER, 6);
        assert!(!reader.reads(2, 100), "an event of the device before, handled late");
        assert!(reader.reads(2, 300));
    }

    #[test]
    fn an_entry_that_udev_takes_over_is_current_once_it_says_so() {
        let mut reader = Reader(Stays::default());
        assert!(reader.reads(1, 100));
        reader.0.removed(NUMBER, 7);
        assert!(!reader.reads(2, 100));
        reader.0.handled(NUMBER, 8);
        assert!(reader.reads(2, 100));
        // The same if udev was quicker than the reader.
        reader.0.removed(NUMBER, 17);
        reader.0.handled(NUMBER, 18);
        assert!(reader.reads(3, 100));
    }

    #[test]
    fn a_removal_that_was_lost_makes_nothing_current() {
        let mut reader = Reader(Stays::default());
        assert!(reader.reads(1, 100));
        reader.0.handled(NUMBER, 5);
        reader.0.events_lost();
        assert!(!reader.reads(2, 100));
        reader.0.handled(NUMBER, 9);
        assert!(reader.reads(2, 100));
    }

    #[test]
    fn an_entry_older_than_the_node_is_stale_until_udev_has_handled_something() {
        let mut stays = Stays::default();
        let reads = |stays: &mut Stays, outdated| stays.is_current(NUMBER, &"/devices/a".into(), 1, Some(1), outdated);
        assert!(!reads(&mut stays, true));
        assert!(!reads(&mut stays, true));
        stays.handled(NUMBER, 5);
        assert!(reads(&mut stays, true), "a clock that was set back says nothing any more");
    }

    #[test]
    fn devices_move_with_the_folder_that_they_are_in() {
        let mut reader = Reader(Stays::default());
        reader.0.is_current(NUMBER, &"/devices/net/a/tap3".into(), 1, None, false);
        reader.0.is_current(DeviceNumber::char(188, 1), &"/devices/net/ab/tap4".into(), 2, None, false);
        let moved = reader.0.moved_with(&"/devices/net/a".into(), &"/devices/net/b".into());
        assert_eq!(moved, [("/devices/net/a/tap3".into(), "/devices/net/b/tap3".into())]);
    }
}
