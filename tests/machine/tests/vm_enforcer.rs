//! The enforcer on the kernels of the rows.

use devgate_machine::{ALL, Machine, TestResult};

fn both_guards_are_there(machine: &mut Machine) -> TestResult {
    machine.start_agent("")?;
    let status = machine.run("devgate enforcer status")?;
    assert!(status.contains("uevent guard:        alive"), "{status}");
    assert!(status.contains("device_del guard:    active"), "{status}");
    Ok(())
}

devgate_machine::tests! {
    ALL => [both_guards_are_there],
}
