//! What is desired and how it is reached: order, policies, paths, retries, the return of the agent.

use std::num::NonZeroU64;

use devgate_core::{
    Access, Action, ActionOutcome, AppliedState, Backoff, CgroupId, Claim, ClaimSource, ClassName, Container,
    ContainerPolicy, ContainerState, Device, DeviceNumber, Done, Enforcement, Explanation, Failure, FailureKind,
    GrantState, Memory, OtherDevices, Plan, State, Status, Step, Warning, explain,
};
use serde_json::json;

use crate::support::{
    World, batch, class, classes, container, container_id, device, devices_listed, listed, millis, runtimes, state,
    usb_serial,
};

const CGROUP: CgroupId = CgroupId(7);

fn tty(minor: u32) -> DeviceNumber {
    DeviceNumber::char(188, minor)
}

fn two() -> [Device; 2] {
    [usb_serial(1, "4", Some("A"), 0, 1), usb_serial(1, "2", Some("B"), 1, 2)]
}

fn paths(state: &State) -> Vec<String> {
    let nodes = state.desired().containers[&CGROUP].nodes.iter();
    nodes.map(|(path, node)| format!("{path}={}", node.number.minor())).collect()
}

fn steps(plan: &Plan) -> Vec<String> {
    let word = |step: &Step| match step {
        Step::Revoke(step) => format!("revoke {}", step.number.minor()),
        Step::RemoveNode(step) => format!("remove {}", step.path),
        Step::Grant(step) => format!("grant {} {}", step.number.minor(), step.grant.access),
        Step::Manage(_) => "manage".into(),
        Step::PlaceNode(step) => format!("place {}", step.path),
        Step::Release => "release".into(),
    };
    plan.containers.get(&CGROUP).into_iter().flat_map(|plan| &plan.steps).map(word).collect()
}

fn carry_out(state: &mut State, world: &mut World) {
    world.start(CGROUP);
    for known in state.inventory().devices() {
        world.devices.insert(known.device.devpath.clone(), (*known.device).clone());
    }
    let plan = state.plan(millis(0)).0;
    let desired = state.desired().clone();
    for outcome in world.execute(plan, &desired, |_, _| {}, |_| false) {
        state.record(&outcome, millis(0), 0);
    }
}

// Fault: agent/core/src/plan.rs
// -         steps.extend(self.grants(desired));
// +         steps.splice(0..0, self.grants(desired));
#[test]
fn what_takes_away_comes_before_what_gives() {
    let scanner = |spec| [class("scanner", spec)];
    let all = scanner(json!({ "path": "/dev/scanner%i" }));
    let mut state = state(&two(), &[container("demo", CGROUP.0, "scanner")], &all);
    let plan = state.plan(millis(0)).0;
    let expected = [
        "grant 0 rw",
        "grant 1 rw",
        "manage",
        "place /dev/scanner0",
        "place /dev/scanner1",
        "place /dev/ttyUSB0",
        "place /dev/ttyUSB1",
    ];
    assert_eq!(steps(&plan), expected);
    carry_out(&mut state, &mut World::default());
    // One device less for the class, one more; the access of neither is as it was.
    let third = usb_serial(1, "3", Some("C"), 2, 3);
    let [first, _] = two();
    let narrowed = scanner(json!({ "path": "/dev/scanner%i", "access": "r" }));
    state.apply(batch([classes(&narrowed), devices_listed(&[third, first])]), Vec::new());
    let expected = [
        "revoke 1",
        "remove /dev/scanner1",
        "remove /dev/ttyUSB1",
        "grant 0 r",
        "grant 2 r",
        "place /dev/scanner2",
        "place /dev/ttyUSB2",
    ];
    assert_eq!(steps(&state.plan(millis(0)).0), expected);
}

#[test]
fn a_grant_that_narrows_comes_before_one_that_gives() {
    let wide = class("wide", json!({ "match": [{ "properties": { "SORT": "x" } }], "access": "r" }));
    let narrow = class("narrow", json!({ "match": [{ "properties": { "SORT": "y" } }], "access": "rw" }));
    let sort = |sort| {
        vec![
            device("a", tty(0), 1, &[("SORT", "x"), ("ID_SERIAL", "0")]),
            device("b", tty(1), 2, &[("SORT", sort), ("ID_SERIAL", "1")]),
        ]
    };
    let container = container("demo", CGROUP.0, "wide,narrow");
    let mut state = state(&sort("y"), &[container], &[wide.clone(), narrow]);
    carry_out(&mut state, &mut World::default());
    let narrow = class("narrow", json!({ "match": [{ "properties": { "SORT": "y" } }], "access": "w" }));
    let wide = class("wide", json!({ "match": [{ "properties": { "SORT": "x" } }], "access": "rw" }));
    state.apply(batch([classes(&[wide, narrow])]), Vec::new());
    assert_eq!(steps(&state.plan(millis(0)).0), ["grant 1 w", "grant 0 rw"]);
}

// Fault: agent/core/src/desired/resolve.rs
// -             .reduce(|a, b| (a.0.max(b.0), a.1.max(b.1)))
// +             .reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))
#[test]
fn the_strictest_class_wins() {
    let classes = [
        class("audit", json!({ "enforcement": "Audit", "otherDevices": "Deny" })),
        class("enforce", json!({ "otherDevices": "Runtime" })),
    ];
    let policy = |wishes| {
        let state = state(&two(), &[container("demo", CGROUP.0, wishes)], &classes);
        state.desired().containers[&CGROUP].policy
    };
    let of = |other_devices, enforcement| Some(ContainerPolicy { other_devices, enforcement });
    assert_eq!(policy("audit"), of(OtherDevices::Deny, Enforcement::Audit));
    assert_eq!(policy("enforce"), of(OtherDevices::Runtime, Enforcement::Enforce));
    assert_eq!(policy("enforce,audit"), of(OtherDevices::Deny, Enforcement::Enforce));
    assert_eq!(policy(""), None);
}

// Fault: agent/core/src/desired/resolve.rs
// -         let nodes = if audited { BTreeMap::new() } else { self.nodes(&container.id, &held) };
// +         let nodes = if audited && held.is_empty() { BTreeMap::new() } else { self.nodes(&container.id, &held) };
#[test]
fn auditing_changes_nothing_in_the_container() {
    let audit = [class("audit", json!({ "enforcement": "Audit", "path": "/dev/x%i" }))];
    let mut state = state(&two(), &[container("demo", CGROUP.0, "audit")], &audit);
    assert_eq!(steps(&state.plan(millis(0)).0), ["grant 0 rw", "grant 1 rw", "manage"]);
}

#[test]
fn what_several_classes_give_is_one_grant() {
    let reading = class("reading", json!({ "access": "r", "owner": { "mode": "0600", "uid": 7 } }));
    let writing = class("writing", json!({ "access": "w" }));
    let state = state(&two(), &[container("demo", CGROUP.0, "writing,reading")], &[reading, writing]);
    let container = &state.desired().containers[&CGROUP];
    let grant = &container.grants[&tty(0)];
    assert_eq!(grant.access, Access::READ_WRITE);
    assert_eq!(grant.classes.iter().map(ClassName::as_str).collect::<Vec<_>>(), ["reading", "writing"]);
    let owner = container.nodes["/dev/ttyUSB0"].owner;
    assert_eq!((owner.mode, owner.uid, owner.gid), (0o600, 7, 20), "the first class, and the host for the rest");
}

#[test]
fn a_standard_device_is_never_granted_nor_placed() {
    let null = Device { devnode: "/dev/null".into(), ..device("null", DeviceNumber::char(1, 3), 1, &[]) };
    let pty = Device { devnode: "/dev/pts/7".into(), ..device("pts", tty(7), 2, &[]) };
    let state = state(&[null, pty], &[container("demo", CGROUP.0, "c")], &[class("c", json!({}))]);
    assert_eq!(paths(&state), [""; 0]);
    assert_eq!(state.desired().containers[&CGROUP].grants.keys().collect::<Vec<_>>(), [&tty(7)]);
    let warned = state.desired().warnings.iter().any(|warning| matches!(warning, Warning::StandardDevice { .. }));
    assert!(warned);
}

// Fault: agent/core/src/desired/index.rs
// -         *holder = stays.or_else(lowest).or(holder.take());
// +         *holder = stays.filter(|_| false).or_else(lowest).or(holder.take());
#[test]
fn a_path_without_an_index_stays_with_the_device_that_has_it() {
    let plain = [class("scanner", json!({ "path": "/dev/scanner" }))];
    let [first, second] = two();
    let mut state = state(&[first.clone(), second.clone()], &[container("demo", CGROUP.0, "scanner")], &plain);
    assert_eq!(paths(&state), ["/dev/scanner=0", "/dev/ttyUSB0=0", "/dev/ttyUSB1=1"]);
    assert!(matches!(state.desired().warnings.first(), Some(Warning::PathTaken { .. })));
    state.apply(batch([devices_listed(std::slice::from_ref(&second))]), Vec::new());
    assert_eq!(paths(&state), ["/dev/scanner=1", "/dev/ttyUSB1=1"]);
    assert!(state.desired().warnings.is_empty());
    // The first one comes back: it does not take the path away from the one that works with it.
    let back = usb_serial(1, "4", Some("A"), 0, 9);
    state.apply(batch([devices_listed(&[back, second])]), Vec::new());
    assert_eq!(paths(&state), ["/dev/scanner=1", "/dev/ttyUSB0=0", "/dev/ttyUSB1=1"]);
}

// Fault: agent/core/src/desired/index.rs
// -             of.retain(|id, _| present.clone().any(|present| present == id));
// +             of.retain(|_, _| true);
#[test]
fn a_gadget_that_says_another_serial_each_time_fills_no_memory() {
    let all = [class("scanner", json!({ "path": "/dev/scanner%i" }))];
    let mut state = state(&[], &[container("demo", CGROUP.0, "scanner")], &all);
    let mut highest = 0;
    for plug in 0..600 {
        let device = usb_serial(1, "4", Some(&format!("S{plug}")), 0, plug);
        state.apply(batch([devices_listed(&[device])]), Vec::new());
        let index = paths(&state)[0].trim_start_matches("/dev/scanner").trim_end_matches("=0").parse();
        highest = highest.max(index.expect("an index"));
    }
    assert_eq!(highest, 256);
}

#[test]
fn two_classes_with_one_path_leave_it_to_the_first() {
    let both = [
        class("a", json!({ "path": "/dev/x" })),
        class("b", json!({ "match": [{ "properties": { "N": "2" } }], "path": "/dev/x" })),
    ];
    let [first, second] = two();
    let second = Device { properties: [("N".into(), "2".into())].into(), ..second };
    let state = state(&[first, second], &[container("demo", CGROUP.0, "a,b")], &both);
    assert_eq!(paths(&state), ["/dev/ttyUSB0=0", "/dev/ttyUSB1=1", "/dev/x=0"]);
    let taken = |warning: &&Warning| matches!(warning, Warning::PathTaken { class, .. } if class.as_str() == "b");
    assert_eq!(state.desired().warnings.iter().filter(taken).count(), 1);
}

// Fault: agent/core/src/state.rs
// -             plan.containers.clear();
// +             plan.containers.retain(|_, plan| !plan.steps.is_empty());
#[test]
fn nothing_is_taken_away_before_every_source_has_listed() {
    let all = [class("scanner", json!({ "path": "/dev/scanner%i" }))];
    let demo = container("demo", CGROUP.0, "scanner");
    let mut world = World::default();
    let mut before = state(&two(), std::slice::from_ref(&demo), &all);
    carry_out(&mut before, &mut world);
    assert_eq!(world.granted().len(), 2);
    let mut back = State::new(world.read_back(), &Memory::default(), runtimes(), Backoff::default());
    for event in [classes(&all), listed(&[demo])] {
        back.apply(batch([event]), Vec::new());
        assert!(back.plan(millis(0)).0.is_empty());
    }
    // What is found in the containers decides who has which path, not the order of the list.
    let [first, second] = two();
    back.apply(batch([devices_listed(&[second, first])]), Vec::new());
    assert!(back.plan(millis(0)).0.is_empty(), "{:?}", back.plan(millis(0)).0);
}

// Fault: agent/core/src/state.rs
// -                         self.indexes.found(&container.id, &class.name, &known.id, index);
// +                         let _ = index;
#[test]
fn indexes_are_found_again_in_the_containers() {
    let all = [class("scanner", json!({ "path": "/dev/scanner%i" }))];
    let demo = container("demo", CGROUP.0, "scanner");
    let [first, second] = two();
    let mut world = World::default();
    let mut before = state(&[first.clone(), second.clone()], std::slice::from_ref(&demo), &all);
    carry_out(&mut before, &mut world);
    // Only the second one is left when the agent comes back: it keeps its path.
    let removed = world.unplug(&first.devpath);
    assert!(removed.is_some());
    let mut back = State::new(world.read_back(), &Memory::default(), runtimes(), Backoff::default());
    back.apply(batch([classes(&all), listed(&[demo]), devices_listed(&[second])]), Vec::new());
    assert_eq!(paths(&back), ["/dev/scanner1=1", "/dev/ttyUSB1=1"]);
    assert_eq!(steps(&back.plan(millis(0)).0), ["revoke 0", "remove /dev/scanner0", "remove /dev/ttyUSB0"]);
}

fn fail(state: &mut State, kind: FailureKind, wanted: impl Fn(&Step) -> bool, at: u64) {
    let plan = state.plan(millis(at)).0;
    let step = plan.containers[&CGROUP].steps.iter().find(|step| wanted(step)).expect("planned").clone();
    let result = Err(Failure { kind, message: "no".into() });
    state.record(&ActionOutcome { action: Action::Container(CGROUP, step), result }, millis(at), 0);
}

// Fault: agent/core/src/retry.rs
// -                 let go = failed.due.is_some_and(|due| due <= now);
// +                 let go = failed.due.is_none_or(|due| due <= now);
#[test]
fn what_failed_waits_and_what_needs_it_too() {
    let backoff = Backoff { first: millis(100), cap: millis(1000) };
    let mut state = State::new(AppliedState::default(), &Memory::default(), runtimes(), backoff);
    let [first, _] = two();
    let events = |plug| {
        let device = Device { incarnation: usb_serial(1, "4", Some("A"), 0, plug).incarnation, ..first.clone() };
        [classes(&[class("c", json!({}))]), listed(&[container("demo", CGROUP.0, "c")]), devices_listed(&[device])]
    };
    state.apply(batch(events(1)), Vec::new());
    let grant = |step: &Step| matches!(step, Step::Grant(_));
    fail(&mut state, FailureKind::Temporary, grant, 0);
    let (plan, next) = state.plan(millis(10));
    assert_eq!((steps(&plan), next), (vec!["manage".to_owned()], Some(millis(50))));
    assert_eq!(steps(&state.plan(millis(50)).0), ["grant 0 rw", "manage", "place /dev/ttyUSB0"]);
    fail(&mut state, FailureKind::Temporary, grant, 50);
    assert_eq!(state.plan(millis(60)).1, Some(millis(150)), "twice as long");
    fail(&mut state, FailureKind::Permanent, grant, 200);
    assert_eq!(state.plan(millis(1_000_000)).1, None);
    assert_eq!(steps(&state.plan(millis(1_000_000)).0), ["manage"]);
    // Another incarnation: what failed was something else.
    state.apply(batch(events(2)), Vec::new());
    assert_eq!(steps(&state.plan(millis(1_000_001)).0), ["grant 0 rw", "manage", "place /dev/ttyUSB0"]);
}

#[test]
fn a_node_that_is_left_alone_is_not_planned_again() {
    let mut state = state(&two(), &[container("demo", CGROUP.0, "c")], &[class("c", json!({}))]);
    let plan = state.plan(millis(0)).0;
    for step in plan.containers[&CGROUP].steps.clone() {
        let result = Ok(match step {
            Step::Grant(_) => Done::Epoch(0),
            Step::PlaceNode(_) => Done::LeftAlone,
            _ => Done::Done,
        });
        state.record(&ActionOutcome { action: Action::Container(CGROUP, step), result }, millis(0), 0);
    }
    assert!(state.plan(millis(0)).0.is_empty());
    assert!(state.applied().containers[&CGROUP].nodes.values().all(|node| node.mount.is_none()));
}

// Fault: agent/core/src/applied.rs
// -         !self.voided.contains(&number) && self.epochs.get(&number).copied().unwrap_or_default() == epoch
// +         !self.voided.contains(&number) && self.epochs.get(&number).copied().unwrap_or_default() >= epoch
#[test]
fn a_grant_that_was_written_before_its_number_was_voided_does_not_count() {
    let mut state = state(&two(), &[container("demo", CGROUP.0, "c")], &[class("c", json!({}))]);
    let plan = state.plan(millis(0)).0;
    let advance = devgate_core::GlobalAction::AdvanceEpoch { number: tty(0) };
    state.record(&ActionOutcome { action: Action::Global(advance), result: Ok(Done::Epoch(1)) }, millis(0), 0);
    // The outcome of the grant arrives late, and says that it was written in the epoch before.
    let grant = plan.containers[&CGROUP].steps[0].clone();
    state.record(
        &ActionOutcome { action: Action::Container(CGROUP, grant.clone()), result: Ok(Done::Epoch(0)) },
        millis(0),
        0,
    );
    assert!(state.plan(millis(0)).0.containers[&CGROUP].steps.contains(&grant));
}

#[test]
fn a_container_that_holds_nothing_any_more_is_released() {
    let mut state = state(&two(), &[container("demo", CGROUP.0, "c")], &[class("c", json!({}))]);
    carry_out(&mut state, &mut World::default());
    state.apply(batch([classes(&[])]), Vec::new());
    assert!(matches!(state.desired().warnings.first(), Some(Warning::UnknownClass { .. })));
    let expected = ["revoke 0", "revoke 1", "remove /dev/ttyUSB0", "remove /dev/ttyUSB1", "release"];
    assert_eq!(steps(&state.plan(millis(0)).0), expected);
    fail(&mut state, FailureKind::Temporary, |step| matches!(step, Step::RemoveNode(_)), 0);
    let left = steps(&state.plan(millis(0)).0);
    assert!(!left.contains(&"release".to_owned()), "what is left in the container is not forgotten: {left:?}");
}

// Fault: agent/core/src/desired/resolve.rs
// -             grant.expires_at = grant.expires_at.into_iter().chain(*expires_at).min();
// +             grant.expires_at = grant.expires_at.into_iter().chain(*expires_at).max();
#[test]
fn a_claim_that_ends_is_a_grant_that_ends() {
    let claim = |class: &str, expires_at: u64| Claim {
        holder: container_id("demo"),
        source: ClaimSource::CommandLine,
        classes: ClassName::new(class).into_iter().collect(),
        expires_at: NonZeroU64::new(expires_at),
    };
    let expiry = |claims: &[Claim]| {
        let container = Container { claims: claims.to_vec(), labels: [].into(), ..container("demo", CGROUP.0, "") };
        let all = [class("c", json!({})), class("d", json!({}))];
        let state = state(&two(), &[container], &all);
        state.desired().containers[&CGROUP].grants[&tty(0)].expires_at.map(NonZeroU64::get)
    };
    assert_eq!(expiry(&[claim("c", 5)]), Some(5));
    assert_eq!(expiry(&[claim("c", 5), claim("c", 9)]), Some(9), "the claim that lasts longer");
    assert_eq!(expiry(&[claim("c", 5), claim("c", 0)]), None, "one that does not end");
    assert_eq!(expiry(&[claim("c", 5), claim("d", 9)]), Some(5), "no access outlives its class");
}

#[test]
fn rules_are_called_the_same_after_a_replug_and_a_restart() {
    let rule = |plug, minor, name: &str| {
        let devices = [usb_serial(1, "4", Some("A"), minor, plug)];
        let state = state(&devices, &[container(name, CGROUP.0, "c")], &[class("c", json!({}))]);
        state.desired().containers[&CGROUP].grants[&tty(minor)].rule
    };
    assert_eq!(rule(1, 0, "demo"), rule(2, 5, "demo"));
    assert_ne!(rule(1, 0, "demo"), rule(1, 0, "other"));
}

#[test]
fn a_grant_can_be_explained() {
    let all = [class("c", json!({ "match": [{ "properties": { "X": "1" } }] })), class("d", json!({}))];
    let [first, second] = two();
    let first = Device { properties: [("X".into(), "1".into())].into(), ..first };
    let stopped = Container { state: ContainerState::Stopped, ..container("stopped", 9, "c") };
    let mut state = state(&[first, second], &[container("demo", CGROUP.0, "c"), stopped], &all);
    let why = |state: &State, name: &str, number| {
        explain(state.inventory(), state.desired(), state.applied(), &container_id(name), number)
    };
    let Explanation::Granted(grant) = why(&state, "demo", tty(0)) else { panic!("it is granted") };
    assert_eq!((grant.state, grant.paths.len()), (GrantState::Pending, 1));
    carry_out(&mut state, &mut World::default());
    let Explanation::Granted(grant) = why(&state, "demo", tty(0)) else { panic!("it is granted") };
    assert_eq!(grant.state, GrantState::Ready);
    let Explanation::NotGiven { held, would, .. } = why(&state, "demo", tty(1)) else { panic!("it is not given") };
    assert_eq!((held[0].0.as_str(), would[0].as_str()), ("c", "d"));
    assert_eq!(why(&state, "demo", tty(2)), Explanation::NoDevice);
    assert_eq!(why(&state, "demo", DeviceNumber::char(1, 3)), Explanation::Standard);
    assert_eq!(why(&state, "stopped", tty(0)), Explanation::NotServed);
    assert_eq!(why(&state, "absent", tty(0)), Explanation::NoContainer);
    let status = Status::new(state.inventory(), state.desired(), state.applied());
    assert_eq!((status.devices.len(), status.containers.len()), (2, 1));
    assert_eq!(status.containers[0].grants[0].state, GrantState::Ready);
}
