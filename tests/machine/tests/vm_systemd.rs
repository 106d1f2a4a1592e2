//! systemd and the runtimes put their own device programs in place again and again: access stays the same.

use anyhow::Result;
use devgate_machine::{Container, DEBIAN_12, DEBIAN_13, Machine, TestResult, Usb, Verdict, classes::ADAPTER};

/// Opens the device again and again. A redirection of `true` costs no process.
const OPEN_IN_A_LOOP: &str = "opened=0; refused=0
    while true; do
        if true </dev/adapter; then opened=$((opened + 1)); else refused=$((refused + 1)); fi
        echo $opened $refused >/tmp/counts
    done 2>/dev/null";

// Fault: agent-ebpf/src/device.rs
// - if unsafe { bpf_set_retval(0) } == 0 { KEEP } else { REFUSE }
// + KEEP
fn b01_access_stays_when_systemd_reads_its_units_again(machine: &mut Machine) -> TestResult {
    access_stays(machine, "systemctl daemon-reload && systemctl daemon-reexec")
}

// Fault: agent-ebpf/src/device.rs
// - if unsafe { bpf_set_retval(0) } == 0 { KEEP } else { REFUSE }
// + KEEP
fn b02_access_stays_when_a_scope_gets_another_weight(machine: &mut Machine) -> TestResult {
    access_stays(machine, "systemctl set-property --runtime ctr-asking.scope CPUWeight=50")
}

// Fault: agent-ebpf/src/device.rs
// - if unsafe { bpf_set_retval(0) } == 0 { KEEP } else { REFUSE }
// + KEEP
fn b04_access_stays_whatever_systemd_is_told_first(machine: &mut Machine) -> TestResult {
    let set = "systemctl set-property --runtime ctr-asking.scope";
    access_stays(
        machine,
        &format!(
            "{set} DevicePolicy=strict && {set} 'DeviceAllow=/dev/null rw'
             {set} 'DeviceAllow=/dev/zero rw' && {set} DevicePolicy=closed"
        ),
    )
}

// Fault: agent-ebpf/src/device.rs
// - if unsafe { bpf_set_retval(0) } == 0 { KEEP } else { REFUSE }
// + KEEP
fn b05_access_needs_no_links_by_number(machine: &mut Machine) -> TestResult {
    access_stays(machine, "rm -r /dev/char && systemctl daemon-reload")
}

fn b12_what_is_denied_is_never_open_while_systemd_reads_its_units(machine: &mut Machine) -> TestResult {
    machine.start_agent(ADAPTER)?;
    machine.start(&Container::new("other").scope())?;
    machine.plug(&Usb::serial("A1"))?;
    machine.wait_until("the adapter is there", "test -c /dev/ttyUSB0")?;
    machine.run_in("other", "mknod /dev/adapter c 188 0")?;
    machine.start_in("other", OPEN_IN_A_LOOP)?;
    machine.wait_until_in("other", "the loop runs", "test -e /tmp/counts")?;
    for _ in 0..5 {
        machine.run("systemctl daemon-reload")?;
    }
    let (opened, refused) = counts(machine, "other")?;
    assert_eq!(opened, 0);
    assert!(refused > 0);
    Ok(())
}

// Fault: agent-ebpf/src/device.rs
// - if unsafe { bpf_set_retval(0) } == 0 { KEEP } else { REFUSE }
// + KEEP
fn b13_a_scope_that_crun_makes_anew_has_access(machine: &mut Machine) -> TestResult {
    machine.start_agent(ADAPTER)?;
    machine.plug(&Usb::serial("A1"))?;
    let asking = Container::new("asking").classes("adapter").crun().scope();
    machine.start(&asking)?;
    machine.wait_for("asking", "/dev/adapter", Verdict::Opened)?;
    machine.run("ctr tasks kill --signal KILL asking")?;
    machine.wait_until("the container has ended", "ctr tasks delete asking")?;
    machine.run("ctr tasks start --detach asking")?;
    machine.wait_for("asking", "/dev/adapter", Verdict::Opened)
}

// Fault: agent-ebpf/src/device.rs
// - if unsafe { bpf_set_retval(0) } == 0 { KEEP } else { REFUSE }
// + KEEP
fn b14_access_stays_when_a_scope_gets_other_processors(machine: &mut Machine) -> TestResult {
    access_stays(machine, "systemctl set-property --runtime ctr-asking.scope AllowedCPUs=0")
}

fn access_stays_when_the_runtime_updates_the_container(machine: &mut Machine) -> TestResult {
    access_stays(machine, "runc --root /run/containerd/runc/default --systemd-cgroup update --pids-limit 100 asking")
}

/// A loop in a container opens the device while the disturbance happens, and is not refused once.
fn access_stays(machine: &mut Machine, disturbance: &str) -> TestResult {
    machine.start_agent(ADAPTER)?;
    machine.start(&Container::new("asking").classes("adapter").scope())?;
    machine.plug(&Usb::serial("A1"))?;
    machine.wait_for("asking", "/dev/adapter", Verdict::Opened)?;
    machine.start_in("asking", OPEN_IN_A_LOOP)?;
    machine.wait_until_in("asking", "the loop runs", "test -e /tmp/counts")?;
    machine.run(disturbance)?;
    let before = counts(machine, "asking")?;
    let more = format!("test {} -lt $(cut -d ' ' -f 1 /tmp/counts)", before.0);
    machine.wait_until_in("asking", "the loop opens the device once more", &more)?;
    assert_eq!(counts(machine, "asking")?.1, 0, "the loop was refused");
    Ok(())
}

/// How often the loop has opened the device, and how often it was refused.
fn counts(machine: &mut Machine, container: &str) -> Result<(u64, u64)> {
    // A count that is just being written is empty.
    let counts = machine.wait_until_in(container, "the loop counts", "grep -E '^[0-9]+ [0-9]+$' /tmp/counts")?;
    let (opened, refused) = counts.split_once(' ').unwrap_or_default();
    Ok((opened.parse()?, refused.parse()?))
}

devgate_machine::tests! {
    &[DEBIAN_12, DEBIAN_13] => [
        b01_access_stays_when_systemd_reads_its_units_again,
        b02_access_stays_when_a_scope_gets_another_weight,
        b04_access_stays_whatever_systemd_is_told_first,
        b05_access_needs_no_links_by_number,
        b12_what_is_denied_is_never_open_while_systemd_reads_its_units,
        b13_a_scope_that_crun_makes_anew_has_access,
        b14_access_stays_when_a_scope_gets_other_processors,
        access_stays_when_the_runtime_updates_the_container,
    ],
}
