//! The agent as a unit of systemd, with real USB devices and containers.

use devgate_machine::{
    ALL, Container, DEBIAN_12, Machine, TestResult, Usb, Verdict,
    classes::{ADAPTER, KEYS, UNIT},
};

fn b63_a_replugged_adapter_is_usable_under_the_same_path(machine: &mut Machine) -> TestResult {
    machine.start_agent(ADAPTER)?;
    machine.start(&Container::new("asking").classes("adapter"))?;
    machine.start(&Container::new("other"))?;
    assert_eq!(machine.open("asking", "/dev/adapter")?, Verdict::NoNode);

    let adapter = machine.plug(&Usb::serial("A1"))?;
    machine.wait_for("asking", "/dev/adapter", Verdict::Opened)?;
    machine.run_in("other", "mknod /tmp/first c 188 0 && mknod /tmp/second c 188 1")?;
    assert_eq!(machine.open("other", "/tmp/first")?, Verdict::Denied);

    machine.run("systemd-run --unit holder sh -c 'trap \"\" HUP; exec 3<>/dev/ttyUSB0; sleep 1000000'")?;
    let held = "ls -l /proc/$(systemctl show --value --property MainPID holder)/fd | grep ttyUSB0";
    machine.wait_until("the old number is held", held)?;
    machine.unplug(adapter)?;
    machine.wait_for("asking", "/dev/adapter", Verdict::NoNode)?;
    machine.plug(&Usb::serial("A1"))?;
    machine.wait_for("asking", "/dev/adapter", Verdict::Opened)?;
    assert_eq!(machine.run("stat --format %t:%T /dev/ttyUSB1")?, "bc:1");
    assert_eq!(machine.run_in("asking", "stat -c %t:%T /dev/adapter")?, "bc:1");
    assert_eq!(machine.open("other", "/tmp/second")?, Verdict::Denied);
    Ok(())
}

// Fault: agent/src/sources/udev/monitor.rs
// - self.reader.stays().handled(number, sequence);
// - }
// - self.send_device(hint(&action, devpath)).await
// + }
// + Ok(())
fn b46_a_device_that_comes_late_needs_no_restart(machine: &mut Machine) -> TestResult {
    machine.start_agent(ADAPTER)?;
    machine.start(&Container::new("asking").classes("adapter"))?;
    let agent = machine.run("systemctl show --property MainPID devgate")?;
    machine.plug(&Usb::serial("A1"))?;
    machine.wait_for("asking", "/dev/adapter", Verdict::Opened)?;
    assert_eq!(machine.run("systemctl show --property MainPID devgate")?, agent);
    Ok(())
}

// Fault: agent/src/sources/udev/monitor.rs
// - self.reader.stays().handled(number, sequence);
// - }
// - self.send_device(hint(&action, devpath)).await
// + }
// + Ok(())
fn b61_a_driver_may_be_loaded_after_its_device_is_plugged(machine: &mut Machine) -> TestResult {
    machine.put("/etc/modprobe.d/late.conf", 0o644, "blacklist ftdi_sio\n")?;
    machine.start_agent(ADAPTER)?;
    machine.start(&Container::new("asking").classes("adapter"))?;
    machine.plug(&Usb::serial("A1"))?;
    machine.wait_until("the adapter is on the bus", "grep -l 0403 /sys/bus/usb/devices/*/idVendor")?;
    machine.run("udevadm settle && ! grep -w ttyUSB /proc/devices")?;
    machine.run("modprobe ftdi_sio")?;
    machine.wait_for("asking", "/dev/adapter", Verdict::Opened)
}

fn b64_of_equal_sticks_each_is_given_and_no_other_device(machine: &mut Machine) -> TestResult {
    machine.start_agent(&ADAPTER.replace("/dev/adapter", "/dev/adapter%i"))?;
    machine.plug(&Usb::serial("TWIN"))?;
    machine.plug(&Usb::serial("TWIN"))?;
    machine.plug(&Usb::keyboard())?;
    machine.wait_until("both are there", "test -c /dev/ttyUSB0 -a -c /dev/ttyUSB1 && udevadm settle")?;
    machine.start(&Container::new("asking").classes("adapter"))?;
    machine.wait_for("asking", "/dev/adapter0", Verdict::Opened)?;
    machine.wait_for("asking", "/dev/adapter1", Verdict::Opened)?;
    assert_eq!(machine.run_in("asking", "stat -c %t:%T /dev/adapter* | sort")?, "bc:0\nbc:1");
    assert_eq!(machine.open("asking", "/dev/adapter2")?, Verdict::NoNode);
    Ok(())
}

// Fault: agent/src/sources/udev/monitor.rs
// - self.reader.stays().handled(number, sequence);
// - }
// - self.send_device(hint(&action, devpath)).await
// + }
// + Ok(())
fn b68_a_device_with_another_number_on_the_bus_keeps_its_path(machine: &mut Machine) -> TestResult {
    machine.start_agent(UNIT)?;
    machine.start(&Container::new("asking").classes("unit"))?;
    let adapter = machine.plug(&Usb::serial("A1"))?;
    machine.wait_for("asking", "/dev/unit", Verdict::Opened)?;
    let before = machine.run_in("asking", "stat -c %t:%T /dev/unit")?;
    machine.unplug(adapter)?;
    machine.plug(&Usb::serial("A1"))?;
    machine.wait_until_in(
        "asking",
        "the path has the new number",
        &format!("test $(stat -c %t:%T /dev/unit) != {before}"),
    )?;
    machine.wait_for("asking", "/dev/unit", Verdict::Opened)
}

// Fault: agent/core/src/class/matcher.rs
// - self.matches.iter().any(|item| item.mismatch(device).is_none())
// + self.matches.iter().take(1).any(|item| item.mismatch(device).is_none())
fn b70_a_device_that_comes_back_as_another_product_keeps_its_path(machine: &mut Machine) -> TestResult {
    machine.start_agent(UNIT)?;
    machine.start(&Container::new("asking").classes("unit"))?;
    let loader = machine.plug(&Usb::serial("A1"))?;
    machine.wait_for("asking", "/dev/unit", Verdict::Opened)?;
    machine.unplug(loader)?;
    machine.plug(&Usb::keyboard())?;
    machine.wait_until("the other product is on the bus", "grep -l 0627 /sys/bus/usb/devices/*/idVendor")?;
    let number = "$(stat --format %t:%T /dev/bus/usb/001/* | tail -n 1)";
    let number = machine.run(&format!("udevadm settle; echo {number}"))?;
    machine.wait_until_in("asking", "the path leads to it", &format!("test $(stat -c %t:%T /dev/unit) = {number}"))?;
    machine.wait_for("asking", "/dev/unit", Verdict::Opened)
}

// Fault: agent/src/sources/udev/monitor.rs
// - self.reader.stays().handled(number, sequence);
// - }
// - self.send_device(hint(&action, devpath)).await
// + }
// + Ok(())
fn b78_a_node_whose_module_is_loaded_later_is_given_then(machine: &mut Machine) -> TestResult {
    machine.run("! grep -w uinput /proc/misc")?;
    machine.start_agent(KEYS)?;
    machine.start(&Container::new("asking").classes("keys"))?;
    machine.run("modprobe uinput")?;
    machine.wait_for("asking", "/dev/keys", Verdict::Opened)
}

devgate_machine::tests! {
    &ALL => [b63_a_replugged_adapter_is_usable_under_the_same_path],
    &[DEBIAN_12] => [
        b46_a_device_that_comes_late_needs_no_restart,
        b61_a_driver_may_be_loaded_after_its_device_is_plugged,
        b64_of_equal_sticks_each_is_given_and_no_other_device,
        b68_a_device_with_another_number_on_the_bus_keeps_its_path,
        b70_a_device_that_comes_back_as_another_product_keeps_its_path,
        b78_a_node_whose_module_is_loaded_later_is_given_then,
    ],
}
