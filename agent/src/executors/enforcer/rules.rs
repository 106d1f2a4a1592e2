//! The rules in the kernel: in a hash map, which has all of them, and in their places, where most are found sooner.

use std::{collections::HashMap, os::fd::BorrowedFd};

use devgate_abi::{Rule, RuleKey, RulePlace};

use super::{error::EnforcerError, mapped::MappedArray, table::Table};

/// All rules.
pub(super) struct RuleTable {
    map: Table<RuleKey, Rule>,
    places: MappedArray<RulePlace>,
    /// The rules whose place it is, for each place that has some.
    users: HashMap<u32, Vec<(RuleKey, Rule)>>,
}

impl RuleTable {
    /// Takes over the rules that are in the map, and puts the places in order. An earlier agent's program may be reading
    /// them.
    pub(super) fn new(map: Table<RuleKey, Rule>, places: MappedArray<RulePlace>) -> Result<Self, EnforcerError> {
        let mut table = Self { map, places, users: HashMap::new() };
        for (key, rule) in table.map.entries()? {
            table.users.entry(table.place_of(key)).or_default().push((key, rule));
        }
        for (index, place) in table.places.iter().enumerate() {
            match table.users.get(&(index as u32)) {
                Some(users) => place.write(Some(users[0]), users.len() > 1),
                // Not written without need: a page that is never touched is not mapped.
                None if place.is_clear() => {}
                None => place.write(None, false),
            }
        }
        Ok(table)
    }

    /// How many places there are: a power of two.
    pub(super) fn place_count(&self) -> u64 {
        self.places.len() as u64
    }

    /// Sets the rule of a key. `Ok(false)` if the key is new and the map is full.
    pub(super) fn set(&mut self, key: RuleKey, rule: Rule) -> Result<bool, EnforcerError> {
        if !self.map.set(key, rule)? {
            return Ok(false);
        }
        let index = self.place_of(key);
        let (place, users) = (&self.places[index as usize], self.users.entry(index).or_default());
        match users.iter_mut().find(|user| user.0 == key) {
            Some(user) => user.1 = rule,
            None => users.push((key, rule)),
        }
        match place.key() {
            Some(other) if other != key => place.set_shared(true),
            _ => place.write(Some((key, rule)), users.len() > 1),
        }
        Ok(true)
    }

    /// Removes the rule of a key, if there is one.
    pub(super) fn remove(&mut self, key: RuleKey) -> Result<(), EnforcerError> {
        self.map.remove(key)?;
        let index = self.place_of(key);
        let Some(users) = self.users.get_mut(&index) else { return Ok(()) };
        users.retain(|user| user.0 != key);
        let (place, shared) = (&self.places[index as usize], users.len() > 1);
        if place.key() == Some(key) {
            place.write(users.first().copied(), shared);
        } else {
            place.set_shared(shared);
        }
        if users.is_empty() {
            self.users.remove(&index);
        }
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

    /// The array of places itself.
    pub(super) fn places_fd(&self) -> BorrowedFd<'_> {
        self.places.as_fd()
    }

    fn place_of(&self, key: RuleKey) -> u32 {
        key.place(self.place_count())
    }
}
