//! Who is meant by the numbers in the kernel's records.

use std::{collections::HashMap, sync::Arc};

use devgate_core::{ClassName, DesiredState, DeviceId, RuntimeId};

/// Names of cgroups and rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    /// Containers by the id of their cgroup, also those that hold no class.
    pub containers: HashMap<u64, Arc<RuntimeId>>,
    /// Rules by their id.
    pub rules: HashMap<u64, RuleNames>,
}

/// What a rule is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleNames {
    /// The classes that give the device.
    pub classes: Vec<ClassName>,
    /// The device.
    pub device: DeviceId,
}

impl Names {
    /// The names in a desired state.
    pub(super) fn new(desired: &DesiredState) -> Self {
        let mut names = Self::default();
        for (cgroup, container) in &desired.containers {
            names.containers.insert(cgroup.0, Arc::new(container.id.clone()));
            for grant in container.grants.values() {
                let rule = RuleNames { classes: grant.classes.clone(), device: grant.device.clone() };
                names.rules.insert(grant.rule.0, rule);
            }
        }
        names
    }
}
