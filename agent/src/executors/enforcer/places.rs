//! The rules in their places, where the kernel program looks for them first.

use std::{collections::HashMap, sync::atomic::AtomicU64};

use devgate_abi::{Rule, RuleKey, RulePlace};

/// Which rule is in which place.
///
/// Every change takes a function that stores a word, so that it is seen before the next one. A reader may look after any of
/// them, and the process may end: what a place says is then what was there before, or is there afterwards, or that the hash
/// map has to be asked, which is always changed first.
pub(super) struct Places {
    /// How many places there are: a power of two.
    count: usize,
    /// The rules that belong to each place that is not empty, by its number. The first one is in it.
    rules: HashMap<u32, Vec<(RuleKey, Rule)>>,
}

impl Places {
    /// Gives all rules their places. Whatever an agent that was killed left there goes.
    pub(super) fn new(
        array: &[RulePlace],
        rules: impl IntoIterator<Item = (RuleKey, Rule)>,
        put: &mut impl FnMut(&AtomicU64, u64),
    ) -> Self {
        let mut places = Self { count: array.len(), rules: HashMap::new() };
        for (key, rule) in rules {
            places.rules.entry(places.number(key)).or_default().push((key, rule));
        }
        for (number, place) in (0..).zip(array) {
            if places.rules.contains_key(&number) || !place.is_empty() {
                places.write(number, place, put);
            }
        }
        places
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// The number of a key's place.
    pub(super) fn number(&self, key: RuleKey) -> u32 {
        RulePlace::of(key, self.count as u64)
    }

    /// Sets the rule of a key, which is in the hash map already. `place` is the key's.
    pub(super) fn set(&mut self, key: RuleKey, rule: Rule, place: &RulePlace, put: &mut impl FnMut(&AtomicU64, u64)) {
        let number = self.number(key);
        let rules = self.rules.entry(number).or_default();
        match rules.iter_mut().find(|(other, _)| *other == key) {
            Some((_, old)) => *old = rule,
            None => rules.push((key, rule)),
        }
        self.write(number, place, put);
    }

    /// Removes the rule of a key, which is in the hash map no more. `place` is the key's.
    pub(super) fn remove(&mut self, key: RuleKey, place: &RulePlace, put: &mut impl FnMut(&AtomicU64, u64)) {
        let number = self.number(key);
        let Some(rules) = self.rules.get_mut(&number) else { return };
        rules.retain(|(other, _)| *other != key);
        if rules.is_empty() {
            self.rules.remove(&number);
        }
        self.write(number, place, put);
    }

    fn write(&self, number: u32, place: &RulePlace, put: &mut impl FnMut(&AtomicU64, u64)) {
        let rules = self.rules.get(&number).map_or(&[][..], |rules| rules);
        let first = rules.first().map(|(key, rule)| (*key, rule.to_words()));
        for (word, value) in place.stores(first, rules.len() > 1) {
            put(word, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use devgate_abi::{DeviceNumber, PlaceAnswer};

    use super::*;

    type Map = HashMap<RuleKey, Rule>;

    /// So few places that keys have to share them.
    const PLACES: usize = 2;
    const KEYS: u32 = 5;
    const STORES: usize = 9;

    /// A change: the rule with this id, or none, for the key with this number.
    #[derive(Clone, Copy, Debug)]
    struct Change {
        key: u32,
        rule: Option<u64>,
    }

    fn key(number: u32) -> RuleKey {
        RuleKey { cgroup: u64::from(number) + 1, device: DeviceNumber::char(240, number) }
    }

    fn rule(id: u64) -> Rule {
        Rule { epoch: id, expires_at: id, rule_id: id, generation: id as u32, ..Rule::default() }
    }

    /// What the kernel program finds.
    fn find(array: &[RulePlace], map: &Map, key: RuleKey) -> Option<Rule> {
        match array[RulePlace::of(key, array.len() as u64) as usize].look_up(key) {
            PlaceAnswer::Rule(words) => Some(Rule::from_words(words)),
            PlaceAnswer::NoRule => None,
            PlaceAnswer::AskMap => map.get(&key).copied(),
        }
    }

    fn change_map(map: &mut Map, Change { key: number, rule: id }: Change) {
        match id {
            Some(id) => map.insert(key(number), rule(id)),
            None => map.remove(&key(number)),
        };
    }

    fn change_places(
        places: &mut Places,
        array: &[RulePlace],
        Change { key: number, rule: id }: Change,
        put: &mut impl FnMut(&AtomicU64, u64),
    ) {
        let key = key(number);
        let place = &array[places.number(key) as usize];
        match id {
            Some(id) => places.set(key, rule(id), place, put),
            None => places.remove(key, place, put),
        }
    }

    fn put(word: &AtomicU64, value: u64) {
        word.store(value, Relaxed);
    }

    /// Sees that every key has the rule of one map or the other, and that a key for which they agree has that.
    fn check(array: &[RulePlace], old: &Map, new: &Map, what: &str) {
        for key in (0..KEYS).map(key) {
            let found = find(array, new, key);
            assert!([old.get(&key), new.get(&key)].contains(&found.as_ref()), "{what}: {key:?} has {found:?}");
        }
    }

    /// Changes that follow one after the other, at random but always the same.
    fn changes(count: usize) -> impl Iterator<Item = Change> {
        let mut state = 1_u64;
        (1..=count as u64).map(move |id| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let key = (state >> 33) as u32 % KEYS;
            Change { key, rule: (state >> 60 >= 6).then_some(id) }
        })
    }

    fn array() -> Vec<RulePlace> {
        (0..PLACES).map(|_| RulePlace::default()).collect()
    }

    // Fault: agent-ebpf/abi/src/place.rs
    // - PlaceAnswer::AskMap
    // - } else {
    // + PlaceAnswer::NoRule
    // + } else {
    // Fault: agent/src/executors/enforcer/places.rs
    // - for (word, value) in place.stores(first, rules.len() > 1) {
    // + for (word, value) in place.stores(first, rules.len() > 2) {
    #[test]
    fn a_reader_finds_at_any_moment_what_was_or_what_is() {
        let array = array();
        let mut places = Places::new(&array, [], &mut put);
        let mut old = Map::new();
        for change in changes(2000) {
            let mut new = old.clone();
            change_map(&mut new, change);
            check(&array, &old, &new, "the map alone is changed");
            change_places(&mut places, &array, change, &mut |word, value| {
                put(word, value);
                check(&array, &old, &new, "the place is being changed");
            });
            check(&array, &new, &new, "all is done");
            old = new;
        }
    }

    // Fault: agent/src/executors/enforcer/places.rs
    // - if places.rules.contains_key(&number) || !place.is_empty() {
    // + if places.rules.contains_key(&number) {
    // Fault: agent-ebpf/abi/src/place.rs
    // - let during = (load(&self.stamp) | WRITING) & !SHARED;
    // + let during = (load(&self.stamp) + 1) & !SHARED;
    #[test]
    fn an_agent_may_be_killed_after_any_store_and_the_next_after_any_of_its_own() {
        for (index, last) in changes(400).enumerate() {
            for done in 0..=STORES {
                let array = array();
                let mut places = Places::new(&array, [], &mut put);
                let mut old = Map::new();
                for change in changes(index) {
                    change_map(&mut old, change);
                    change_places(&mut places, &array, change, &mut put);
                }
                let mut new = old.clone();
                change_map(&mut new, last);
                let mut stores = 0;
                change_places(&mut places, &array, last, &mut |word, value| {
                    stores += 1;
                    if stores <= done {
                        put(word, value);
                    }
                });
                check(&array, &old, &new, "the agent was killed");
                let mut stores = 0;
                Places::new(&array, new.clone(), &mut |word, value| {
                    stores += 1;
                    if stores <= done {
                        put(word, value);
                    }
                });
                check(&array, &old, &new, "the next one was killed too");
                Places::new(&array, new.clone(), &mut |word, value| {
                    put(word, value);
                    check(&array, &old, &new, "the next one takes over");
                });
                check(&array, &new, &new, "the next one has taken over");
            }
        }
    }
}
