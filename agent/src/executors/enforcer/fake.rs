//! Stands in for the kernel in tests of other parts.

use std::collections::BTreeMap;

use devgate_abi::{Access, CgroupEntry, DeviceNumber, Policy, Rule, RuleFlags, RuleKey};

use super::{
    AppliedRule, AppliedRules, Capabilities, Cgroup, Counters, Drift, DriftWatch, Enforcer, EnforcerError, Epoch,
    Grant, GrantOutcome, ManagedCgroup, Revocation, Scope, WithheldReason,
};

/// One call of an [`Enforcer`], as [`RecordingEnforcer`] saw it. Cgroups are named by their ids.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is the method of that name with its arguments")]
pub enum Call {
    Manage(u64, Policy),
    Forget(u64),
    Epoch(DeviceNumber),
    Grant(u64, DeviceNumber, Epoch, Grant),
    Revoke(u64, DeviceNumber, Revocation),
    Void(DeviceNumber),
    Check,
}

/// An enforcer that keeps rules in memory and remembers what it was asked to do. It refuses what the kernel's refuses.
#[derive(Debug, Default)]
pub struct RecordingEnforcer {
    /// Every call that changes something, in order.
    pub calls: Vec<Call>,
    /// What the next checks find.
    pub drifts: Vec<Drift>,
    /// Why the next grants are withheld, one answer for each grant.
    pub withhold: Vec<WithheldReason>,
    cgroups: BTreeMap<u64, CgroupEntry>,
    rules: BTreeMap<RuleKey, Rule>,
    epochs: BTreeMap<DeviceNumber, Epoch>,
}

impl RecordingEnforcer {
    fn current(&self, key: RuleKey, rule: &Rule) -> bool {
        self.epochs.get(&key.device).is_some_and(|epoch| epoch.value == rule.epoch)
    }

    fn number(&mut self, device: DeviceNumber) -> Epoch {
        let next = self.epochs.len() as u32 + 1;
        *self.epochs.entry(device).or_insert(Epoch { slot: next, value: 1 })
    }
}

impl Enforcer for RecordingEnforcer {
    fn capabilities(&self) -> Capabilities {
        Capabilities { override_denials: true, void_on_removal: true, deny_others: true, audit: true }
    }

    fn manage(&mut self, cgroup: &Cgroup, policy: Policy) -> Result<(), EnforcerError> {
        self.calls.push(Call::Manage(cgroup.id(), policy));
        let entry = CgroupEntry { slot: 0, policy, level: cgroup.level(), reserved: 0 };
        self.cgroups.insert(cgroup.id(), entry);
        Ok(())
    }

    fn forget(&mut self, cgroup: u64) -> Result<Counters, EnforcerError> {
        self.calls.push(Call::Forget(cgroup));
        self.cgroups.remove(&cgroup);
        self.rules.retain(|key, _| key.cgroup != cgroup);
        Ok(Counters::default())
    }

    fn epoch(&mut self, device: DeviceNumber) -> Result<Epoch, EnforcerError> {
        self.calls.push(Call::Epoch(device));
        Ok(self.number(device))
    }

    fn grant(
        &mut self,
        cgroup: &Cgroup,
        device: DeviceNumber,
        epoch: Epoch,
        grant: &Grant,
    ) -> Result<GrantOutcome, EnforcerError> {
        self.calls.push(Call::Grant(cgroup.id(), device, epoch, *grant));
        if device.is_standard() {
            return Err(EnforcerError::Standard(device));
        }
        if let Some(reason) = self.withhold.pop() {
            return Ok(GrantOutcome::Withheld(reason));
        }
        if self.epochs.get(&device) != Some(&epoch) {
            return Ok(GrantOutcome::Withheld(WithheldReason::DeviceRemoved));
        }
        let rule = Rule {
            allow: grant.access,
            flags: if grant.scope == Scope::Subtree { RuleFlags::SUBTREE } else { RuleFlags::default() },
            epoch_slot: epoch.slot,
            epoch: epoch.value,
            expires_at: grant.expires_at.unwrap_or(0),
            rule_id: grant.rule_id,
            generation: grant.generation,
            ..Rule::default()
        };
        self.rules.insert(RuleKey { cgroup: cgroup.id(), device }, rule);
        Ok(GrantOutcome::Granted)
    }

    fn revoke(&mut self, cgroup: u64, device: DeviceNumber, how: Revocation) -> Result<(), EnforcerError> {
        self.calls.push(Call::Revoke(cgroup, device, how));
        let key = RuleKey { cgroup, device };
        match how {
            Revocation::Forget => {
                self.rules.remove(&key);
            }
            Revocation::Deny => {
                let epoch = self.number(device);
                let rule = Rule { deny: Access::ALL, epoch_slot: epoch.slot, epoch: epoch.value, ..Rule::default() };
                self.rules.insert(key, rule);
            }
        }
        Ok(())
    }

    fn void(&mut self, device: DeviceNumber) -> Result<(), EnforcerError> {
        self.calls.push(Call::Void(device));
        if let Some(epoch) = self.epochs.get_mut(&device) {
            epoch.value += 1;
        }
        Ok(())
    }

    fn read_back(&self) -> Result<AppliedRules, EnforcerError> {
        let cgroups = self
            .cgroups
            .iter()
            .map(|(&id, entry)| ManagedCgroup { id, policy: entry.policy, counters: Counters::default() })
            .collect();
        let rules = self
            .rules
            .iter()
            .map(|(&key, &rule)| AppliedRule { key, rule, current: self.current(key, &rule) })
            .collect();
        let epochs = self.epochs.iter().map(|(&device, epoch)| (device, epoch.value)).collect();
        Ok(AppliedRules { cgroups, rules, epochs })
    }

    fn check(&mut self) -> Result<Vec<Drift>, EnforcerError> {
        self.calls.push(Call::Check);
        Ok(std::mem::take(&mut self.drifts))
    }

    fn settle(&mut self) -> Result<(), EnforcerError> {
        Ok(())
    }

    fn watch(&self) -> Result<Option<DriftWatch>, EnforcerError> {
        Ok(None)
    }
}
