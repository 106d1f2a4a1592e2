//! What the enforcer has put into the maps, kept here so that it need not be searched for there.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use devgate_abi::{CgroupEntry, DeviceNumber, Policy, Rule, RuleKey, State, pack_levels};

/// How many elements of the containers array rest before they are used again.
const COOLING: usize = 64;

/// Mirrors the maps. Counts what each bit of the state stands for.
#[derive(Debug, Default)]
pub(super) struct Index {
    pub(super) cgroups: BTreeMap<u64, CgroupEntry>,
    pub(super) rules: BTreeMap<RuleKey, Rule>,
    pub(super) epochs: HashMap<DeviceNumber, NumberUse>,
    majors: HashMap<(bool, u32), u32>,
    /// The managed cgroups with the same low bits of their ids.
    namesakes: HashMap<u64, Vec<u64>>,
    levels: HashMap<u32, u32>,
    strict: u32,
    records_denials: u32,
    /// Free elements of the containers array, of which the lowest is taken first.
    free_containers: BTreeSet<u32>,
    /// Elements that were freed lately: a program that still runs may count in them.
    cooling_containers: VecDeque<u32>,
    free_epochs: VecDeque<u32>,
}

/// The epoch of a number.
#[derive(Clone, Copy, Debug)]
pub(super) struct NumberUse {
    pub(super) slot: u32,
    pub(super) rules: u32,
}

impl Index {
    /// Of what was read back. `containers` and `epochs` are the lengths of the arrays.
    pub(super) fn new(
        cgroups: Vec<(u64, CgroupEntry)>,
        rules: Vec<(RuleKey, Rule)>,
        epochs: Vec<(DeviceNumber, u32)>,
        containers: u32,
        epoch_count: u32,
    ) -> Self {
        let mut index = Self::default();
        let used: std::collections::HashSet<u32> = cgroups.iter().map(|(_, entry)| entry.slot).collect();
        index.free_containers = (1..containers).filter(|slot| !used.contains(slot)).collect();
        let used: std::collections::HashSet<u32> = epochs.iter().map(|&(_, slot)| slot).collect();
        index.free_epochs = (1..epoch_count).filter(|slot| !used.contains(slot)).collect();
        index.epochs = epochs.into_iter().map(|(device, slot)| (device, NumberUse { slot, rules: 0 })).collect();
        for (id, entry) in cgroups {
            index.add_cgroup(id, entry);
        }
        for (key, rule) in rules {
            index.add_rule(key, rule);
        }
        index
    }

    /// Remembers a cgroup or its new policy.
    pub(super) fn add_cgroup(&mut self, id: u64, entry: CgroupEntry) {
        self.count_policy(entry.policy, 1);
        if let Some(old) = self.cgroups.insert(id, entry) {
            self.count_policy(old.policy, -1);
        } else {
            self.namesakes.entry(State::slot_bits(id)).or_default().push(id);
            *self.levels.entry(entry.level).or_default() += 1;
        }
    }

    /// Forgets a cgroup. Its slot can be taken again.
    pub(super) fn remove_cgroup(&mut self, id: u64) -> Option<CgroupEntry> {
        let entry = self.cgroups.remove(&id)?;
        self.count_policy(entry.policy, -1);
        let bits = State::slot_bits(id);
        if let Some(namesakes) = self.namesakes.get_mut(&bits) {
            namesakes.retain(|&other| other != id);
            if namesakes.is_empty() {
                self.namesakes.remove(&bits);
            }
        }
        decrement(&mut self.levels, entry.level);
        self.cooling_containers.push_back(entry.slot);
        if self.cooling_containers.len() > COOLING {
            self.free_containers.extend(self.cooling_containers.pop_front());
        }
        Some(entry)
    }

    /// Remembers a rule, in the place of the one before.
    pub(super) fn add_rule(&mut self, key: RuleKey, rule: Rule) {
        if self.rules.insert(key, rule).is_none() {
            *self.majors.entry(major_of(key.device)).or_default() += 1;
            if let Some(number) = self.epochs.get_mut(&key.device) {
                number.rules += 1;
            }
        }
    }

    /// Forgets a rule.
    pub(super) fn remove_rule(&mut self, key: RuleKey) {
        if self.rules.remove(&key).is_some() {
            decrement(&mut self.majors, major_of(key.device));
            if let Some(number) = self.epochs.get_mut(&key.device) {
                number.rules -= 1;
            }
        }
    }

    /// The rules of a cgroup.
    pub(super) fn rules_of(&self, cgroup: u64) -> Vec<RuleKey> {
        let from = RuleKey { cgroup, device: DeviceNumber::block(0, 0) };
        self.rules.range(from..).map(|(&key, _)| key).take_while(|key| key.cgroup == cgroup).collect()
    }

    /// An element of the containers array for a new cgroup.
    pub(super) fn take_container_slot(&mut self) -> Option<u32> {
        self.free_containers.pop_first().or_else(|| self.cooling_containers.pop_front())
    }

    /// Gives back an element that was taken and not used.
    pub(super) fn give_container_slot(&mut self, slot: u32) {
        self.free_containers.insert(slot);
    }

    /// An element of the epochs array for a new number.
    pub(super) fn take_epoch_slot(&mut self) -> Option<u32> {
        self.free_epochs.pop_front()
    }

    /// A number that no rule names any more; its epoch's place can be given to another.
    pub(super) fn unused_number(&self) -> Option<DeviceNumber> {
        self.epochs.iter().find(|(_, number)| number.rules == 0).map(|(&device, _)| device)
    }

    /// Forgets a number.
    pub(super) fn remove_number(&mut self, device: DeviceNumber) {
        if let Some(number) = self.epochs.remove(&device) {
            self.free_epochs.push_back(number.slot);
        }
    }

    /// Whether a cgroup needs a look at devices that no rule names.
    pub(super) fn any_strict(&self) -> bool {
        self.strict > 0
    }

    /// Whether a cgroup records denials.
    pub(super) fn any_records_denials(&self) -> bool {
        self.records_denials > 0
    }

    /// Whether a rule names the kind and major number.
    pub(super) fn names_major(&self, device: DeviceNumber) -> bool {
        self.majors.contains_key(&major_of(device))
    }

    /// The slot of a managed cgroup whose id ends with the same bits.
    pub(super) fn slot_for(&self, id: u64) -> Option<u32> {
        let namesakes = self.namesakes.get(&State::slot_bits(id))?;
        Some(self.cgroups.get(namesakes.first()?)?.slot)
    }

    /// The levels at which managed cgroups lie, and one more, as [`State::levels`] has them; `None` if there are too many.
    pub(super) fn levels(&self, and: Option<u32>) -> Option<u64> {
        let levels: BTreeSet<u32> = self.levels.keys().copied().chain(and).collect();
        pack_levels(levels)
    }

    fn count_policy(&mut self, policy: Policy, change: i32) {
        if policy.is_about_others() {
            self.strict = self.strict.strict_add_signed(change);
        }
        if policy.contains(Policy::RECORD_DENIALS) {
            self.records_denials = self.records_denials.strict_add_signed(change);
        }
    }
}

fn major_of(device: DeviceNumber) -> (bool, u32) {
    (device.is_block(), device.major())
}

fn decrement<K: std::hash::Hash + Eq>(counts: &mut HashMap<K, u32>, key: K) {
    if let std::collections::hash_map::Entry::Occupied(mut entry) = counts.entry(key) {
        *entry.get_mut() -= 1;
        if *entry.get() == 0 {
            entry.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FUSE: DeviceNumber = DeviceNumber::char(10, 229);
    const LOOP: DeviceNumber = DeviceNumber::block(7, 0);

    fn entry(slot: u32, policy: Policy) -> CgroupEntry {
        CgroupEntry { slot, policy, level: 3, reserved: 0 }
    }

    fn key(cgroup: u64, device: DeviceNumber) -> RuleKey {
        RuleKey { cgroup, device }
    }

    #[test]
    fn bits_stay_until_the_last_user_is_gone() {
        let mut index = Index::new(vec![], vec![], vec![(FUSE, 1)], 9, 9);
        index.add_cgroup(7, entry(1, Policy::DENY_OTHERS));
        index.add_cgroup(0x1_0007, entry(2, Policy::default()));
        index.add_rule(key(7, FUSE), Rule::default());
        index.add_rule(key(7, FUSE), Rule::default());
        index.add_rule(key(0x1_0007, FUSE), Rule::default());
        assert!(index.any_strict());
        index.add_cgroup(7, entry(1, Policy::default()));
        assert!(!index.any_strict());
        index.remove_rule(key(7, FUSE));
        index.remove_cgroup(7);
        assert!(index.names_major(FUSE) && index.slot_for(7) == Some(2) && index.levels(None) == Some(4));
        assert_eq!(index.unused_number(), None);
        index.remove_rule(key(0x1_0007, FUSE));
        index.remove_cgroup(0x1_0007);
        assert!(!index.names_major(FUSE) && index.slot_for(7).is_none() && index.levels(None) == Some(0));
        assert_eq!(index.unused_number(), Some(FUSE));
    }

    #[test]
    fn slots_in_use_are_not_given_again() {
        let mut index = Index::new(vec![(7, entry(1, Policy::default()))], vec![], vec![(LOOP, 2)], 3, 3);
        assert_eq!((index.take_container_slot(), index.take_container_slot()), (Some(2), None));
        assert_eq!((index.take_epoch_slot(), index.take_epoch_slot()), (Some(1), None));
    }

    #[test]
    fn the_rules_of_a_cgroup_are_its_own() {
        let mut index = Index::default();
        for cgroup in [6, 7, 8] {
            index.add_rule(key(cgroup, FUSE), Rule::default());
        }
        index.add_rule(key(7, LOOP), Rule::default());
        assert_eq!(index.rules_of(7), [key(7, LOOP), key(7, FUSE)]);
    }
}
