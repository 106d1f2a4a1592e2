//! Classes that are edited while the agent runs.

use std::fs;

use devgate_tests::{machine::Machine, prelude::*};

tests![
    an_edited_class_takes_and_gives_at_once,
    a_bad_file_disturbs_no_other_class_and_keeps_what_it_said,
    a_file_that_is_removed_takes_its_class_with_it,
    a_class_that_only_audits_changes_nothing,
    a_container_of_a_strict_class_has_nothing_else,
    the_bounds_of_a_class_reach_the_kernel,
];

fn asking<'a>(
    machine: &'a Machine,
    classes: &str,
) -> anyhow::Result<(devgate_tests::containerd::Container<'a>, Insider)> {
    let container = machine.containerd().container("asking").label(WISH, classes).run()?;
    let insider = machine.insider(&container)?;
    Ok((container, insider))
}

// Fault: agent/src/sources/device_class/watch.rs
// - let files = WatchFlags::CLOSE_WRITE
// - | WatchFlags::CREATE
// + let files = WatchFlags::CREATE
fn an_edited_class_takes_and_gives_at_once() -> TestResult {
    let machine = Machine::new("edit")?;
    machine.write_class("sensor.yaml", &class("sensor", "mvt1", "  path: /dev/sensor\n"))?;
    let (_container, mut inside) = asking(&machine, "sensor")?;
    let _agent = machine.agent()?;
    let mut audit = machine.audit()?;
    let first = machine.taps().plug(1)?;
    let second = machine.taps().plug(2)?;
    audit.wait("nodePlaced", |line| line["path"] == "/dev/sensor")?;
    assert_eq!((inside.open_number(first), inside.open_number(second)), (ALLOWED, DENIED));

    // As an editor does that writes in place.
    let file = machine.folder().join("classes/sensor.yaml");
    fs::write(&file, class("sensor", "mvt2", "  path: /dev/sensor\n"))?;
    audit.wait("nodePlaced", |line| line["path"] == "/dev/sensor")?;
    assert_eq!(inside.which("/dev/sensor"), Answer::of_device(2));
    assert_eq!((inside.open_number(first), inside.open_number(second)), (DENIED, ALLOWED));

    machine.write_class("sensor.yaml", &class("sensor", "mvt2", "  path: /dev/other\n"))?;
    audit.wait("nodePlaced", |line| line["path"] == "/dev/other")?;
    assert_eq!((inside.number("/dev/sensor")?, inside.which("/dev/other")), (None, Answer::of_device(2)));
    Ok(())
}

// Fault: agent/src/sources/device_class/set.rs
// - if let Some(document) = by_name.or_else(|| bad.iter().find(|document| document.name.is_none())) {
// + if let Some(document) = by_name.filter(|_| now.is_empty() && bad.is_empty()) {
fn a_bad_file_disturbs_no_other_class_and_keeps_what_it_said() -> TestResult {
    let machine = Machine::new("bad")?;
    machine.write_class("left.yaml", &class("left", "mvt1", "  path: /dev/left\n"))?;
    machine.write_class("right.yaml", &class("right", "mvt2", "  path: /dev/right\n"))?;
    let (_container, mut inside) = asking(&machine, "left,right,late")?;
    let mut agent = machine.agent()?;
    let mut audit = machine.audit()?;
    machine.taps().plug(1)?;
    machine.taps().plug(2)?;
    for path in ["left", "right"].map(|name| format!("/dev/{name}")) {
        machine.audit()?.wait("nodePlaced", |line| line["path"] == *path)?;
    }
    machine.write_class(
        "left.yaml",
        "apiVersion: devgate.dev/v1alpha1\nkind: DeviceClass\nmetadata: { name: left }\nspec: { mtch: [] }\n",
    )?;
    let complaint = agent.until_logged("spec.mtch")?;
    assert!(complaint.contains("classes/left.yaml:4: ") && complaint.contains("WARN"), "{complaint}");
    // What comes behind it is served.
    machine.write_class("late.yaml", &class("late", "mvt3", "  path: /dev/late\n"))?;
    machine.taps().plug(3)?;
    audit.wait("nodePlaced", |line| line["path"] == "/dev/late")?;
    let which = ["left", "right", "late"].map(|name| inside.which(&format!("/dev/{name}")));
    assert_eq!(which, [1, 2, 3].map(Answer::of_device));
    // A file that was never right.
    machine.write_class("never.yaml", "]")?;
    agent.until_logged("never.yaml")?;
    assert_eq!(inside.which("/dev/left"), Answer::of_device(1));
    Ok(())
}

fn a_file_that_is_removed_takes_its_class_with_it() -> TestResult {
    let machine = Machine::new("removed")?;
    machine.write_class("left.yaml", &class("left", "mvt1", "  path: /dev/left\n"))?;
    machine.write_class("right.yaml", &class("right", "mvt2", "  path: /dev/right\n"))?;
    let (_container, mut inside) = asking(&machine, "left,right")?;
    let _agent = machine.agent()?;
    let mut audit = machine.audit()?;
    let (first, second) = (machine.taps().plug(1)?, machine.taps().plug(2)?);
    for path in ["left", "right"].map(|name| format!("/dev/{name}")) {
        machine.audit()?.wait("nodePlaced", |line| line["path"] == *path)?;
    }
    machine.remove_class("left.yaml")?;
    audit.wait("nodeRemoved", |line| line["path"] == "/dev/left")?;
    assert_eq!((inside.number("/dev/left")?, inside.open_number(first)), (None, DENIED));
    assert_eq!((inside.which("/dev/right"), inside.open_number(second)), (Answer::of_device(2), ALLOWED));
    // It comes back as if nothing had been.
    machine.write_class("left.yaml", &class("left", "mvt1", "  path: /dev/left\n"))?;
    audit.wait("nodePlaced", |line| line["path"] == "/dev/left")?;
    assert_eq!(inside.which("/dev/left"), Answer::of_device(1));
    Ok(())
}

// Fault: agent/src/reconciler/translate.rs
// - flags = flags.union(devgate_abi::Policy::AUDIT_ONLY);
// + flags = flags.union(devgate_abi::Policy::default());
fn a_class_that_only_audits_changes_nothing() -> TestResult {
    let machine = Machine::new("audits")?;
    machine.write_class("sensor.yaml", &class("sensor", "*", "  path: /dev/sensor\n  enforcement: Audit\n"))?;
    let (_container, mut inside) = asking(&machine, "sensor")?;
    let _agent = machine.agent()?;
    let mut audit = machine.audit()?;
    let number = machine.taps().plug(1)?;
    audit.wait("granted", |line| line["number"] == number.to_string())?;
    assert_eq!((inside.number("/dev/sensor")?, inside.open_number(number)), (None, DENIED));
    let line = audit.wait("verdict", |line| line["auditOnly"] == true && line["action"] == "grant")?;
    assert_eq!((&line["number"], &line["verdict"]), (&number.to_string().into(), &(-libc::EPERM).into()), "{line}");
    Ok(())
}

fn a_container_of_a_strict_class_has_nothing_else() -> TestResult {
    let machine = Machine::new("strict")?;
    machine.write_class("sensor.yaml", &class("sensor", "*", "  path: /dev/sensor\n  otherDevices: Deny\n"))?;
    let container = machine.containerd().container("asking").privileged().label(WISH, "sensor").run()?;
    let mut inside = machine.insider(&container)?;
    assert_eq!(inside.open_number(FUSE), ALLOWED, "it is privileged");
    let _agent = machine.agent()?;
    let mut audit = machine.audit()?;
    machine.taps().plug(1)?;
    audit.wait("nodePlaced", |line| line["path"] == "/dev/sensor")?;
    assert_eq!((inside.open_number(FUSE), inside.which("/dev/sensor")), (DENIED, Answer::of_device(1)));
    assert_eq!(inside.open("/dev/null", Access::READ_WRITE), ALLOWED);
    machine.remove_class("sensor.yaml")?;
    audit.wait("nodeRemoved", |line| line["path"] == "/dev/sensor")?;
    wait_until("the runtime's verdict stands again", || inside.open_number(FUSE) == ALLOWED);
    Ok(())
}

fn the_bounds_of_a_class_reach_the_kernel() -> TestResult {
    let machine = Machine::new("bounds")?;
    machine.write_class("sensor.yaml", &class("sensor", "*", "  path: /dev/sensor\n  access: r\n"))?;
    let (_container, mut inside) = asking(&machine, "sensor")?;
    let _agent = machine.agent()?;
    let mut audit = machine.audit()?;
    machine.taps().plug(1)?;
    audit.wait("nodePlaced", |line| line["path"] == "/dev/sensor")?;
    let answers = |inside: &mut Insider| [Access::READ, Access::WRITE].map(|access| inside.open("/dev/sensor", access));
    assert_eq!(answers(&mut inside), [ALLOWED, DENIED]);
    machine.write_class("sensor.yaml", &class("sensor", "*", "  path: /dev/sensor\n  access: w\n"))?;
    audit.wait("granted", |_| true)?;
    assert_eq!(answers(&mut inside), [DENIED, ALLOWED]);
    Ok(())
}
