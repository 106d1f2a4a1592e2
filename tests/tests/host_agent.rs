//! The whole agent: a device that is plugged reaches a running container, and leaves it.

use devgate_tests::prelude::*;

tests![a_device_that_is_plugged_reaches_the_container_that_asked,];

/// Every tap, under a stable path.
const SENSOR: &str = "\
apiVersion: devgate.dev/v1alpha1
kind: DeviceClass
metadata: { name: sensor }
spec:
  match: [ { subsystem: macvtap, properties: { ID_VENDOR_ID: '0403' } } ]
  allocation: { kind: All }
  path: /dev/sensor
";

fn a_device_that_is_plugged_reaches_the_container_that_asked() -> TestResult {
    let machine = Machine::new("reaches")?;
    machine.write_class("sensor.yaml", SENSOR)?;
    let asking = machine.containerd().container("asking").label(WISH, "sensor").run()?;
    let other = machine.containerd().container("other").run()?;
    let _agent = machine.agent()?;
    let mut audit = machine.audit()?;

    let number = machine.taps().plug(1)?;
    audit.wait("nodePlaced", |line| line["path"] == "/dev/sensor")?;
    let opened = asking.exec(["dd", "if=/dev/sensor", "of=/dev/null", "count=0"])?;
    assert!(opened.status.success(), "{}", String::from_utf8_lossy(&opened.stderr));
    let (mut inside, mut outside) = (machine.insider(&asking)?, machine.insider(&other)?);
    assert_eq!(inside.which("/dev/sensor"), Answer::of_device(1));
    assert_eq!(inside.number("/dev/sensor")?, Some(number));
    assert_eq!(outside.number("/dev/sensor")?, None);
    assert_eq!(outside.open_number(number), DENIED);
    let (major, minor) = (number.major().to_string(), number.minor().to_string());
    assert!(other.exec(["mknod", "/tmp/sensor", "c", &major, &minor])?.status.success());
    let refused = other.exec(["dd", "if=/tmp/sensor", "of=/dev/null", "count=0"])?;
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("Operation not permitted"), "{said}");

    machine.taps().unplug(1)?;
    audit.wait("nodeRemoved", |line| line["path"] == "/dev/sensor")?;
    assert_eq!(inside.number("/dev/sensor")?, None);
    assert_eq!(inside.open_number(number), DENIED);
    Ok(())
}
