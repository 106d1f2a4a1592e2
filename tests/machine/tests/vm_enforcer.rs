//! The enforcer on the kernels of the rows.

use devgate_machine::{ALL, Container, Machine, TestResult, Usb, Verdict, classes::ADAPTER};

fn both_guards_are_there(machine: &mut Machine) -> TestResult {
    machine.start_agent("")?;
    let status = machine.run("devgate enforcer status")?;
    assert!(status.contains("uevent guard:        alive"), "{status}");
    assert!(status.contains("device_del guard:    active"), "{status}");
    Ok(())
}

/// With the agent and the guard process dead, the program at `device_del` is all that is left.
fn a_removed_number_is_void_with_every_process_dead(machine: &mut Machine) -> TestResult {
    machine.start_agent(ADAPTER)?;
    machine.start(&Container::new("asking").classes("adapter"))?;
    let adapter = machine.plug(&Usb::serial("A1"))?;
    machine.wait_for("asking", "/dev/adapter", Verdict::Opened)?;
    machine.run_in("asking", "mknod /tmp/node c 188 0")?;
    assert_eq!(machine.open("asking", "/tmp/node")?, Verdict::Opened);

    // First the agent, which would start another guard.
    machine.run("systemctl stop devgate")?;
    machine.run("kill -KILL $(devgate enforcer status | sed -n 's/.*alive (process \\([0-9]*\\).*/\\1/p')")?;
    machine.wait_until("agent and guard are dead", "devgate enforcer status | grep 'uevent guard: *none'")?;
    assert_eq!(machine.open("asking", "/tmp/node")?, Verdict::Opened, "what was granted stays");

    machine.unplug(adapter)?;
    machine.wait_until("the adapter is gone", "! test -e /dev/ttyUSB0")?;
    let _other = machine.plug(&Usb::serial("B2"))?;
    machine.wait_until("another adapter has its number", "test $(stat --format %t:%T /dev/ttyUSB0) = bc:0")?;
    assert_eq!(machine.open("asking", "/tmp/node")?, Verdict::Denied);
    let status = machine.attempt("devgate enforcer status")?.output;
    assert!(!status.contains("active (0 numbers voided)"), "{status}");
    Ok(())
}

devgate_machine::tests! {
    &ALL => [both_guards_are_there, a_removed_number_is_void_with_every_process_dead],
}
