//! Reads the audit records of the kernel programs.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::atomic::Ordering::{Relaxed, SeqCst},
};

use aya::maps::{Map, MapData, RingBuf};
use devgate_abi::{ContainerSlot, Record, State, map};

use super::{error::EnforcerError, mapped::MappedArray};

/// The one reader of the ring buffer.
///
/// The kernel wakes it only after [`sleep`](Self::sleep); while it reads, records cost no wake-up. Its descriptor
/// becomes readable when there are records.
pub struct AuditReader {
    ring: RingBuf<MapData>,
    fd: OwnedFd,
    state: MappedArray<State>,
    containers: MappedArray<ContainerSlot>,
}

/// How many records of one container were not written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// The cgroup; 0 for what belongs to no managed cgroup.
    pub cgroup: u64,
    /// Kept back by the container's rate limit.
    pub limited: u64,
    /// Because the ring buffer was full.
    pub lost: u64,
}

impl AuditReader {
    pub(super) fn new(
        ring: BorrowedFd<'_>,
        state: BorrowedFd<'_>,
        containers: BorrowedFd<'_>,
    ) -> Result<Self, EnforcerError> {
        let fd = ring.try_clone_to_owned().map_err(EnforcerError::call("dup"))?;
        let wrong = |error| EnforcerError::Map(map::AUDIT, error);
        let data = ring.try_clone_to_owned().map_err(EnforcerError::call("dup"))?;
        let data = Map::from_map_data(MapData::from_fd(data).map_err(wrong)?).map_err(wrong)?;
        let ring = RingBuf::try_from(data).map_err(wrong)?;
        let state = MappedArray::new(state).map_err(EnforcerError::call("mapping an array"))?;
        let containers = MappedArray::new(containers).map_err(EnforcerError::call("mapping an array"))?;
        Ok(Self { ring, fd, state, containers })
    }

    /// Calls `each` with every record that is there, in the order in which they were reserved. Nothing is allocated.
    /// Records that are shorter than this version's are left out; of longer ones the beginning is read. Returns how many
    /// there were.
    pub fn drain(&mut self, mut each: impl FnMut(&Record)) -> usize {
        let mut count = 0;
        while let Some(item) = self.ring.next() {
            if let Some(record) = read(&item) {
                each(&record);
                count += 1;
            }
        }
        count
    }

    /// What was not written since the containers are managed: for each that is, and for all else together.
    pub fn losses(&self) -> impl Iterator<Item = Losses> + '_ {
        let used = self.state[0].containers.load(Relaxed).max(1) as usize;
        self.containers.iter().take(used).enumerate().filter_map(|(index, slot)| {
            let losses = Losses {
                cgroup: slot.cgroup.load(Relaxed),
                limited: slot.limited.load(Relaxed),
                lost: slot.lost.load(Relaxed),
            };
            (index == 0 || losses.cgroup != 0).then_some(losses)
        })
    }

    /// Announces that the reader is about to wait. Drain once more afterwards: a record that was written just before is
    /// not announced.
    pub fn sleep(&self) {
        self.state[0].reader_asleep.store(1, SeqCst);
    }

    /// Announces that the reader is awake, if nothing woke it.
    pub fn wake(&self) {
        self.state[0].reader_asleep.store(0, SeqCst);
    }
}

impl AsFd for AuditReader {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn read(bytes: &[u8]) -> Option<Record> {
    let bytes = bytes.get(..size_of::<Record>())?;
    // SAFETY: there are enough bytes, at any alignment, and a plain type is valid for every pattern of bits.
    Some(unsafe { bytes.as_ptr().cast::<Record>().read_unaligned() })
}
