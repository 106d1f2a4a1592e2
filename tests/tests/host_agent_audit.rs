//! What the audit log says of a device's life, and of what could not be written.

use devgate_tests::{prelude::*, prober::Attempt};
use serde_json::{Value, json};

tests![
    the_life_of_a_device_is_in_the_log_in_its_order,
    a_decision_names_container_class_device_and_rule,
    what_was_decided_while_no_agent_ran_is_written_when_one_comes_back,
    what_was_kept_back_is_written_as_a_gap,
    a_step_that_fails_is_written_once,
];

fn texts<'a>(line: &'a Value, fields: &[&str]) -> Vec<&'a str> {
    fields.iter().map(|field| line[field].as_str().unwrap_or("")).collect()
}

// Fault: agent/src/reconciler/report.rs
// - self.send(Report::Revoked { cgroup, container, number: step.number });
// + let _ = (cgroup, container);
fn the_life_of_a_device_is_in_the_log_in_its_order() -> TestResult {
    let machine = Machine::new("life")?;
    machine.write_class("sensor.yaml", &class("sensor", "*", "  path: /dev/sensor\n"))?;
    machine.containerd().container("asking").label(WISH, "sensor").run()?;
    let _agent = machine.agent()?;
    let mut audit = machine.audit()?;
    let number = machine.taps().plug(1)?.to_string();
    audit.wait("nodePlaced", |line| line["path"] == "/dev/sensor")?;
    machine.taps().unplug(1)?;
    audit.wait("revoked", |_| true)?;
    machine.audit()?.wait("nodeRemoved", |line| line["path"] == "/dev/sensor")?;

    let lines: Vec<_> = machine.audit()?.news()?;
    let of = |event: &str| lines.iter().position(|line| line["event"] == event && line["number"] == number);
    let events = ["deviceArrived", "granted", "nodePlaced", "deviceLeft", "grantsVoided", "revoked"];
    let places: Vec<_> = events.iter().map(|event| of(event)).collect();
    assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{places:?} of {lines:#?}");
    let line = |event| &lines[of(event).expect("it is there")];
    let container = "containerd/default/asking";
    let device = line("deviceArrived")["device"].as_str().unwrap_or_default();
    assert!(device.starts_with("macvtap-"), "{device}");
    assert_eq!(texts(line("granted"), &["container", "device"]), [container, device]);
    assert_eq!(line("granted")["classes"], json!(["sensor"]));
    assert_eq!(texts(line("nodePlaced"), &["container", "device"]), [container, device]);
    assert_eq!(texts(line("revoked"), &["container"]), [container]);
    for line in &lines {
        let time: jiff::Timestamp = line["time"].as_str().unwrap_or_default().parse()?;
        assert!((jiff::Timestamp::now() - time).as_hours() == 0, "{line}");
    }
    let spent = &line("nodePlaced")["microseconds"];
    assert!(spent["total"].as_u64() >= spent["node"].as_u64() && spent["node"].as_u64() > Some(0), "{spent}");
    Ok(())
}

// Fault: agent/src/reconciler/names.rs
// - names.rules.insert(grant.rule.0, rule);
// + names.rules.insert(grant.rule.0 + 1, rule);
fn a_decision_names_container_class_device_and_rule() -> TestResult {
    let machine = Machine::new("decision")?;
    machine.write_class("sensor.yaml", &class("sensor", "*", "  path: /dev/sensor\n  access: r\n"))?;
    let container = machine.containerd().container("asking").label(WISH, "sensor").run()?;
    let _agent = machine.agent()?;
    let mut audit = machine.audit()?;
    let number = machine.taps().plug(1)?;
    audit.wait("nodePlaced", |line| line["path"] == "/dev/sensor")?;
    let granted = machine.audit()?.wait("granted", |_| true)?;
    let mut inside = machine.insider(&container)?;
    assert_eq!(inside.open("/dev/sensor", Access::READ), ALLOWED);
    let line = audit.wait("verdict", |line| line["action"] == "grant")?;
    let fields = ["container", "device", "number", "rule", "access"];
    let rule = granted["rule"].as_str().unwrap_or("none");
    let device = granted["device"].as_str().unwrap_or("none");
    let expected = ["containerd/default/asking", device, &number.to_string(), rule, "r"];
    assert_eq!(texts(&line, &fields), expected, "{line}");
    assert_eq!(line["classes"], json!(["sensor"]));
    assert_eq!(line["pid"], inside.prober().pid());

    assert_eq!(inside.open("/dev/sensor", Access::WRITE), DENIED);
    let line = audit.wait("verdict", |line| line["verdict"] == -libc::EPERM)?;
    assert_eq!(texts(&line, &["container", "number", "access"]), [expected[0], expected[2], "w"], "{line}");
    Ok(())
}

fn what_was_decided_while_no_agent_ran_is_written_when_one_comes_back() -> TestResult {
    let machine = Machine::new("while")?;
    machine.write_class("sensor.yaml", &class("sensor", "*", "  path: /dev/sensor\n"))?;
    let container = machine.containerd().container("asking").label(WISH, "sensor").run()?;
    let agent = machine.agent()?;
    let number = machine.taps().plug(1)?;
    machine.audit()?.wait("nodePlaced", |line| line["path"] == "/dev/sensor")?;
    let mut inside = machine.insider(&container)?;
    agent.kill()?;
    let mut audit = machine.audit_from_now()?;
    assert_eq!(inside.open("/dev/sensor", Access::READ), ALLOWED);
    machine.taps().unplug(1)?;
    assert_eq!(inside.open("/dev/sensor", Access::READ), DENIED);
    let _agent = machine.agent()?;
    for action in ["grant", "deny"] {
        let line = audit.wait("verdict", |line| line["action"] == action)?;
        let place = (&line["number"], &line["pid"]);
        assert_eq!(place, (&number.to_string().into(), &inside.prober().pid().into()), "{line}");
    }
    Ok(())
}

// Fault: agent/src/audit/mod.rs
// - for gap in self.losses.news(self.reader.losses()) {
// + for gap in self.losses.news(self.reader.losses()).into_iter().take(0) {
fn what_was_kept_back_is_written_as_a_gap() -> TestResult {
    let machine = Machine::new("gap")?;
    machine.write_class("sensor.yaml", &class("sensor", "*", "  path: /dev/sensor\n"))?;
    let flooding = machine.containerd().container("flooding").label(WISH, "sensor").run()?;
    let quiet = machine.containerd().container("quiet").label(WISH, "sensor").run()?;
    let change = |file: &mut devgate::config::File| (file.audit.records_per_second, file.audit.burst) = (1, 10);
    let _agent = machine.agent_with(change)?;
    let mut audit = machine.audit()?;
    machine.taps().plug(1)?;
    for _ in 0..2 {
        audit.wait("nodePlaced", |line| line["path"] == "/dev/sensor")?;
    }
    let mut inside = machine.insider(&flooding)?;
    let flood = inside.run("/dev/sensor", Attempt::Access(libc::R_OK));
    flood.go_on(2000);
    let tried = flood.stop().total();
    // What one container does takes nothing from the records of another.
    machine.insider(&quiet)?.open("/dev/sensor", Access::READ);
    machine.audit()?.wait("verdict", |line| line["container"] == "containerd/default/quiet")?;
    let (mut written, mut limited) = (0, 0);
    audit.wait_any("each attempt is written or counted", |line| {
        if line["container"] == "containerd/default/flooding" {
            written += u64::from(line["event"] == "verdict");
            limited += line["limited"].as_u64().unwrap_or(0);
        }
        written + limited == tried
    })?;
    assert!(written >= 10 && limited > tried / 2, "{written} written, {limited} counted");
    Ok(())
}

fn a_step_that_fails_is_written_once() -> TestResult {
    let machine = Machine::new("fails")?;
    machine.write_class("sensor.yaml", &class("sensor", "*", "  path: /dev/sensor\n"))?;
    // It has something else there already.
    let new = machine.containerd().container("occupied").label(WISH, "sensor");
    let container = new.command(["sh", "-c", "mkdir -p /dev/sensor/x; exec sleep 1000000"]).run()?;
    let inside = machine.insider(&container)?;
    wait_until("the folder is there", || inside.exists("/dev/sensor/x"));
    let _agent = machine.agent()?;
    let mut audit = machine.audit()?;
    machine.taps().plug(1)?;
    let line = audit.wait("failed", |_| true)?;
    assert_eq!(line["container"], "containerd/default/occupied");
    assert!(
        line["message"].as_str().is_some_and(|text| text.contains("/dev/sensor in the container is a directory")),
        "{line}"
    );
    // It is tried again, and served once it has made room.
    container.exec(["rm", "-r", "/dev/sensor"])?;
    audit.wait("nodePlaced", |line| line["path"] == "/dev/sensor")?;
    let failed = machine.audit()?.news()?.iter().filter(|line| line["event"] == "failed").count();
    assert_eq!(failed, 1, "the same again is no news");
    Ok(())
}
