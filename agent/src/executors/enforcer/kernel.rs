//! The enforcer that works.

mod repair;

use std::{
    os::fd::AsFd,
    sync::atomic::Ordering::{Relaxed, SeqCst},
};

use devgate_abi::{
    Access, CgroupEntry, DeviceNumber, LAYOUT_VERSION, MAX_LEVEL, Policy, Rule, RuleFlags, RuleKey, StateFlags,
};

use super::{
    AppliedRule, AppliedRules, Capabilities, Counters, Drift, Enforcer, Epoch, Grant, GrantOutcome, ManagedCgroup,
    Revocation, Scope, WithheldReason,
    audit_ring::AuditReader,
    cgroup::{Cgroup, CgroupRoot},
    config::{EnforcerConfig, ForeignFilters, Unguarded},
    drift_watch::DriftWatch,
    error::EnforcerError,
    filters::{Filter, foreign},
    guard::Guard,
    index::{Index, NumberUse},
    layout::Pins,
    link::PinnedLink,
    load::{self, Maps, Programs},
    slots::{counters, reset, set_rate},
    sys::{self, ProgramInfo},
    tested,
};
use repair::pin_device_del;

/// Enforces by one program that is linked to the ancestor of all containers.
///
/// What it has put into the kernel stays in force when it is dropped and when its process ends.
pub struct KernelEnforcer {
    config: EnforcerConfig,
    root: CgroupRoot,
    ancestor: Cgroup,
    pins: Pins,
    maps: Maps,
    programs: Programs,
    program_id: u32,
    guard: Guard,
    device_del_pinned: bool,
    link: Option<PinnedLink>,
    active: bool,
    index: Index,
}

impl KernelEnforcer {
    /// Tests the kernel, loads the programs and reads back what an earlier agent left.
    ///
    /// Until [`activate`](Self::activate) an earlier agent's program goes on judging. With maps of the same layout it
    /// sees every change made here; with maps of another it does not, so that the new ones can be filled first.
    pub fn open(config: EnforcerConfig) -> Result<Self, EnforcerError> {
        config.limits.check()?;
        let root = match &config.cgroup_root {
            Some(path) => CgroupRoot::open(path)?,
            None => CgroupRoot::find()?,
        };
        let ancestor = root.cgroup(&config.ancestor)?;
        let pins = Pins::open(&config.pin_root)?;
        tested::ensure(&config, &pins, &root, &ancestor)?;
        let mut loaded = load::load(&config.limits, Some(&pins), config.unguarded)?;
        let guard = Guard::start(&config, &mut loaded.programs)?;
        let device_del_pinned = pin_device_del(loaded.device_del, &pins)?;
        let info: ProgramInfo =
            sys::info(loaded.programs.device.as_fd()).map_err(EnforcerError::call("BPF_OBJ_GET_INFO_BY_FD"))?;
        let index = Index::new(
            loaded.maps.cgroups.entries()?,
            loaded.maps.rules.entries()?,
            loaded.maps.epoch_slots.entries()?,
            loaded.maps.containers.len() as u32,
            loaded.maps.epochs.len() as u32,
        );
        let mut enforcer = Self {
            link: PinnedLink::open(&pins.link())?,
            config,
            root,
            ancestor,
            pins,
            maps: loaded.maps,
            programs: loaded.programs,
            program_id: info.id,
            guard,
            device_del_pinned,
            active: false,
            index,
        };
        enforcer.restore_bits();
        enforcer.set_rates();
        enforcer.refresh_state();
        enforcer.begin_generation();
        enforcer.sweep()?;
        Ok(enforcer)
    }

    /// Puts the program in force, in one step: into the link that is there, or by a new one. Then removes what earlier
    /// layouts left.
    pub fn activate(&mut self) -> Result<(), EnforcerError> {
        let program = self.programs.device.as_fd();
        match &self.link {
            Some(link) if link.info()?.cgroup == self.ancestor.id() => link.update(program, &self.ancestor)?,
            // The link is to another cgroup, or to one that is gone: a program cannot be moved.
            _ => self.link = Some(PinnedLink::create(program, &self.ancestor, &self.pins.link())?),
        }
        self.active = true;
        self.guard.take_over()?;
        self.pins.remove_others()
    }

    /// Whether a program that reads maps of another layout judges until [`activate`](Self::activate), so that the new maps
    /// should be filled first.
    pub fn is_upgrade(&self) -> bool {
        self.link.is_some() && self.pins.has_others()
    }

    /// The hierarchy that the containers are in.
    pub fn root(&self) -> &CgroupRoot {
        &self.root
    }

    /// The cgroup that the program is linked to.
    pub fn ancestor(&self) -> &Cgroup {
        &self.ancestor
    }

    /// Reads the audit records. There must be one reader at a time: a second takes records away from the first.
    pub fn audit_reader(&self) -> Result<AuditReader, EnforcerError> {
        AuditReader::new(self.maps.audit.as_fd(), self.maps.state.as_fd(), self.maps.containers.as_fd())
    }

    /// What the kernel counted for tasks in no managed cgroup.
    pub fn unmanaged_counters(&self) -> Counters {
        counters(&self.maps.containers[0])
    }

    /// Changes what holds in cgroups that are not managed.
    pub fn set_unclassified(&mut self, policy: Policy) {
        self.config.unclassified = policy;
        self.refresh_state();
    }

    /// Writes what leads the kernel program to everything that is in the maps. An agent that was killed in the middle of a
    /// change may not have come to that.
    fn restore_bits(&self) {
        let state = self.maps.state();
        for (&id, entry) in &self.index.cgroups {
            let container = &self.maps.containers[entry.slot as usize];
            container.policy.store(u64::from(entry.policy.0), Relaxed);
            container.cgroup.store(id, Relaxed);
            state.set_slot(id, entry.slot);
        }
        for key in self.index.rules.keys() {
            state.set_major(key.device, true);
        }
    }

    /// Makes void what the kernel program has learned of the cgroups above others: from here on it looks for those that
    /// are managed now.
    fn begin_generation(&self) {
        self.maps.state().generation.fetch_add(1, SeqCst);
    }

    /// Gives the configured rate to everything that has a bucket. Whoever is in no container shares one: else a flood from
    /// there would leave no room for the records of containers.
    fn set_rates(&self) {
        set_rate(&self.maps.containers[0], self.config.record_rate);
        for entry in self.index.cgroups.values() {
            set_rate(&self.maps.containers[entry.slot as usize], self.config.record_rate);
        }
    }

    /// Writes the words that the kernel program looks at first.
    fn refresh_state(&self) {
        let state = self.maps.state();
        state.layout.store(u64::from(LAYOUT_VERSION), Relaxed);
        state.ancestor.store(self.ancestor.id(), Relaxed);
        // They were counted when each became managed.
        state.levels.store(self.index.levels(None).unwrap_or_default(), Relaxed);
        let ordered = cfg!(target_arch = "x86_64");
        state.places.store(if ordered { self.maps.rules.place_count() } else { 0 }, Relaxed);
        // Denying is switched on last and off first, when all that it needs is in place.
        let strict = self.index.any_strict() || self.config.unclassified.is_about_others();
        let denials = self.index.any_records_denials() || self.config.unclassified.contains(Policy::RECORD_DENIALS);
        let mut flags = StateFlags::default();
        for (wanted, flag) in [
            (strict, StateFlags::STRICT),
            (denials, StateFlags::DENIALS),
            (ordered, StateFlags::ORDERED),
            (self.config.audit_everything, StateFlags::AUDIT_ALL),
            (self.config.unguarded == Unguarded::Deny && !self.device_del_pinned, StateFlags::REQUIRE_GUARD),
        ] {
            if wanted {
                flags = flags.union(flag);
            }
        }
        state.unclassified.store(u64::from(self.config.unclassified.0), Relaxed);
        state.flags.store(flags.0, Relaxed);
    }

    /// Forgets cgroups that are gone; rules that belong to none; and bits that nothing stands behind.
    fn sweep(&mut self) -> Result<(), EnforcerError> {
        let alive = self.root.all_ids().map_err(EnforcerError::call("listing the cgroups"))?;
        let gone: Vec<u64> = self.index.cgroups.keys().copied().filter(|id| !alive.contains(id)).collect();
        for id in gone {
            self.forget(id)?;
        }
        let orphans: Vec<RuleKey> =
            self.index.rules.keys().copied().filter(|key| !self.index.cgroups.contains_key(&key.cgroup)).collect();
        for key in orphans {
            self.remove_rule(key)?;
        }
        let state = self.maps.state();
        for bits in 0..=u64::from(u16::MAX) {
            if state.slot(bits) != 0 && self.index.slot_for(bits).is_none() {
                state.set_slot(bits, 0);
            }
        }
        for major in 0..=DeviceNumber::MAX_MAJOR {
            for device in [DeviceNumber::char(major, 0), DeviceNumber::block(major, 0)] {
                if state.names_major(device) && !self.index.names_major(device) {
                    state.set_major(device, false);
                }
            }
        }
        Ok(())
    }

    fn remove_rule(&mut self, key: RuleKey) -> Result<(), EnforcerError> {
        self.maps.rules.remove(key)?;
        self.index.remove_rule(key);
        if !self.index.names_major(key.device) {
            self.maps.state().set_major(key.device, false);
        }
        Ok(())
    }

    fn write_rule(&mut self, key: RuleKey, rule: Rule) -> Result<(), EnforcerError> {
        self.maps.state().set_major(key.device, true);
        if self.maps.rules.set(key, rule)? {
            self.index.add_rule(key, rule);
            return Ok(());
        }
        if !self.index.names_major(key.device) {
            self.maps.state().set_major(key.device, false);
        }
        Err(EnforcerError::Full { what: "rules", limit: self.config.limits.rules, field: "rules" })
    }

    /// The place of a number's epoch. A number that has none gets one, at need that of a number that no rule names.
    fn epoch_slot(&mut self, device: DeviceNumber) -> Result<u32, EnforcerError> {
        if let Some(number) = self.index.epochs.get(&device) {
            return Ok(number.slot);
        }
        let limit = self.config.limits.devices;
        let full = || EnforcerError::Full { what: "device numbers", limit, field: "devices" };
        let slot = if let Some(slot) = self.index.take_epoch_slot() {
            slot
        } else {
            let unused = self.index.unused_number().ok_or_else(full)?;
            self.maps.epoch_slots.remove(unused)?;
            self.index.remove_number(unused);
            self.index.take_epoch_slot().ok_or_else(full)?
        };
        // The place may have been another number's: whatever rule still names it is void from here on.
        self.maps.epochs[slot as usize].fetch_add(1, Relaxed);
        if !self.maps.epoch_slots.set(device, slot)? {
            return Err(full());
        }
        self.index.epochs.insert(device, NumberUse { slot, rules: 0 });
        Ok(slot)
    }

    fn epoch_value(&self, slot: u32) -> u64 {
        self.maps.epochs[slot as usize].load(Relaxed)
    }

    /// The programs whose denials a grant to this cgroup would override and that are neither a runtime's nor systemd's.
    fn foreign_filters(&self, cgroup: &Cgroup) -> Result<Vec<Filter>, EnforcerError> {
        let mut ours = vec![self.program_id];
        let mut after = Vec::new();
        match &self.link {
            // Until it is activated, an earlier agent's program stands where ours will.
            Some(link) => ours.push(link.info()?.program),
            // Ours will come after all that are attached to the ancestor now, and before those above it.
            None => {
                if let Some(parent) = self.ancestor.path().parent() {
                    let parent = self.root.cgroup(parent)?;
                    after = sys::effective_programs(parent.as_fd()).map_err(EnforcerError::call("BPF_PROG_QUERY"))?;
                }
            }
        }
        let programs = sys::effective_programs(cgroup.as_fd()).map_err(EnforcerError::call("BPF_PROG_QUERY"))?;
        let before = programs.into_iter().take_while(|id| !ours.contains(id)).filter(|id| !after.contains(id));
        Ok(before.filter_map(|id| foreign(id, &self.config.known_filters)).collect())
    }

    fn not_below(&self, cgroup: &Cgroup) -> EnforcerError {
        EnforcerError::NotBelowAncestor { cgroup: cgroup.path().to_owned(), ancestor: self.ancestor.path().to_owned() }
    }
}

impl Enforcer for KernelEnforcer {
    fn capabilities(&self) -> Capabilities {
        // The self-test has shown all of them, or there were no enforcer.
        Capabilities { override_denials: true, void_on_removal: true, deny_others: true, audit: true }
    }

    fn manage(&mut self, cgroup: &Cgroup, policy: Policy) -> Result<(), EnforcerError> {
        if !cgroup.is_within(&self.ancestor) {
            return Err(self.not_below(cgroup));
        }
        if cgroup.level() > MAX_LEVEL {
            return Err(EnforcerError::TooDeep(cgroup.path().to_owned()));
        }
        let Some(levels) = self.index.levels(Some(cgroup.level())) else {
            return Err(EnforcerError::TooManyLevels(cgroup.path().to_owned()));
        };
        let limit = self.config.limits.cgroups;
        let full = || EnforcerError::Full { what: "cgroups", limit, field: "cgroups" };
        let known = self.index.cgroups.get(&cgroup.id()).copied();
        let slot = if let Some(entry) = known {
            entry.slot
        } else {
            let slot = self.index.take_container_slot().ok_or_else(full)?;
            reset(&self.maps.containers[slot as usize], cgroup.id(), self.config.record_rate);
            self.maps.state().containers.fetch_max(u64::from(slot) + 1, Relaxed);
            slot
        };
        let entry = CgroupEntry { slot, policy, level: cgroup.level(), reserved: 0 };
        let state = self.maps.state();
        state.levels.store(levels, Relaxed);
        if policy.is_about_others() {
            state.flags.fetch_or(StateFlags::STRICT.0, Relaxed);
        }
        let container = &self.maps.containers[slot as usize];
        container.policy.store(u64::from(policy.0), Relaxed);
        let result = self.maps.cgroups.set(cgroup.id(), entry);
        match result {
            Ok(true) => {
                self.index.add_cgroup(cgroup.id(), entry);
                self.maps.state().set_slot(cgroup.id(), slot);
                if known.is_none() {
                    self.begin_generation();
                }
            }
            _ => {
                if let Some(before) = known {
                    container.policy.store(u64::from(before.policy.0), Relaxed);
                } else {
                    container.cgroup.store(0, Relaxed);
                    self.index.give_container_slot(slot);
                }
            }
        }
        self.refresh_state();
        if result? { Ok(()) } else { Err(full()) }
    }

    fn forget(&mut self, cgroup: u64) -> Result<Counters, EnforcerError> {
        for key in self.index.rules_of(cgroup) {
            self.remove_rule(key)?;
        }
        let Some(entry) = self.index.cgroups.get(&cgroup).copied() else { return Ok(Counters::default()) };
        self.maps.cgroups.remove(cgroup)?;
        let slot = &self.maps.containers[entry.slot as usize];
        let counted = counters(slot);
        self.index.remove_cgroup(cgroup);
        self.maps.state().set_slot(cgroup, self.index.slot_for(cgroup).unwrap_or(0));
        slot.cgroup.store(0, Relaxed);
        self.refresh_state();
        Ok(counted)
    }

    fn epoch(&mut self, device: DeviceNumber) -> Result<Epoch, EnforcerError> {
        let slot = self.epoch_slot(device)?;
        Ok(Epoch { slot, value: self.epoch_value(slot) })
    }

    fn grant(
        &mut self,
        cgroup: &Cgroup,
        device: DeviceNumber,
        epoch: Epoch,
        grant: &Grant,
    ) -> Result<GrantOutcome, EnforcerError> {
        if device.is_standard() {
            return Err(EnforcerError::Standard(device));
        }
        if !cgroup.is_within(&self.ancestor) {
            return Err(self.not_below(cgroup));
        }
        if self.config.foreign_filters == ForeignFilters::Withhold {
            let foreign = self.foreign_filters(cgroup)?;
            if !foreign.is_empty() {
                return Ok(GrantOutcome::Withheld(WithheldReason::ForeignFilterDenies(foreign)));
            }
        }
        let number = self.index.epochs.get(&device).copied();
        if number.is_none_or(|number| number.slot != epoch.slot) || self.epoch_value(epoch.slot) != epoch.value {
            return Ok(GrantOutcome::Withheld(WithheldReason::DeviceRemoved));
        }
        let mut flags = RuleFlags::default();
        if grant.scope == Scope::Subtree {
            flags = flags.union(RuleFlags::SUBTREE);
        }
        if grant.hotplug {
            flags = flags.union(RuleFlags::HOTPLUG);
        }
        let rule = Rule {
            allow: grant.access,
            deny: Access::NONE,
            flags,
            epoch_slot: epoch.slot,
            epoch: epoch.value,
            expires_at: grant.expires_at.unwrap_or(0),
            rule_id: grant.rule_id,
            generation: grant.generation,
            reserved: 0,
        };
        self.write_rule(RuleKey { cgroup: cgroup.id(), device }, rule)?;
        Ok(GrantOutcome::Granted)
    }

    fn revoke(&mut self, cgroup: u64, device: DeviceNumber, how: Revocation) -> Result<(), EnforcerError> {
        let key = RuleKey { cgroup, device };
        if how == Revocation::Forget {
            return self.remove_rule(key);
        }
        if device.is_standard() {
            return Err(EnforcerError::Standard(device));
        }
        // What was granted has its entry, so that this never needs room for one.
        let slot = self.epoch_slot(device)?;
        let old = self.index.rules.get(&key).copied().unwrap_or_default();
        let rule = Rule {
            allow: Access::NONE,
            deny: Access::ALL,
            epoch_slot: slot,
            epoch: self.epoch_value(slot),
            expires_at: 0,
            ..old
        };
        self.write_rule(key, rule)
    }

    fn void(&mut self, device: DeviceNumber) -> Result<(), EnforcerError> {
        if let Some(number) = self.index.epochs.get(&device) {
            self.maps.epochs[number.slot as usize].fetch_add(1, Relaxed);
        }
        Ok(())
    }

    fn read_back(&self) -> Result<AppliedRules, EnforcerError> {
        let mut cgroups: Vec<ManagedCgroup> = self
            .maps
            .cgroups
            .entries()?
            .into_iter()
            .map(|(id, entry)| {
                let counters = self.maps.containers.get(entry.slot as usize).map(counters).unwrap_or_default();
                ManagedCgroup { id, policy: entry.policy, counters }
            })
            .collect();
        cgroups.sort_by_key(|cgroup| cgroup.id);
        let mut rules: Vec<AppliedRule> = self
            .maps
            .rules
            .entries()?
            .into_iter()
            .map(|(key, rule)| {
                let current = rule.epoch_slot != devgate_abi::EPOCH_SLOT_NONE
                    && self.maps.epochs.get(rule.epoch_slot as usize).map(|epoch| epoch.load(Relaxed))
                        == Some(rule.epoch);
                AppliedRule { key, rule, current }
            })
            .collect();
        rules.sort_by_key(|rule| rule.key);
        let mut epochs: Vec<(DeviceNumber, u64)> =
            self.index.epochs.iter().map(|(&device, number)| (device, self.epoch_value(number.slot))).collect();
        epochs.sort_by_key(|&(device, _)| device);
        Ok(AppliedRules { cgroups, rules, epochs })
    }

    fn settle(&mut self) -> Result<(), EnforcerError> {
        if self.active { Ok(()) } else { self.activate() }
    }

    fn watch(&self) -> Result<Option<DriftWatch>, EnforcerError> {
        let guard = self.guard.pidfd().map_err(EnforcerError::Guard)?;
        let parent = self.ancestor.path().parent().map(|parent| self.root.folder(parent));
        DriftWatch::new(&[self.pins.root(), &self.pins.maps()], parent.as_deref(), guard).map(Some)
    }

    fn check(&mut self) -> Result<Vec<Drift>, EnforcerError> {
        let mut drifts = Vec::new();
        self.check_maps(&mut drifts)?;
        self.check_link(&mut drifts)?;
        self.check_guards(&mut drifts)?;
        Ok(drifts)
    }
}
