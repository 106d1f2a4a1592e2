//! The rules in the kernel: in a hash map, which has all of them, and in places, where most are found sooner.

use std::{
    collections::{HashMap, VecDeque},
    os::fd::BorrowedFd,
    sync::atomic::AtomicU64,
};

use devgate_abi::{LANES_PER_WORD, Lane, Rule, RuleKey, RulePlace};

use super::{error::EnforcerError, mapped::MappedArray, table::Table};

/// All rules.
pub(super) struct RuleTable {
    map: Table<RuleKey, Rule>,
    index: MappedArray<AtomicU64>,
    places: MappedArray<RulePlace>,
    /// The lanes that are not empty, by number.
    lanes: HashMap<u32, Users>,
    /// Numbers of places; the one that was freed longest ago is taken first, so that a program that still looks at it
    /// finds nothing.
    free: VecDeque<u32>,
}

/// The rules whose keys have a lane in common: that of the first is in the place.
#[derive(Debug)]
struct Users {
    place: u32,
    rules: Vec<(RuleKey, Rule)>,
}

impl RuleTable {
    /// Takes over the rules that are in the map, and gives them places anew, while an earlier agent's program may be
    /// looking for them.
    pub(super) fn new(
        map: Table<RuleKey, Rule>,
        index: MappedArray<AtomicU64>,
        places: MappedArray<RulePlace>,
    ) -> Result<Self, EnforcerError> {
        let free = (1..places.len() as u32).collect();
        let mut table = Self { map, index, places, lanes: HashMap::new(), free };
        // From here on what is not in its place is looked for in the map.
        let used: Vec<u32> = (0..table.lane_count() as u32).filter(|&lane| table.read(lane) != Lane::EMPTY).collect();
        for &lane in &used {
            table.write(lane, Lane::new(table.read(lane).place(), true));
        }
        for (key, rule) in table.map.entries()? {
            table.add(key, rule);
        }
        for lane in used {
            if !table.lanes.contains_key(&lane) {
                table.write(lane, Lane::EMPTY);
            }
        }
        for &place in &table.free {
            let place = &table.places[place as usize];
            if place.key().is_some() {
                place.write(None);
            }
        }
        Ok(table)
    }

    /// How many lanes there are: a power of two.
    pub(super) fn lane_count(&self) -> u64 {
        self.index.len() as u64 * u64::from(LANES_PER_WORD)
    }

    /// Sets the rule of a key. `Ok(false)` if the key is new and the map is full.
    pub(super) fn set(&mut self, key: RuleKey, rule: Rule) -> Result<bool, EnforcerError> {
        let fits = self.map.set(key, rule)?;
        if fits {
            self.add(key, rule);
        }
        Ok(fits)
    }

    /// Removes the rule of a key, if there is one.
    pub(super) fn remove(&mut self, key: RuleKey) -> Result<(), EnforcerError> {
        self.map.remove(key)?;
        let lane = Lane::of(key, self.lane_count());
        let Some(users) = self.lanes.get_mut(&lane) else { return Ok(()) };
        users.rules.retain(|user| user.0 != key);
        let place = users.place;
        let Some(&(next, rule)) = users.rules.first() else {
            self.lanes.remove(&lane);
            self.write(lane, Lane::EMPTY);
            self.places[place as usize].write(None);
            self.free.push_back(place);
            return Ok(());
        };
        let shared = users.rules.len() > 1;
        self.places[place as usize].write(Some((next, rule.to_words())));
        self.write(lane, Lane::new(place, shared));
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

    /// The index itself.
    pub(super) fn index_fd(&self) -> BorrowedFd<'_> {
        self.index.as_fd()
    }

    /// The places themselves.
    pub(super) fn places_fd(&self) -> BorrowedFd<'_> {
        self.places.as_fd()
    }

    /// Makes a rule that is in the map be found sooner, or found as it is now.
    fn add(&mut self, key: RuleKey, rule: Rule) {
        let lane = Lane::of(key, self.lane_count());
        let Some(users) = self.lanes.get_mut(&lane) else {
            // There are as many places as rules.
            let Some(place) = self.free.pop_front() else { return };
            self.lanes.insert(lane, Users { place, rules: vec![(key, rule)] });
            self.places[place as usize].write(Some((key, rule.to_words())));
            self.write(lane, Lane::new(place, false));
            return;
        };
        match users.rules.iter().position(|user| user.0 == key) {
            Some(0) => {
                users.rules[0].1 = rule;
                self.places[users.place as usize].write(Some((key, rule.to_words())));
            }
            Some(other) => users.rules[other].1 = rule,
            None => {
                users.rules.push((key, rule));
                let shared = Lane::new(users.place, true);
                self.write(lane, shared);
            }
        }
    }

    fn read(&self, lane: u32) -> Lane {
        Lane::read(&self.index[(lane / LANES_PER_WORD) as usize], lane)
    }

    fn write(&self, lane: u32, content: Lane) {
        content.write(&self.index[(lane / LANES_PER_WORD) as usize], lane);
    }
}
