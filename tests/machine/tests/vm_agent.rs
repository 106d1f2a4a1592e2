//! The agent as a unit of systemd, with real USB devices and containers.

use devgate_machine::{ALL, Container, Machine, TestResult, Usb, Verdict};

/// Serial adapters of FTDI.
const ADAPTER: &str = "
apiVersion: devgate.dev/v1alpha1
kind: DeviceClass
metadata: { name: adapter }
spec:
  match: [ { subsystem: tty, properties: { ID_VENDOR_ID: '0403' } } ]
  allocation: { kind: All }
  path: /dev/adapter
";

/// Opens the device again and again until it is told to stop. A redirection of `true` costs no process.
const OPEN_IN_A_LOOP: &str = "opened=0; refused=0
    while ! test -e /tmp/stop; do
        if true </dev/adapter; then opened=$((opened + 1)); else refused=$((refused + 1)); fi
        echo $opened $refused >/tmp/counts
    done";

fn b63_a_replugged_adapter_is_usable_under_the_same_path(machine: &mut Machine) -> TestResult {
    machine.start_agent(ADAPTER)?;
    machine.start(&Container::new("asking").classes("adapter"))?;
    machine.start(&Container::new("other"))?;
    assert_eq!(machine.open("asking", "/dev/adapter")?, Verdict::NoNode);

    let adapter = machine.plug(&Usb::serial("A1"))?;
    machine.wait_for("asking", "/dev/adapter", Verdict::Opened)?;
    machine.run_in("other", "mknod /tmp/first c 188 0 && mknod /tmp/second c 188 1")?;
    assert_eq!(machine.open("other", "/tmp/first")?, Verdict::Denied);

    machine.run("systemd-run --unit holder sh -c 'exec 3<>/dev/ttyUSB0; sleep 1000000'")?;
    machine.wait_until("the old number is held", "ls -l /proc/$(systemctl show --value --property MainPID holder)/fd | grep ttyUSB0")?;
    machine.unplug(adapter)?;
    machine.wait_for("asking", "/dev/adapter", Verdict::NoNode)?;
    let _again = machine.plug(&Usb::serial("A1"))?;
    machine.wait_for("asking", "/dev/adapter", Verdict::Opened)?;
    machine.run("test $(stat --format %t:%T /dev/ttyUSB1) = bc:1")?;
    assert_eq!(machine.run_in("asking", "stat -c %t:%T /dev/adapter")?, "bc:1");
    assert_eq!(machine.open("other", "/tmp/second")?, Verdict::Denied);
    Ok(())
}

/// What makes systemd or the runtime put its own device program in place once more.
fn access_is_the_same_whatever_systemd_does(machine: &mut Machine) -> TestResult {
    machine.start_agent(ADAPTER)?;
    machine.start(&Container::new("asking").classes("adapter").scope())?;
    machine.plug(&Usb::serial("A1"))?;
    machine.wait_for("asking", "/dev/adapter", Verdict::Opened)?;
    machine.start_in("asking", OPEN_IN_A_LOOP)?;
    for disturbance in [
        "systemctl daemon-reload",
        "systemctl daemon-reexec",
        "systemctl set-property --runtime ctr-asking.scope CPUWeight=50",
        "systemctl set-property --runtime ctr-asking.scope AllowedCPUs=0",
        "runc --root /run/containerd/runc/default --systemd-cgroup update --pids-limit 100 asking",
    ] {
        machine.run(disturbance)?;
        let before = machine.run_in("asking", "cat /tmp/counts")?;
        let more = format!("test '{before}' != \"$(cat /tmp/counts)\"");
        machine.wait_until_in("asking", "the loop opens the device once more", &more)?;
    }
    machine.run_in("asking", "touch /tmp/stop")?;
    let counts = machine.run_in("asking", "cat /tmp/counts")?;
    let (opened, refused) = counts.split_once(' ').unwrap_or_default();
    assert!(opened.parse::<u64>()? > 10, "{counts}");
    assert_eq!(refused, "0", "{counts}");
    Ok(())
}

devgate_machine::tests! {
    &ALL => [
        b63_a_replugged_adapter_is_usable_under_the_same_path,
        access_is_the_same_whatever_systemd_does,
    ],
}
