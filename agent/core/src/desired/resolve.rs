use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU64;
use std::sync::Arc;

use devgate_abi::{Access, DeviceNumber};

use super::index::IndexBook;
use super::{ContainerPolicy, DesiredContainer, DesiredNode, DesiredState, Grant, NodePath, RuleId};
use crate::class::is_standard_path;
use crate::digest::StableHash;
use crate::{
    CgroupId, CgroupProblem, ClassName, CompiledClass, Container, Enforcement, Generation, Inventory, KnownDevice,
    NodeOwner, RuntimeId, Task, Warning,
};

impl DesiredState {
    /// What follows from what was observed. `indexes` remembers which device has which path, and nothing else.
    pub fn new(inventory: &Inventory, indexes: &mut IndexBook) -> Self {
        indexes.retain(|container| inventory.container(container).is_some());
        let mut resolver = Resolver { inventory, indexes, devices: BTreeMap::new(), warnings: BTreeSet::new() };
        let mut containers = BTreeMap::new();
        let tasks: Vec<_> = inventory.containers().filter_map(|it| Some((it, it.task()?))).collect();
        let cgroups = Cgroups::of(&tasks);
        for (container, task) in &tasks {
            match cgroups.accept(container, task) {
                Ok(()) => {
                    containers.insert(task.cgroup.id, resolver.container(container, task));
                }
                Err(problem) => {
                    resolver.warnings.insert(Warning::cgroup_refused(&container.id, &problem));
                }
            }
        }
        Self { containers, warnings: resolver.warnings }
    }
}

/// Where the tasks of all containers are, to find one that is in another one's place. Those whose path is no container's
/// of that name are not in it: where they are says nothing of the others.
struct Cgroups<'a> {
    by_path: BTreeMap<&'a str, &'a RuntimeId>,
    by_id: BTreeMap<CgroupId, Vec<&'a RuntimeId>>,
}

impl<'a> Cgroups<'a> {
    fn of(tasks: &[(&'a Container, &'a Task)]) -> Self {
        let mut cgroups = Self { by_path: BTreeMap::new(), by_id: BTreeMap::new() };
        let plausible = tasks.iter().filter(|(container, task)| task.cgroup.check(&container.id).is_ok());
        for (container, task) in plausible {
            cgroups.by_path.insert(&task.cgroup.path, &container.id);
            cgroups.by_id.entry(task.cgroup.id).or_default().push(&container.id);
        }
        cgroups
    }

    /// Whether a task's cgroup can be its container's own. No runtime that is listened to puts a container into the
    /// cgroup of another one; what is found there was put there by a process inside.
    fn accept(&self, container: &Container, task: &Task) -> Result<(), CgroupProblem> {
        task.cgroup.check(&container.id)?;
        let path = task.cgroup.path.as_str();
        let above = path.match_indices('/').filter_map(|(at, _)| self.by_path.get(&path[..at]));
        if let Some(other) = above.copied().find(|other| **other != container.id) {
            return Err(CgroupProblem::InsideOther { path: path.to_owned(), other: other.clone() });
        }
        let sharers = self.by_id.get(&task.cgroup.id).into_iter().flatten();
        if let Some(other) = sharers.copied().find(|other| **other != container.id) {
            return Err(CgroupProblem::Shared { cgroup: task.cgroup.id, other: other.clone() });
        }
        Ok(())
    }
}

struct Resolver<'a> {
    inventory: &'a Inventory,
    indexes: &'a mut IndexBook,
    /// The devices of the classes that were asked for so far, in the order in which they came.
    devices: BTreeMap<ClassName, Vec<&'a KnownDevice>>,
    warnings: BTreeSet<Warning>,
}

/// A class that a container holds, and until when.
struct Held<'a> {
    class: &'a Arc<CompiledClass>,
    devices: Vec<&'a KnownDevice>,
    expires_at: Option<NonZeroU64>,
}

impl<'a> Resolver<'a> {
    fn container(&mut self, container: &Container, task: &Task) -> DesiredContainer {
        let held = self.held(container);
        let policy = held
            .iter()
            .map(|held| (held.class.other_devices, held.class.enforcement))
            .reduce(|a, b| (a.0.max(b.0), a.1.max(b.1)))
            .map(|(other_devices, enforcement)| ContainerPolicy { other_devices, enforcement });
        let grants = grants(&container.id, &held);
        let audited = policy.is_some_and(|policy| policy.enforcement == Enforcement::Audit);
        // Auditing changes nothing, so nothing appears in the container either.
        let nodes = if audited { BTreeMap::new() } else { self.nodes(&container.id, &held) };
        DesiredContainer {
            id: container.id.clone(),
            task: task.clone(),
            classes: held.iter().map(|held| held.class.name.clone()).collect(),
            policy,
            grants,
            nodes,
        }
    }

    /// The usable classes of a container, in the order of their names.
    fn held(&mut self, container: &Container) -> Vec<Held<'a>> {
        let (claims, warnings) = container.all_claims();
        self.warnings.extend(warnings);
        let mut expiries: BTreeMap<ClassName, Option<NonZeroU64>> = BTreeMap::new();
        for claim in &claims {
            for class in &claim.classes {
                // Of two claims to one class the one that lasts longer counts.
                let later = |known: Option<NonZeroU64>| Some(known?.max(claim.expires_at?));
                let expiry = expiries.entry(class.clone()).or_insert(claim.expires_at);
                *expiry = later(*expiry);
            }
        }
        let mut held = Vec::new();
        for (name, expires_at) in expiries {
            match self.inventory.class(&name) {
                Some(class) => held.push(Held { class, devices: self.devices_of(class), expires_at }),
                None => {
                    self.warnings.insert(Warning::UnknownClass { container: container.id.clone(), class: name });
                }
            }
        }
        held
    }

    fn devices_of(&mut self, class: &'a CompiledClass) -> Vec<&'a KnownDevice> {
        if let Some(devices) = self.devices.get(&class.name) {
            return devices.clone();
        }
        let mut devices = Vec::new();
        for known in self.inventory.devices().filter(|known| class.contains(&known.device)) {
            let number = known.device.number;
            if number.is_standard() {
                self.warnings.insert(Warning::StandardDevice { class: class.name.clone(), number });
            } else {
                devices.push(known);
            }
        }
        devices.sort_by_key(|known| known.sighted);
        self.devices.insert(class.name.clone(), devices.clone());
        devices
    }

    /// The nodes of a container: first the stable paths, which are what it was promised, then the kernel names.
    fn nodes(&mut self, container: &RuntimeId, held: &[Held<'_>]) -> BTreeMap<NodePath, DesiredNode> {
        let mut nodes: BTreeMap<NodePath, DesiredNode> = BTreeMap::new();
        for Held { class, devices, .. } in held {
            let Some(template) = &class.path else { continue };
            let indexes = self.indexes.assign(container, &class.name, devices);
            let holder = self.indexes.holder(container, &class.name, devices);
            for known in devices {
                if !template.is_indexed() && holder.as_ref() != Some(&known.id) {
                    self.path_taken(container, template.path(0), known, class);
                    continue;
                }
                let path = template.path(indexes.get(&known.id).copied().unwrap_or_default());
                match nodes.get(&path) {
                    Some(other) if other.device != known.id => self.path_taken(container, path, known, class),
                    _ => {
                        nodes.entry(path).or_insert_with(|| node(known, class));
                    }
                }
            }
        }
        for Held { class, devices, .. } in held {
            for known in devices {
                let devnode = known.device.devnode.as_str();
                if !is_standard_path(devnode) {
                    // Where another device has its stable path under this name, the promise is kept.
                    nodes.entry(NodePath::from(devnode)).or_insert_with(|| node(known, class));
                }
            }
        }
        nodes
    }

    fn path_taken(&mut self, container: &RuntimeId, path: NodePath, known: &KnownDevice, class: &CompiledClass) {
        let (container, device, class) = (container.clone(), known.id.clone(), class.name.clone());
        self.warnings.insert(Warning::PathTaken { container, path, device, class });
    }
}

/// One grant for each number: where several classes give a device, what they allow together.
fn grants(container: &RuntimeId, held: &[Held<'_>]) -> BTreeMap<DeviceNumber, Grant> {
    let mut givers: BTreeMap<DeviceNumber, (&KnownDevice, Vec<&Held<'_>>)> = BTreeMap::new();
    for held in held {
        for known in &held.devices {
            givers.entry(known.device.number).or_insert_with(|| (known, Vec::new())).1.push(held);
        }
    }
    let grant = |(known, givers): (&KnownDevice, Vec<&Held<'_>>)| {
        let classes: Vec<_> = givers.iter().map(|held| held.class.name.clone()).collect();
        Grant {
            access: givers.iter().fold(Access::NONE, |access, held| access.union(held.class.access)),
            device: known.id.clone(),
            devpath: known.device.devpath.clone(),
            incarnation: known.device.incarnation,
            generation: known.generation,
            rule: rule_id(container, &classes, known),
            hotplug: known.device.is_hotpluggable(),
            // One rule ends at one time: at the first, so that no access outlives its claim. What is left is granted
            // again when the claim is withdrawn.
            expires_at: givers.iter().filter_map(|held| held.expires_at).min(),
            classes,
        }
    };
    givers.into_iter().map(|(number, givers)| (number, grant(givers))).collect()
}

fn rule_id(container: &RuntimeId, classes: &[ClassName], known: &KnownDevice) -> RuleId {
    let parts = [container.runtime.as_str(), &container.namespace, &container.id, known.id.as_str()];
    let parts = parts.into_iter().chain(classes.iter().map(ClassName::as_str));
    RuleId(parts.fold(StableHash::default(), StableHash::text).bits64())
}

fn node(known: &KnownDevice, class: &CompiledClass) -> DesiredNode {
    let host = known.device.owner;
    let owner = NodeOwner {
        mode: class.mode.unwrap_or(host.mode),
        uid: class.uid.unwrap_or(host.uid),
        gid: class.gid.unwrap_or(host.gid),
    };
    let number = known.device.number;
    let kind = u32::from(number.is_block());
    let parts = [known.generation.0, kind, number.major(), number.minor(), owner.mode, owner.uid, owner.gid];
    let hash = StableHash::default().text(known.id.as_str());
    let generation = Generation(parts.iter().fold(hash, |hash, part| hash.number(u64::from(*part))).bits32());
    DesiredNode { number, owner, device: known.id.clone(), incarnation: known.device.incarnation, generation }
}
