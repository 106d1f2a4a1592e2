//! Between the words of the core and those of the kernel.

use std::num::NonZeroU64;

use devgate_abi::RuleFlags;
use devgate_core::{
    AppliedContainer, AppliedRule, AppliedState, CgroupId, ContainerPolicy, Enforcement, Generation, Grant,
    OtherDevices, RuleId,
};

use crate::executors::enforcer::{self, AppliedRules, Scope};

/// A container's policy as the kernel holds it. Grants and denials are recorded.
pub(super) fn policy(policy: ContainerPolicy) -> devgate_abi::Policy {
    let ContainerPolicy { other_devices, enforcement } = policy;
    let mut flags = devgate_abi::Policy::RECORD;
    if other_devices == OtherDevices::Deny {
        flags = flags.union(devgate_abi::Policy::DENY_OTHERS);
    }
    if enforcement == Enforcement::Audit {
        flags = flags.union(devgate_abi::Policy::AUDIT_ONLY);
    }
    flags
}

/// What a policy that was read back means.
fn core_policy(policy: devgate_abi::Policy) -> ContainerPolicy {
    let denies = policy.contains(devgate_abi::Policy::DENY_OTHERS);
    let audits = policy.contains(devgate_abi::Policy::AUDIT_ONLY);
    ContainerPolicy {
        other_devices: if denies { OtherDevices::Deny } else { OtherDevices::Runtime },
        enforcement: if audits { Enforcement::Audit } else { Enforcement::Enforce },
    }
}

/// A grant as the kernel holds it.
pub(super) fn grant(grant: &Grant) -> enforcer::Grant {
    enforcer::Grant {
        access: grant.access,
        scope: Scope::Exact,
        hotplug: grant.hotplug,
        expires_at: grant.expires_at.map(NonZeroU64::get),
        rule_id: grant.rule.0,
        generation: grant.generation.0,
    }
}

/// What was read back from the kernel. Nodes in containers are not in it.
pub(super) fn applied(rules: &AppliedRules) -> AppliedState {
    let mut state = AppliedState::default();
    for cgroup in &rules.cgroups {
        let container = AppliedContainer { policy: Some(core_policy(cgroup.policy)), ..AppliedContainer::default() };
        state.containers.insert(CgroupId(cgroup.id), container);
    }
    for enforcer::AppliedRule { key, rule, current } in &rules.rules {
        // A number that was revoked after its device had gone. It stays denied and is nothing that could be taken away.
        if rule.allow.is_empty() {
            continue;
        }
        let applied = AppliedRule {
            access: rule.allow,
            rule: RuleId(rule.rule_id),
            generation: Generation(rule.generation),
            hotplug: rule.flags.contains(RuleFlags::HOTPLUG),
            expires_at: NonZeroU64::new(rule.expires_at),
            // A void rule has an epoch that its number never has again.
            epoch: if *current { rule.epoch } else { u64::MAX },
        };
        state.containers.entry(CgroupId(key.cgroup)).or_default().rules.insert(key.device, applied);
    }
    state.epochs = rules.epochs.iter().copied().collect();
    state
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_survives_the_way_through_the_kernel() {
        for other_devices in [OtherDevices::Runtime, OtherDevices::Deny] {
            for enforcement in [Enforcement::Enforce, Enforcement::Audit] {
                let before = ContainerPolicy { other_devices, enforcement };
                assert_eq!(core_policy(policy(before)), before);
            }
        }
    }
}
