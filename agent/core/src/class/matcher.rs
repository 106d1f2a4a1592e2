use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use glob::{MatchOptions, Pattern};

use super::compile::CompiledClass;
use crate::{Device, Parent};

/// A glob's `*` crosses a `/` in values, which are no paths, and does not in the paths of nodes.
const IN_VALUE: MatchOptions =
    MatchOptions { case_sensitive: true, require_literal_separator: false, require_literal_leading_dot: false };
const IN_PATH: MatchOptions = MatchOptions { require_literal_separator: true, ..IN_VALUE };

/// An item of `match` or `exclude`, ready for use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CompiledSelector {
    /// Where the item stands in the document: `spec.match[0]`.
    pub(super) field: String,
    pub(super) own: Conditions,
    pub(super) parent: Option<Conditions>,
    pub(super) device_path: Option<Pattern>,
}

/// Conditions on one device in sysfs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Conditions {
    pub(super) subsystem: Option<String>,
    pub(super) properties: Vec<(String, Pattern)>,
    pub(super) attributes: Vec<(String, Pattern)>,
}

/// Whether a device is of a class, and if not, why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MatchVerdict {
    /// It fits an item of `match`.
    Matched {
        /// The first one that it fits: `spec.match[0]`.
        item: String,
    },
    /// It fits an item of `exclude`.
    Excluded {
        /// The first one that it fits: `spec.exclude[0]`.
        item: String,
    },
    /// It fits no item of `match`: for each, the first condition that does not hold.
    Unmatched(Vec<Mismatch>),
}

/// A condition that does not hold for a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// The condition's place in the document: `spec.match[0].properties.ID_MODEL`.
    pub field: String,
    /// What the condition asks for.
    pub wanted: String,
    /// What the device has; `None` if it has nothing of that name.
    pub found: Option<String>,
}

/// What sources must read of devices for the classes in force.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// The subsystems that devices can be of; `None` if some class does not say.
    pub subsystems: Option<BTreeSet<String>>,
    /// Attributes of the devices themselves.
    pub attributes: BTreeSet<String>,
    /// Attributes of the devices above them.
    pub parent_attributes: BTreeSet<String>,
}

impl Asked {
    /// What `classes` ask for, and what the ids of devices are made from.
    pub fn by<'a>(classes: impl Iterator<Item = &'a Arc<CompiledClass>> + Clone) -> Self {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let mut asked = Self {
            subsystems: Some(BTreeSet::new()),
            attributes: owned(crate::identity::ATTRIBUTES),
            parent_attributes: owned(crate::identity::PARENT_ATTRIBUTES),
        };
        for selector in classes.clone().flat_map(|class| &class.matches) {
            match (&mut asked.subsystems, &selector.own.subsystem) {
                (Some(subsystems), Some(subsystem)) => {
                    subsystems.insert(subsystem.clone());
                }
                (subsystems, _) => *subsystems = None,
            }
        }
        for selector in classes.flat_map(|class| class.matches.iter().chain(&class.exclude)) {
            asked.attributes.extend(selector.own.attributes.iter().map(|(name, _)| name.clone()));
            let parent = selector.parent.iter().flat_map(|parent| &parent.attributes);
            asked.parent_attributes.extend(parent.map(|(name, _)| name.clone()));
        }
        asked
    }
}

impl CompiledClass {
    /// Whether a device is of the class.
    pub fn contains(&self, device: &Device) -> bool {
        self.matches.iter().any(|item| item.mismatch(device).is_none())
            && !self.exclude.iter().any(|item| item.mismatch(device).is_none())
    }

    /// Whether a device is of the class, with the reason.
    pub fn verdict(&self, device: &Device) -> MatchVerdict {
        let mut mismatches = Vec::new();
        for item in &self.matches {
            match item.mismatch(device) {
                Some(mismatch) => mismatches.push(mismatch),
                None => {
                    return match self.exclude.iter().find(|exclude| exclude.mismatch(device).is_none()) {
                        Some(exclude) => MatchVerdict::Excluded { item: exclude.field.clone() },
                        None => MatchVerdict::Matched { item: item.field.clone() },
                    };
                }
            }
        }
        MatchVerdict::Unmatched(mismatches)
    }
}

impl CompiledSelector {
    /// The first condition that does not hold; `None` if all do.
    fn mismatch(&self, device: &Device) -> Option<Mismatch> {
        let own = self.own.mismatch(&self.field, Some(&device.subsystem), &device.properties, &device.attributes);
        if own.is_some() {
            return own;
        }
        if let Some(pattern) = &self.device_path
            && !pattern.matches_with(&device.devnode, IN_PATH)
        {
            return Some(Mismatch {
                field: format!("{}.devicePath", self.field),
                wanted: pattern.to_string(),
                found: Some(device.devnode.clone()),
            });
        }
        self.parent.as_ref().and_then(|parent| self.parent_mismatch(parent, &device.parents))
    }

    /// All conditions must hold for one and the same ancestor. If they hold for none, what is missing in the nearest
    /// one of the right subsystem tells the user most.
    fn parent_mismatch(&self, wanted: &Conditions, parents: &[Parent]) -> Option<Mismatch> {
        let field = format!("{}.parent", self.field);
        let mut nearest = None;
        for parent in parents {
            let subsystem = parent.subsystem.as_ref();
            let mismatch = wanted.mismatch(&field, subsystem, &parent.properties, &parent.attributes)?;
            let candidate = wanted.subsystem.is_none() || wanted.subsystem.as_ref() == subsystem;
            if candidate && nearest.is_none() {
                nearest = Some(mismatch);
            }
        }
        nearest.or_else(|| {
            let wanted = wanted.subsystem.clone().unwrap_or_else(|| "a device above this one".to_owned());
            Some(Mismatch { field: format!("{field}.subsystem"), wanted, found: None })
        })
    }
}

impl Conditions {
    fn mismatch(
        &self,
        field: &str,
        subsystem: Option<&String>,
        properties: &BTreeMap<String, String>,
        attributes: &BTreeMap<String, String>,
    ) -> Option<Mismatch> {
        if let Some(wanted) = &self.subsystem
            && subsystem != Some(wanted)
        {
            let found = subsystem.cloned();
            return Some(Mismatch { field: format!("{field}.subsystem"), wanted: wanted.clone(), found });
        }
        let groups = [("properties", &self.properties, properties), ("attributes", &self.attributes, attributes)];
        for (group, wanted, found) in groups {
            for (name, pattern) in wanted {
                let value = found.get(name);
                if !value.is_some_and(|value| pattern.matches_with(value, IN_VALUE)) {
                    let field = format!("{field}.{group}.{name}");
                    return Some(Mismatch { field, wanted: pattern.to_string(), found: value.cloned() });
                }
            }
        }
        None
    }
}
