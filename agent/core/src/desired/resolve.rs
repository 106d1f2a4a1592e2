use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU64;
use std::rc::Rc;
use std::sync::Arc;

use devgate_abi::{Access, DeviceNumber};

use super::index::IndexBook;
use super::{ContainerPolicy, DesiredContainer, DesiredNode, DesiredState, Grant, NodePath, RuleId};
use crate::class::is_standard_path;
use crate::digest::{StableHash, combined};
use crate::{
    CgroupId, CgroupProblem, ClassName, CompiledClass, Container, Enforcement, Generation, Inventory, KnownDevice,
    NodeOwner, RuntimeId, Task, Warning,
};

impl DesiredState {
    /// What follows from what was observed. `indexes` remembers which device has which path, and nothing else.
    pub fn new(inventory: &Inventory, indexes: &mut IndexBook) -> Self {
        indexes.retain(|container| inventory.container(container).is_some());
        let mut resolver = Resolver { inventory, indexes, offers: BTreeMap::new(), warnings: BTreeSet::new() };
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
    offers: BTreeMap<ClassName, Rc<[Offer<'a>]>>,
    warnings: BTreeSet<Warning>,
}

/// A class that a container holds, and until when.
struct Held<'a> {
    class: &'a Arc<CompiledClass>,
    offers: Rc<[Offer<'a>]>,
    expires_at: Option<NonZeroU64>,
}

/// A device that a class gives, the same to every container that holds the class.
struct Offer<'a> {
    known: &'a KnownDevice,
    /// The node that it has in a container.
    node: DesiredNode,
    /// Its kernel name, unless every container has something else there.
    kernel_path: Option<NodePath>,
    /// The hash of class and device.
    hash: u64,
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
                Some(class) => held.push(Held { class, offers: self.offers_of(class), expires_at }),
                None => {
                    self.warnings.insert(Warning::UnknownClass { container: container.id.clone(), class: name });
                }
            }
        }
        held
    }

    fn offers_of(&mut self, class: &'a CompiledClass) -> Rc<[Offer<'a>]> {
        if let Some(offers) = self.offers.get(&class.name) {
            return Rc::clone(offers);
        }
        let mut offers = Vec::new();
        for known in self.inventory.devices().filter(|known| class.contains(&known.device)) {
            let number = known.device.number;
            if number.is_standard() {
                self.warnings.insert(Warning::StandardDevice { class: class.name.clone(), number });
            } else {
                offers.push(Offer::new(known, class));
            }
        }
        offers.sort_by_key(|offer| offer.known.sighted);
        let offers: Rc<[Offer<'a>]> = offers.into();
        self.offers.insert(class.name.clone(), Rc::clone(&offers));
        offers
    }

    /// The nodes of a container: first the stable paths, which are what it was promised, then the kernel names.
    fn nodes(&mut self, container: &RuntimeId, held: &[Held<'_>]) -> BTreeMap<NodePath, DesiredNode> {
        let mut nodes: BTreeMap<NodePath, DesiredNode> = BTreeMap::new();
        for Held { class, offers, .. } in held {
            let Some(template) = &class.path else { continue };
            let present = offers.iter().map(|offer| &offer.known.id);
            let indexes = self.indexes.assign(container, &class.name, present.clone()).clone();
            let holder = (!template.is_indexed()).then(|| self.indexes.holder(container, &class.name, present));
            for offer in offers.iter() {
                let id = &offer.known.id;
                let path = template.path(indexes.get(id).copied().unwrap_or_default());
                let has_path = holder.as_ref().is_none_or(|holder| holder.as_ref() == Some(id));
                let taken = nodes.get(&path).is_some_and(|other| other.device != *id);
                if taken || !has_path {
                    self.path_taken(container, path, offer.known, class);
                } else {
                    nodes.entry(path).or_insert_with(|| offer.node.clone());
                }
            }
        }
        for offer in held.iter().flat_map(|held| held.offers.iter()) {
            if let Some(path) = &offer.kernel_path {
                // Where another device has its stable path under this name, the promise is kept.
                nodes.entry(path.clone()).or_insert_with(|| offer.node.clone());
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
    let RuntimeId { runtime, namespace, id } = container;
    let container = StableHash::default().text(runtime).text(namespace).text(id).bits64();
    let mut grants: BTreeMap<DeviceNumber, Grant> = BTreeMap::new();
    for Held { class, offers, expires_at } in held {
        for Offer { known, hash, .. } in offers.iter() {
            let grant = grants.entry(known.device.number).or_insert_with(|| Grant {
                access: Access::NONE,
                classes: Vec::new(),
                device: known.id.clone(),
                devpath: known.device.devpath.clone(),
                incarnation: known.device.incarnation,
                generation: known.generation,
                rule: RuleId(container),
                hotplug: known.device.is_hotpluggable(),
                expires_at: None,
            });
            grant.access = grant.access.union(class.access);
            grant.classes.push(class.name.clone());
            grant.rule = RuleId(combined(grant.rule.0, *hash));
            // One rule ends at one time: at the first, so that no access outlives its claim. What is left is granted
            // again when the claim is withdrawn.
            grant.expires_at = grant.expires_at.into_iter().chain(*expires_at).min();
        }
    }
    grants
}

impl<'a> Offer<'a> {
    fn new(known: &'a KnownDevice, class: &CompiledClass) -> Self {
        let devnode = known.device.devnode.as_str();
        Self {
            known,
            node: node(known, class),
            kernel_path: (!is_standard_path(devnode)).then(|| NodePath::from(devnode)),
            hash: StableHash::default().text(class.name.as_str()).text(known.id.as_str()).bits64(),
        }
    }
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
