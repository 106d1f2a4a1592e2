//! Sources that fail, flood and repeat, and devices that change their numbers.

use std::fs;

use devgate_tests::{prelude::*, prober::Attempt};

tests![
    b62_a_device_with_another_number_keeps_its_path_and_its_old_number_is_denied,
    b63_a_number_that_was_in_force_at_start_passes_to_no_other_device,
    b65_a_container_that_starts_again_has_the_number_of_today,
    b56_what_a_flood_has_hidden_is_found,
    b57_a_burst_of_plugs_is_served_to_the_last,
    b83_containers_are_found_again_when_containerd_comes_back,
    b49_a_serial_number_of_any_form_reaches_the_container,
    an_agent_that_starts_before_containerd_waits_for_it,
    a_device_that_is_unplugged_while_it_is_granted_leaves_nothing,
];

const PATH: &str = "  path: /dev/sensor\n";

// The file that was opened stays open; what is opened anew is the device of that name.
// Fault: agent/src/reconciler/mod.rs
// - for number in batch.removed.iter().filter_map(|removed| removed.number) {
// + for number in batch.removed.iter().take(0).filter_map(|removed| removed.number) {
fn b62_a_device_with_another_number_keeps_its_path_and_its_old_number_is_denied() -> TestResult {
    let machine = Machine::new("moved")?;
    machine.write_class("sensor.yaml", &class("sensor", "mvt1", PATH))?;
    let container = machine.containerd().container("demo").label(WISH, "sensor").run()?;
    let _agent = machine.agent()?;
    let mut audit = machine.audit()?;
    let mut inside = machine.insider(&container)?;
    let mut before = None;
    for _ in 0..3 {
        let number = machine.taps().plug(1)?;
        audit.wait("nodePlaced", |line| line["path"] == "/dev/sensor")?;
        assert_eq!((inside.which("/dev/sensor"), inside.number("/dev/sensor")?), (Answer::of_device(1), Some(number)));
        if let Some(before) = before.replace(number) {
            assert_ne!(before, number);
            assert_eq!(inside.open_number(before), DENIED);
        }
        machine.taps().unplug(1)?;
        // Whoever comes takes the number that is free.
        let taken = machine.taps().plug(10 + number.minor() as u8)?;
        assert_eq!(taken, number);
        assert_eq!(inside.open_number(number), DENIED, "without a moment's delay");
    }
    Ok(())
}

// Fault: agent/src/reconciler/carry_out.rs
// - Some(rule) if applied.is_current(number, rule.epoch) => Revocation::Forget,
// + Some(_) => Revocation::Forget,
// The runtime has frozen the number into the container's own list.
fn b63_a_number_that_was_in_force_at_start_passes_to_no_other_device() -> TestResult {
    let machine = Machine::new("frozen")?;
    machine.write_class("sensor.yaml", &class("sensor", "mvt1", PATH))?;
    let number = machine.taps().plug(1)?;
    machine.udev().settle()?;
    // On this host there is the same node, since the kernel makes it for all.
    let node = format!("/dev/{}", machine.udev().devpath(1, number)?.kernel_name());
    let new = machine.containerd().container("demo").label(WISH, "sensor");
    let container = new.option(["--device", &node]).run()?;
    let mut inside = machine.insider(&container)?;
    assert_eq!(inside.open_number(number), ALLOWED, "the runtime allows it");
    let _agent = machine.agent()?;
    let mut audit = machine.audit()?;
    audit.wait("nodePlaced", |line| line["path"] == "/dev/sensor")?;
    machine.taps().unplug(1)?;
    assert_eq!(machine.taps().plug(2)?, number);
    assert_eq!(inside.open_number(number), DENIED, "the runtime still allows it");
    let moved = machine.taps().plug(1)?;
    audit.wait("nodePlaced", |line| line["path"] == "/dev/sensor")?;
    assert_eq!((inside.which("/dev/sensor"), inside.open_number(moved)), (Answer::of_device(1), ALLOWED));
    assert_eq!(inside.open_number(number), DENIED);
    Ok(())
}

// Fault: agent/core/src/inventory.rs
// - self.containers.insert(container.id.clone(), container);
// + self.containers.entry(container.id.clone()).or_insert(container);
fn b65_a_container_that_starts_again_has_the_number_of_today() -> TestResult {
    let machine = Machine::new("today")?;
    machine.write_class("sensor.yaml", &class("sensor", "mvt1", PATH))?;
    let container = machine.containerd().container("demo").label(WISH, "sensor").run()?;
    let _agent = machine.agent()?;
    let mut audit = machine.audit()?;
    let before = machine.taps().plug(1)?;
    audit.wait("nodePlaced", |line| line["path"] == "/dev/sensor")?;
    container.kill()?;
    machine.taps().unplug(1)?;
    assert_eq!(machine.taps().plug(2)?, before);
    let today = machine.taps().plug(1)?;
    machine.udev().settle()?;
    container.start_again()?;
    audit.wait("nodePlaced", |line| line["path"] == "/dev/sensor")?;
    let mut inside = machine.insider(&container)?;
    assert_eq!((inside.which("/dev/sensor"), inside.number("/dev/sensor")?), (Answer::of_device(1), Some(today)));
    assert_eq!(inside.open_number(before), DENIED);
    Ok(())
}

// Fault: agent/src/sources/udev/monitor.rs
// - heard.lost |= std::mem::take(&mut self.lost);
// + heard.lost = false;
fn b56_what_a_flood_has_hidden_is_found() -> TestResult {
    const FLOOD: usize = 3000;
    let machine = Machine::new("flood")?;
    machine.write_class("sensor.yaml", &class("sensor", "mvt*", "  path: /dev/sensor%i\n"))?;
    let container = machine.containerd().container("demo").label(WISH, "sensor").run()?;
    let flooded = machine.taps().plug(1)?;
    machine.udev().settle()?;
    let agent = machine.agent_with(|file| file.udev.receive_buffer = 4096)?;
    let mut audit = machine.audit()?;
    audit.wait("nodePlaced", |line| line["path"] == "/dev/sensor0")?;
    let leaving = machine.taps().plug(2)?;
    audit.wait("nodePlaced", |line| line["path"] == "/dev/sensor1")?;
    let devpath = machine.udev().devpath(1, flooded)?;
    // It does not read meanwhile; what its sockets do not hold is lost.
    agent.freeze()?;
    for round in 0..FLOOD {
        machine.udev().trigger(&devpath, "change")?;
        if round == FLOOD / 2 {
            machine.taps().unplug(2)?;
            assert_eq!(machine.taps().plug(3)?, leaving);
        }
    }
    machine.udev().settle()?;
    agent.thaw()?;
    let mut inside = machine.insider(&container)?;
    audit.wait("nodePlaced", |line| line["number"] == leaving.to_string())?;
    wait_until("the new device is there, and the old one stays", || {
        inside.which("/dev/sensor0") == Answer::of_device(1)
            && ["/dev/sensor1", "/dev/sensor2"].iter().any(|path| inside.which(path) == Answer::of_device(3))
    });
    assert!(agent.log()?.contains("uevents were lost"), "nothing was lost");
    Ok(())
}

// Fault: agent/src/reconciler/mod.rs
// - self.retry = Some(now);
// + let _ = now;
fn b57_a_burst_of_plugs_is_served_to_the_last() -> TestResult {
    const BURST: u8 = 20;
    let machine = Machine::new("burst")?;
    machine.write_class("sensor.yaml", &class("sensor", "mvt*", "  path: /dev/sensor%i\n"))?;
    let container = machine.containerd().container("demo").label(WISH, "sensor").run()?;
    let _agent = machine.agent()?;
    let mut audit = machine.audit()?;
    for name in 1..=BURST {
        machine.taps().plug(name)?;
    }
    for _ in 1..=BURST {
        audit.wait("nodePlaced", |line| line["path"].as_str().is_some_and(|path| path.starts_with("/dev/sensor")))?;
    }
    let mut inside = machine.insider(&container)?;
    let mut found: Vec<_> = (0..BURST).map(|index| inside.which(&format!("/dev/sensor{index}"))).collect();
    found.sort();
    assert_eq!(found, (1..=BURST).map(Answer::of_device).collect::<Vec<_>>());
    for name in 1..=BURST {
        machine.taps().unplug(name)?;
    }
    wait_until("all are gone", || (0..BURST).all(|index| !inside.exists(&format!("/dev/sensor{index}"))));
    Ok(())
}

// Fault: agent/src/sources/containerd/session.rs
// - if matches!(lost, Lost::Listener) {
// + if !matches!(lost, Lost::Cgroups(_)) {
fn b83_containers_are_found_again_when_containerd_comes_back() -> TestResult {
    let machine = Machine::new("again")?;
    machine.write_class("sensor.yaml", &class("sensor", "*", PATH))?;
    let new = |id| machine.containerd().container(id).label(WISH, "sensor");
    let (stays, ends) = (new("stays").run()?, new("ends").run()?);
    let mut agent = machine.agent()?;
    let mut audit = machine.audit()?;
    let number = machine.taps().plug(1)?;
    for _ in 0..2 {
        audit.wait("nodePlaced", |line| line["path"] == "/dev/sensor")?;
    }
    let mut inside = machine.insider(&stays)?;
    let pid = rustix::process::Pid::from_raw(ends.pid()?.cast_signed()).expect("it is a process");
    let opening = inside.run("/dev/sensor", Attempt::Which);
    machine.containerd().kill_daemon()?;
    agent.until_logged("containerd is not listened to")?;
    // What happens meanwhile is not told.
    rustix::process::kill_process(pid, rustix::process::Signal::KILL)?;
    machine.containerd().start_daemon()?;
    agent.until_logged("containerd is listened to again")?;
    let late = new("late").run()?;
    audit.wait("nodePlaced", |line| line["container"] == "containerd/default/late" && line["path"] == "/dev/sensor")?;
    assert_eq!(machine.insider(&late)?.which("/dev/sensor"), Answer::of_device(1));
    let opened = opening.stop();
    assert_eq!(opened.of(Answer::of_device(1)), opened.total(), "whoever stays is not disturbed: {opened:?}");
    machine.taps().unplug(1)?;
    assert_eq!(inside.open_number(number), DENIED);
    Ok(())
}

// Fault: agent/core/src/identity/mod.rs
// - id.push_str(&hash.hex(Self::HASH_BYTES));
// + let _ = hash;
fn b49_a_serial_number_of_any_form_reaches_the_container() -> TestResult {
    let machine = Machine::new("serial")?;
    let rule = format!(
        "SUBSYSTEM==\"macvtap\", ENV{{ID_BUS}}=\"usb\", ENV{{ID_VENDOR_ID}}=\"0403\", ENV{{ID_MODEL_ID}}=\"6001\", \
         ENV{{ID_SERIAL_SHORT}}=\"a b/..\u{e9}{}\", ENV{{ID_SERIAL}}=\"ACME_Sensor_odd\"\n",
        "x".repeat(300)
    );
    fs::write(machine.udev().root().join("run/udev/rules.d/80-odd.rules"), rule)?;
    machine.udev().run("udevadm", &["control", "--reload"])?;
    machine.write_class("sensor.yaml", &class("sensor", "odd", "  path: /dev/sensor%i\n"))?;
    let container = machine.containerd().container("demo").label(WISH, "sensor").run()?;
    let _agent = machine.agent()?;
    let mut audit = machine.audit()?;
    let mut ids = Vec::new();
    for name in [1, 2] {
        machine.taps().plug(name)?;
        let arrived = audit.wait("deviceArrived", |_| true)?;
        ids.push(arrived["device"].as_str().unwrap_or_default().to_owned());
    }
    let path = |line: &serde_json::Value| line["path"].as_str().is_some_and(|path| path.starts_with("/dev/sensor"));
    let mut audit = machine.audit()?;
    audit.wait("nodePlaced", path)?;
    audit.wait("nodePlaced", path)?;
    assert_ne!(ids[0], ids[1], "of two with one serial number each has an id of its own");
    for id in ids {
        assert!(devgate_core::DeviceId::parse(&id).is_some(), "{id}");
    }
    let mut inside = machine.insider(&container)?;
    let mut found = ["/dev/sensor0", "/dev/sensor1"].map(|path| inside.which(path));
    found.sort();
    assert_eq!(found, [1, 2].map(Answer::of_device));
    Ok(())
}

fn an_agent_that_starts_before_containerd_waits_for_it() -> TestResult {
    let machine = Machine::new("waits")?;
    machine.write_class("sensor.yaml", &class("sensor", "*", PATH))?;
    let container = machine.containerd().container("demo").label(WISH, "sensor").run()?;
    let number = machine.taps().plug(1)?;
    machine.udev().settle()?;
    machine.agent()?.kill()?;
    let mut inside = machine.insider(&container)?;
    assert_eq!(inside.open_number(number), ALLOWED);
    machine.containerd().kill_daemon()?;
    let mut agent = machine.launch_agent()?;
    agent.until_logged("containerd is not listened to")?;
    // Who is not listed yet is not known to be gone.
    assert_eq!(inside.open_number(number), ALLOWED);
    machine.taps().unplug(1)?;
    assert_eq!(inside.open_number(number), DENIED);
    machine.containerd().start_daemon()?;
    agent.until_ready()?;
    machine.taps().plug(1)?;
    wait_until("the device is there", || inside.which("/dev/sensor") == Answer::of_device(1));
    Ok(())
}

// Whether the device leaves before the rule, behind it, or in the middle of the visit.
fn a_device_that_is_unplugged_while_it_is_granted_leaves_nothing() -> TestResult {
    let machine = Machine::new("flaps")?;
    machine.write_class("sensor.yaml", &class("sensor", "mvt1", PATH))?;
    machine.write_class("last.yaml", &class("last", "mvt2", "  path: /dev/last\n"))?;
    let container = machine.containerd().container("demo").label(WISH, "sensor,last").run()?;
    let _agent = machine.agent()?;
    let mut inside = machine.insider(&container)?;
    let mut numbers = Vec::new();
    for _ in 0..30 {
        numbers.push(machine.taps().plug(1)?);
        machine.taps().unplug(1)?;
        for number in &numbers {
            assert_eq!(inside.open_number(*number), DENIED);
        }
    }
    machine.taps().plug(2)?;
    wait_until("the last one is there alone", || {
        inside.which("/dev/last") == Answer::of_device(2) && !inside.exists("/dev/sensor")
    });
    Ok(())
}
