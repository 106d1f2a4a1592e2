//! An agent that ends, in whatever way, and one that comes back.

use std::{
    fs,
    time::{Duration, Instant},
};

use devgate::executors::enforcer::{LinkState, status};
use devgate_tests::{guards, prelude::*, prober::Attempt};

tests![
    the_verdicts_stand_while_the_agent_is_dead_and_follow_the_device_when_it_is_back,
    no_open_fails_or_succeeds_wrongly_while_the_agent_comes_back,
    what_is_stale_is_removed_when_the_agent_comes_back,
    a_terminated_agent_ends_within_a_second_and_leaves_what_it_enforced,
    uninstall_takes_back_everything,
    b34_b85_an_agent_with_a_garbled_state_starts_clean,
    b67_an_agent_in_another_mount_namespace_reaches_the_container,
    a_returning_agent_is_spared_the_self_test_unless_another_program_has_a_say,
    a_device_that_udev_has_not_handled_is_not_taken_for_the_one_before_by_a_new_agent,
];

/// The device called 1, wherever it is plugged.
fn only_the_first() -> String {
    class("sensor", "mvt1", "  path: /dev/sensor\n")
}

// Fault: agent/src/executors/enforcer/guard.rs
// - rustix::event::pause();
// + return Err(io::ErrorKind::Interrupted.into());
fn the_verdicts_stand_while_the_agent_is_dead_and_follow_the_device_when_it_is_back() -> TestResult {
    let machine = Machine::new("dead")?;
    machine.write_class("sensor.yaml", &only_the_first())?;
    let asking = machine.containerd().container("asking").label(WISH, "sensor").run()?;
    let other = machine.containerd().container("other").run()?;
    let agent = machine.agent()?;
    let mut audit = machine.audit()?;
    let before = machine.taps().plug(1)?;
    audit.wait("nodePlaced", |line| line["path"] == "/dev/sensor")?;
    let (mut inside, mut outside) = (machine.insider(&asking)?, machine.insider(&other)?);

    agent.kill()?;
    assert_eq!(inside.which("/dev/sensor"), Answer::of_device(1));
    assert_eq!((inside.open_number(before), outside.open_number(before)), (ALLOWED, DENIED));

    // Another device gets the number while nobody looks.
    machine.taps().unplug(1)?;
    assert_eq!(inside.open_number(before), DENIED, "its number is void");
    assert_eq!(machine.taps().plug(2)?, before);
    let now = machine.taps().plug(1)?;
    assert_ne!(now, before);
    assert_eq!(inside.which("/dev/sensor"), DENIED, "the old node leads to another device");

    let _agent = machine.agent()?;
    audit.wait("nodePlaced", |line| line["path"] == "/dev/sensor")?;
    assert_eq!(inside.which("/dev/sensor"), Answer::of_device(1), "the new node is under the same path");
    assert_eq!(inside.number("/dev/sensor")?, Some(now));
    assert_eq!((inside.open_number(before), outside.open_number(now)), (DENIED, DENIED));
    machine.taps().unplug(1)?;
    audit.wait("nodeRemoved", |line| line["path"] == "/dev/sensor")?;
    assert_eq!((inside.number("/dev/sensor")?, inside.open_number(now)), (None, DENIED));
    Ok(())
}

// Fault: agent/core/src/inventory.rs
// - !devices && !classes && runtimes.is_empty()
// + !devices || !classes || runtimes.is_empty()
fn no_open_fails_or_succeeds_wrongly_while_the_agent_comes_back() -> TestResult {
    let machine = Machine::new("window")?;
    machine.write_class("sensor.yaml", &only_the_first())?;
    let asking = machine.containerd().container("asking").label(WISH, "sensor").run()?;
    let other = machine.containerd().container("other").run()?;
    let agent = machine.agent()?;
    let mut audit = machine.audit()?;
    let number = machine.taps().plug(1)?;
    audit.wait("nodePlaced", |line| line["path"] == "/dev/sensor")?;
    let (mut inside, mut outside) = (machine.insider(&asking)?, machine.insider(&other)?);
    let opening = inside.run("/dev/sensor", Attempt::Which);
    let denied = outside.prober().run(number, Attempt::Open(0));
    agent.kill()?;
    for _ in 0..3 {
        machine.agent()?.kill()?;
    }
    let _agent = machine.agent()?;
    opening.go_on(10);
    denied.go_on(10);
    let (opened, denied) = (opening.stop(), denied.stop());
    assert_eq!(opened.of(Answer::of_device(1)), opened.total(), "{opened:?}");
    assert_eq!(denied.of(DENIED), denied.total(), "{denied:?}");
    Ok(())
}

// Fault: agent/src/reconciler/found.rs
// - applied.found_node(cgroup, node.path.as_str().into(), facts.number, generation, node.mount_id);
// + let _ = (facts.number, generation);
fn what_is_stale_is_removed_when_the_agent_comes_back() -> TestResult {
    let machine = Machine::new("stale")?;
    machine.write_class("sensor.yaml", &class("sensor", "*", "  path: /dev/sensor%i\n"))?;
    let leaving = machine.containerd().container("leaving").label(WISH, "sensor").run()?;
    let staying = machine.containerd().container("staying").label(WISH, "sensor").run()?;
    let agent = machine.agent()?;
    let mut audit = machine.audit()?;
    let first = machine.taps().plug(1)?;
    let second = machine.taps().plug(2)?;
    let mut inside = machine.insider(&staying)?;
    for _ in 0..4 {
        audit.wait("nodePlaced", |line| line["path"].as_str().is_some_and(|path| path.starts_with("/dev/sensor")))?;
    }
    let second_path =
        if inside.which("/dev/sensor1") == Answer::of_device(2) { "/dev/sensor1" } else { "/dev/sensor0" };
    let first_path = if second_path == "/dev/sensor1" { "/dev/sensor0" } else { "/dev/sensor1" };
    agent.kill()?;
    machine.taps().unplug(1)?;
    leaving.delete()?;

    let _agent = machine.agent()?;
    audit.wait("nodeRemoved", |line| line["path"] == first_path)?;
    assert_eq!((inside.number(first_path)?, inside.open_number(first)), (None, DENIED));
    assert_eq!(inside.which(second_path), Answer::of_device(2), "an index stays with its device");
    assert_eq!(inside.open_number(second), ALLOWED);
    let managed = || status(&machine.scratch().config()).ok()?.cgroups.map(|cgroups| cgroups.used);
    wait_until("the container that has gone is forgotten", || managed() == Some(1));
    Ok(())
}

// Fault: agent/src/agent.rs
// - let mut terminate = signal(SignalKind::terminate())?;
// + let mut terminate = signal(SignalKind::hangup())?;
fn a_terminated_agent_ends_within_a_second_and_leaves_what_it_enforced() -> TestResult {
    let machine = Machine::new("term")?;
    machine.write_class("sensor.yaml", &only_the_first())?;
    let asking = machine.containerd().container("asking").label(WISH, "sensor").run()?;
    let agent = machine.agent()?;
    let mut audit = machine.audit()?;
    let number = machine.taps().plug(1)?;
    audit.wait("nodePlaced", |line| line["path"] == "/dev/sensor")?;
    let children = agent.children()?;
    let start = Instant::now();
    let status = agent.terminate()?;
    let took = start.elapsed();
    println!("ended within {} ms", took.as_millis());
    assert!(status.success() && took < Duration::from_secs(1), "{status} after {took:?}");
    let mut inside = machine.insider(&asking)?;
    assert_eq!((inside.which("/dev/sensor"), inside.open_number(number)), (Answer::of_device(1), ALLOWED));
    let guard = guards::in_charge(&machine.scratch().config())?.as_raw_nonzero().get();
    for child in children {
        let path = format!("/proc/{child}");
        let ended = || !fs::exists(&path).unwrap_or(true) || i64::from(child) == i64::from(guard);
        wait_until("the agent's helpers have ended with it", ended);
    }
    // The guard goes on.
    machine.taps().unplug(1)?;
    assert_eq!(inside.open_number(number), DENIED);
    Ok(())
}

// Fault: agent/src/uninstall.rs
// - Some(Change::Remove { path, mount_id: node.mount_id })
// + Some(Change::Remove { path, mount_id: node.mount_id + 1 })
fn uninstall_takes_back_everything() -> TestResult {
    let machine = Machine::new("uninstall")?;
    machine.write_class("sensor.yaml", &class("sensor", "*", "  path: /dev/sensor\n"))?;
    let new = |id| machine.containerd().container(id).label(WISH, "sensor");
    let plain = new("plain").run()?;
    let mapped = new("mapped").user_namespace().run()?;
    let agent = machine.agent()?;
    let mut audit = machine.audit()?;
    let number = machine.taps().plug(1)?;
    for _ in 0..2 {
        audit.wait("nodePlaced", |line| line["path"] == "/dev/sensor")?;
    }
    let refused = machine.uninstall().expect_err("an agent is running").to_string();
    assert!(refused.contains("stop it first"), "{refused}");
    let guard = guards::in_charge(&machine.scratch().config())?;
    agent.kill()?;
    // What an agent with another ancestor has done is another's.
    let elsewhere = machine.scratch().cgroup("elsewhere")?;
    let other = |config: &mut devgate::config::File| {
        config.enforcer.ancestor = elsewhere.path().to_owned();
        config.enforcer.pin_root = config.enforcer.pin_root.with_file_name("devgate-test-elsewhere");
        config.run_dir = machine.folder().join("elsewhere");
    };
    assert_eq!(machine.uninstall_with(other)?, "nothing was installed\n");
    assert_eq!(machine.insider(&plain)?.number("/dev/sensor")?, Some(number));
    let said = machine.uninstall()?;
    let pins = machine.scratch().config().pin_root;
    assert_eq!(said.matches("/dev/sensor").count(), 2, "{said}");
    assert!(said.contains(&pins.display().to_string()), "{said}");
    assert!(!pins.exists());
    wait_until("the guard has ended", || !fs::exists(format!("/proc/{}", guard.as_raw_nonzero())).unwrap_or(true));
    for container in [&plain, &mapped] {
        let mut inside = machine.insider(container)?;
        assert_eq!((inside.number("/dev/sensor")?, inside.open_number(number)), (None, DENIED));
        let mounts = fs::read_to_string(format!("/proc/{}/mountinfo", container.pid()?))?;
        assert!(!mounts.contains(" devgate "), "{mounts}");
    }
    assert_eq!(status(&machine.scratch().config())?.link, LinkState::Absent);
    assert_eq!(machine.uninstall()?, "nothing was installed\n");
    Ok(())
}

// Fault: agent/src/memory.rs
// - Memory::from_text(&text).unwrap_or_else(|problem| {
// + Memory::from_text(&text).map_or_else(|_| panic!(), |memory| memory); Memory::from_text(&text).unwrap_or_else(|problem| {
fn b34_b85_an_agent_with_a_garbled_state_starts_clean() -> TestResult {
    let machine = Machine::new("garbled")?;
    machine.write_class("sensor.yaml", &only_the_first())?;
    let asking = machine.containerd().container("asking").label(WISH, "sensor").run()?;
    let state = machine.folder().join("state");
    fs::create_dir(&state)?;
    fs::write(state.join("memory"), b"\x00\xffdevgate-memory 7\n{{{")?;
    let agent = machine.agent()?;
    let mut audit = machine.audit()?;
    machine.taps().plug(1)?;
    audit.wait("nodePlaced", |line| line["path"] == "/dev/sensor")?;
    assert_eq!(machine.insider(&asking)?.which("/dev/sensor"), Answer::of_device(1));
    assert!(agent.log()?.contains("what was remembered is damaged"), "{}", agent.log()?);
    Ok(())
}

// An upgrade of a container image starts the agent with other mounts than it had.
// Fault: agent/src/executors/device_nodes/helper/target.rs
// - move_into_link_name_space(self.mount_namespace.as_fd(), Some(LinkNameSpaceType::Mount))
// + Ok::<(), Errno>(())
fn b67_an_agent_in_another_mount_namespace_reaches_the_container() -> TestResult {
    let machine = Machine::new("mounts")?;
    machine.write_class("sensor.yaml", &only_the_first())?;
    let asking = machine.containerd().container("asking").label(WISH, "sensor").run()?;
    let mut audit = machine.audit()?;
    machine.agent()?.kill()?;
    let mut agent = machine.launch_agent_by(&["unshare", "--mount", "--propagation", "slave"])?;
    agent.until_ready()?;
    machine.taps().plug(1)?;
    audit.wait("nodePlaced", |line| line["path"] == "/dev/sensor")?;
    let opened = asking.exec(["dd", "if=/dev/sensor", "of=/dev/null", "count=0"])?;
    assert!(opened.status.success(), "{}", String::from_utf8_lossy(&opened.stderr));
    assert_eq!(machine.insider(&asking)?.which("/dev/sensor"), Answer::of_device(1));
    Ok(())
}

// Fault: agent/src/executors/enforcer/tested.rs
// - if mark.is_there() && is_alone(pins, ancestor) {
// + if mark.is_there() {
fn a_returning_agent_is_spared_the_self_test_unless_another_program_has_a_say() -> TestResult {
    let machine = Machine::new("spared")?;
    let start = || -> anyhow::Result<bool> {
        let (started, before) = (Instant::now(), fs::read_to_string(machine.folder().join("agent.log")));
        let agent = machine.agent()?;
        println!("ready after {} ms", started.elapsed().as_millis());
        let log = agent.log()?;
        Ok(log[before.unwrap_or_default().len()..].contains("this kernel has passed the self-test"))
    };
    assert!(!start()?, "it was never made");
    assert!(start()?);
    let _other = allow_all(machine.scratch().ancestor())?;
    assert!(!start()?, "it might deny");
    Ok(())
}

// Fault: agent/src/sources/udev/device.rs
// - (Ok(written), Ok(born)) => node.rdev() == number && written < born,
// + (Ok(written), Ok(born)) => node.rdev() != number && written < born,
// udev's database is kept by number. An agent that starts when a number has just changed hands knows of nothing before.
fn a_device_that_udev_has_not_handled_is_not_taken_for_the_one_before_by_a_new_agent() -> TestResult {
    let machine = Machine::new("late")?;
    machine.write_class("sensor.yaml", &only_the_first())?;
    machine.write_class("probe.yaml", &class("probe", "mvt2", "  path: /dev/probe\n"))?;
    let asking = machine.containerd().container("asking").label(WISH, "sensor").run()?;
    let probing = machine.containerd().container("probing").label(WISH, "probe").run()?;
    let number = machine.taps().plug(1)?;
    machine.udev().settle()?;
    machine.udev().pause()?;
    machine.taps().unplug(1)?;
    assert_eq!(machine.taps().plug(2)?, number);

    let _agent = machine.agent()?;
    let mut audit = machine.audit()?;
    let mut inside = machine.insider(&asking)?;
    assert_eq!(inside.open_number(number), DENIED, "it is another device than the database says");
    machine.udev().resume()?;
    audit.wait("nodePlaced", |line| line["path"] == "/dev/probe")?;
    assert_eq!(machine.insider(&probing)?.which("/dev/probe"), Answer::of_device(2));
    assert_eq!((inside.number("/dev/sensor")?, inside.open_number(number)), (None, DENIED));
    let lines = machine.audit()?.news()?;
    let granted =
        |line: &&serde_json::Value| line["event"] == "granted" && line["container"] == "containerd/default/asking";
    assert_eq!(lines.iter().find(granted), None);
    Ok(())
}
