//! The rules in the kernel: in a hash map, which has all of them, and in places, where most are found sooner.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::atomic::{AtomicU64, Ordering::Release},
};

use devgate_abi::{Rule, RuleKey, RulePlace};

use super::{error::EnforcerError, mapped::MappedArray, places::Places, table::Table};

/// All rules.
pub(super) struct RuleTable {
    map: Table<RuleKey, Rule>,
    /// The array of the places. It is large, so a place is mapped only for a change.
    array: OwnedFd,
    places: Places,
}

impl RuleTable {
    /// Takes over the rules that are in the map, while an earlier agent's program may be looking for them.
    pub(super) fn new(map: Table<RuleKey, Rule>, array: OwnedFd) -> Result<Self, EnforcerError> {
        let mapped = MappedArray::new(array.as_fd()).map_err(EnforcerError::call(MAPPING))?;
        let places = Places::new(&mapped, map.entries()?, &mut put);
        Ok(Self { map, array, places })
    }

    /// How many places there are: a power of two.
    pub(super) fn place_count(&self) -> u64 {
        self.places.count() as u64
    }

    /// Sets the rule of a key. `Ok(false)` if the key is new and the map is full.
    pub(super) fn set(&mut self, key: RuleKey, rule: Rule) -> Result<bool, EnforcerError> {
        let place = self.place(key)?;
        let fits = self.map.set(key, rule)?;
        if fits {
            self.places.set(key, rule, &place[0], &mut put);
        }
        Ok(fits)
    }

    /// Removes the rule of a key, if there is one.
    pub(super) fn remove(&mut self, key: RuleKey) -> Result<(), EnforcerError> {
        let place = self.place(key)?;
        self.map.remove(key)?;
        self.places.remove(key, &place[0], &mut put);
        Ok(())
    }

    /// All rules, as they are in the map.
    pub(super) fn entries(&self) -> Result<Vec<(RuleKey, Rule)>, EnforcerError> {
        self.map.entries()
    }

    /// The hash map itself.
    pub(super) fn map_fd(&self) -> BorrowedFd<'_> {
        self.map.as_fd()
    }

    /// The places themselves.
    pub(super) fn places_fd(&self) -> BorrowedFd<'_> {
        self.array.as_fd()
    }

    /// The place of a key. It comes before any change of the map: what can fail has not failed then.
    fn place(&self, key: RuleKey) -> Result<MappedArray<RulePlace>, EnforcerError> {
        let number = self.places.number(key) as usize;
        MappedArray::element(self.array.as_fd(), number).map_err(EnforcerError::call(MAPPING))
    }
}

const MAPPING: &str = "mapping an array";

/// Stores a word of a place.
fn put(word: &AtomicU64, value: u64) {
    word.store(value, Release);
}
