//! Rows of the list of public bug reports, as far as the core decides them.

use std::collections::BTreeMap;

use devgate_core::{
    Action, CgroupId, Container, ContainerEvent, ContainerState, Device, DeviceEvent, DeviceNumber, Event, Generation,
    GlobalAction, Plan, State, Step,
};
use serde_json::json;

use crate::support::{
    Verdict, World, batch, class, container, container_id, device, devices_listed, listed, millis, state, usb_serial,
};

const CGROUP: CgroupId = CgroupId(7);

/// A state and its world, in which what is desired is applied.
struct Scene {
    state: State,
    world: World,
}

impl Scene {
    /// One container that holds the class of all ttys with a stable path.
    fn new(devices: &[Device]) -> Self {
        let containers = [container("demo", CGROUP.0, "ttys")];
        let mut world = World::new(false);
        world.start(CGROUP);
        for device in devices {
            world.plug(device.clone());
        }
        let state = state(devices, &containers, &[class("ttys", json!({ "path": "/dev/scanner%i" }))]);
        let mut scene = Self { state, world };
        scene.settle();
        scene
    }

    fn hear(&mut self, events: impl IntoIterator<Item = Event>) {
        let batch = batch(events);
        let reread = self.world.reread(&batch.reread);
        self.state.apply(batch, reread);
    }

    fn plan(&mut self) -> Plan {
        self.state.plan(millis(0)).0
    }

    fn settle(&mut self) -> Plan {
        let plan = self.plan();
        let desired = self.state.desired().clone();
        for outcome in self.world.execute(plan.clone(), &desired, |_, _| {}, |_| false) {
            self.state.record(&outcome, millis(0), 0);
        }
        assert!(self.plan().is_empty());
        plan
    }

    fn may_open(&self, number: DeviceNumber) -> bool {
        matches!(self.world.verdict(CGROUP, number), Verdict::Granted(..))
    }

    fn nodes(&self) -> BTreeMap<String, DeviceNumber> {
        self.world.nodes(CGROUP)
    }
}

fn tty(minor: u32) -> DeviceNumber {
    DeviceNumber::char(188, minor)
}

// Fault: agent/core/src/desired/resolve.rs
// -         if let Some(other) = above.copied().find(|other| **other != container.id) {
// +         if let Some(other) = above.copied().next().or(self.by_path.values().next().copied()) {
#[test]
fn b16_a_container_in_the_leaf_below_its_scope_is_served() {
    let mut nested = container("demo", CGROUP.0, "ttys");
    let ContainerState::Running(task) = &mut nested.state else { unreachable!("it runs") };
    task.cgroup.path = "/machine.slice/libpod-demo.scope/container".into();
    let state = state(&[usb_serial(1, "4", Some("A"), 0, 1)], &[nested], &[class("ttys", json!({}))]);
    assert!(state.desired().containers[&CGROUP].grants.contains_key(&tty(0)));
}

// Fault: agent/core/src/desired/resolve.rs
// -         if let Some(other) = above.copied().find(|other| **other != container.id) {
// +         if let Some(other) = above.copied().find(|other| **other != container.id).filter(|_| false) {
#[test]
fn b18_a_cgroup_that_another_container_made_is_refused() {
    let devices = [usb_serial(1, "4", Some("A"), 0, 1)];
    let evil = container("evil", 3, "");
    for path in ["/", "/default", "/default/evil/demo", "/../default/demo"] {
        let mut demo = container("demo", CGROUP.0, "ttys");
        let ContainerState::Running(task) = &mut demo.state else { unreachable!("it runs") };
        task.cgroup.path = path.into();
        let state = state(&devices, &[demo, evil.clone()], &[class("ttys", json!({}))]);
        assert!(!state.desired().containers.contains_key(&CGROUP), "{path}");
        assert_eq!(state.desired().warnings.len(), 1, "{path}");
        assert!(state.desired().containers.contains_key(&CgroupId(3)), "{path}: the other one is served");
    }
    let shared = state(&devices, &[container("a", 3, "ttys"), container("b", 3, "ttys")], &[class("ttys", json!({}))]);
    assert!(shared.desired().containers.is_empty(), "nobody knows whose it is");
}

// Fault: agent/core/src/plan.rs
// -         let unwanted = self.applied.nodes.iter().filter(|(path, _)| !self.has_node(desired, path.as_str()));
// +         let unwanted = self.applied.nodes.iter().filter(|(path, _)| desired.nodes.contains_key(path.as_str()));
#[test]
fn b62_a_new_minor_is_granted_and_the_path_moves_to_it() {
    let first = usb_serial(1, "4", Some("A"), 0, 1);
    let mut scene = Scene::new(std::slice::from_ref(&first));
    assert!(scene.may_open(tty(0)));
    assert_eq!(scene.nodes(), [("/dev/scanner0".into(), tty(0)), ("/dev/ttyUSB0".into(), tty(0))].into());

    let removed = scene.world.unplug(&first.devpath);
    scene.hear(removed);
    scene.settle();
    assert!(!scene.may_open(tty(0)));
    assert_eq!(scene.nodes(), BTreeMap::new());

    let added = scene.world.plug(usb_serial(2, "1", Some("A"), 1, 2));
    scene.hear([added]);
    scene.settle();
    assert!(scene.may_open(tty(1)) && !scene.may_open(tty(0)));
    assert_eq!(scene.nodes(), [("/dev/scanner0".into(), tty(1)), ("/dev/ttyUSB1".into(), tty(1))].into());
}

// Fault: agent/core/src/desired/resolve.rs
// -         for known in self.inventory.devices().filter(|known| class.contains(&known.device)) {
// +         for known in self.inventory.devices().filter(|known| class.contains(&known.device)).take(1) {
#[test]
fn b64_identical_sticks_are_all_given_and_none_else() {
    let other = Device { subsystem: "usb".into(), ..device("other", tty(9), 3, &[]) };
    let scene = Scene::new(&[usb_serial(1, "4", None, 0, 1), usb_serial(1, "2", None, 1, 2), other]);
    assert!(scene.may_open(tty(0)) && scene.may_open(tty(1)) && !scene.may_open(tty(9)));
    let nodes = scene.nodes();
    assert_eq!((nodes["/dev/scanner0"], nodes["/dev/scanner1"], nodes.len()), (tty(0), tty(1), 4));
}

// Fault: agent/core/src/inventory.rs
// -                 self.containers.insert(container.id.clone(), container);
// +                 self.containers.entry(container.id.clone()).or_insert(container);
#[test]
fn b65_a_restarted_container_has_the_numbers_of_today() {
    let device = usb_serial(1, "4", Some("A"), 0, 1);
    let mut scene = Scene::new(std::slice::from_ref(&device));
    scene.world.stop(CGROUP);
    let gone = ContainerEvent::Gone { id: container_id("demo"), pid: None };
    let removed = scene.world.unplug(&device.devpath).expect("it was there");
    // The driver comes back with another major.
    let number = DeviceNumber::char(240, 0);
    let added = scene.world.plug(Device { number, ..usb_serial(1, "4", Some("A"), 0, 2) });
    let restarted = CgroupId(8);
    scene.world.start(restarted);
    let seen = ContainerEvent::Seen(container("demo", restarted.0, "ttys"));
    scene.hear([Event::Container(gone), removed, added, Event::Container(seen)]);
    scene.settle();
    assert_eq!(scene.world.granted().into_keys().collect::<Vec<_>>(), [(restarted, number)]);
    assert_eq!(scene.world.nodes(restarted)["/dev/scanner0"], number);
}

// Fault: agent/core/src/state.rs
// -             self.applied.void(*number);
// +             let _ = number;
#[test]
fn b75_a_short_absence_voids_the_grant_and_keeps_the_path() {
    let device = usb_serial(1, "4", Some("A"), 0, 1);
    let mut scene = Scene::new(std::slice::from_ref(&device));
    let before = scene.nodes();
    // Out and in again within one batch, so alike that nothing else tells the two apart.
    let removed = scene.world.unplug(&device.devpath).expect("it was there");
    let added = scene.world.plug(device);
    scene.hear([removed, added]);
    let plan = scene.plan();
    assert_eq!(plan.global, [GlobalAction::AdvanceEpoch { number: tty(0) }], "replaced is not unchanged");
    let steps = &plan.containers[&CGROUP].steps;
    assert!(matches!(steps[0], Step::RemoveNode(_)) && matches!(steps[2], Step::Grant(_)), "{steps:?}");
    scene.settle();
    assert!(scene.may_open(tty(0)));
    assert_eq!(scene.nodes(), before);
}

// Fault: agent/core/src/inventory.rs
// -                 if !of_another_life {
// +                 if !of_another_life || pid.is_some() {
#[test]
fn b83_late_and_doubled_news_of_containers_change_nothing() {
    let mut scene = Scene::new(&[usb_serial(1, "4", Some("A"), 0, 1)]);
    let demo = || container("demo", CGROUP.0, "ttys");
    let pid = demo().task().expect("it runs").pid;
    let gone = |pid| Event::Container(ContainerEvent::Gone { id: container_id("demo"), pid });
    let seen = |container| Event::Container(ContainerEvent::Seen(container));
    let harmless: [Vec<Event>; 5] = [
        vec![seen(demo()), seen(demo())],
        vec![gone(Some(pid - 1))],
        vec![gone(Some(pid - 1)), gone(Some(pid + 1)), seen(demo())],
        vec![gone(Some(pid)), seen(demo())],
        vec![listed(&[demo()]), listed(&[demo()])],
    ];
    for events in harmless {
        scene.hear(events.clone());
        assert!(scene.plan().is_empty(), "{events:?}");
    }
    // The news of the end was lost; the next list says it.
    scene.hear([listed(&[])]);
    assert_eq!(scene.plan().containers[&CGROUP].steps, [Step::Release]);
    let stopped = Container { state: ContainerState::Stopped, ..demo() };
    scene.hear([seen(demo()), seen(stopped)]);
    assert_eq!(scene.plan().containers[&CGROUP].steps, [Step::Release]);
}

// Fault: agent/core/src/plan.rs
// -             && present.get(number).is_some_and(|generation| *generation != rule.generation)
// +             && present.get(number).is_some_and(|generation| *generation == Generation::default())
#[test]
fn b89_a_number_that_has_passed_to_another_device_is_void_first() {
    let mut scene = Scene::new(&[usb_serial(1, "4", Some("A"), 0, 1)]);
    // The agent was away: the device left, another one has its number, and nobody saw the removal.
    scene.world.devices.clear();
    scene.world.plug(usb_serial(1, "2", Some("B"), 0, 2));
    let devices: Vec<_> = scene.world.devices.values().cloned().collect();
    let applied = scene.world.read_back();
    scene.state = State::new(
        applied,
        &devgate_core::Memory::default(),
        crate::support::runtimes(),
        devgate_core::Backoff::default(),
    );
    scene.hear([
        devices_listed(&devices),
        listed(&[container("demo", CGROUP.0, "ttys")]),
        crate::support::classes(&[class("ttys", json!({ "path": "/dev/scanner%i" }))]),
    ]);
    let plan = scene.settle();
    assert_eq!(plan.global, [GlobalAction::AdvanceEpoch { number: tty(0) }]);
    let of_new = devices[0].incarnation.generation();
    assert!(matches!(scene.world.verdict(CGROUP, tty(0)), Verdict::Granted(_, generation) if generation == of_new));
}

// Fault: agent/core/src/inventory.rs
// -             self.remove(&before, changes);
// +             let _ = before;
#[test]
fn b89_a_list_with_the_same_number_at_another_place_voids_it() {
    let (before, after) = (usb_serial(1, "4", Some("A"), 0, 1), usb_serial(1, "2", Some("A"), 0, 2));
    let mut scene = Scene::new(std::slice::from_ref(&before));
    // The removal was lost; only the addition was heard of.
    scene.world.devices.clear();
    let added = scene.world.plug(after.clone());
    let changed = Event::Device(DeviceEvent::Changed { devpath: "/devices/other".into() });
    scene.hear([changed, added]);
    assert_eq!(scene.plan().global, [GlobalAction::AdvanceEpoch { number: tty(0) }]);
    let known: Vec<_> = scene.state.inventory().devices().map(|known| known.device.devpath.clone()).collect();
    assert_eq!(known, [after.devpath]);
}

// Fault: agent/core/src/plan.rs
// -         self.without(|_, step| matches!(step, Step::Grant(grant) if numbers.contains(&grant.number)))
// +         self.without(|_, step| matches!(step, Step::Grant(grant) if numbers.contains(&grant.number) && grant.grant.access.is_empty()))
#[test]
fn b89_no_grant_is_made_for_a_number_whose_epoch_cannot_be_advanced() {
    let first = usb_serial(1, "4", Some("A"), 0, 1);
    let mut scene = Scene::new(std::slice::from_ref(&first));
    let removed = scene.world.unplug(&first.devpath).expect("it was there");
    let added = scene.world.plug(usb_serial(1, "2", Some("B"), 0, 2));
    scene.hear([removed, added]);
    let plan = scene.plan();
    let desired = scene.state.desired().clone();
    let fails = |action: &Action| matches!(action, Action::Global(_));
    let outcomes = scene.world.execute(plan, &desired, |_, _| {}, fails);
    let new: Generation = scene.world.by_number(tty(0)).expect("plugged").incarnation.generation();
    assert!(!matches!(scene.world.verdict(CGROUP, tty(0)), Verdict::Granted(_, generation) if generation == new));
    for outcome in &outcomes {
        scene.state.record(outcome, millis(0), 0);
    }
    // Until the retry is due nothing is granted either; then it is.
    assert!(scene.state.plan(millis(1)).0.containers.values().all(|plan| plan.steps.is_empty()));
    let (plan, next) = scene.state.plan(millis(1000));
    assert_eq!((plan.global.len(), next), (1, None));
}
