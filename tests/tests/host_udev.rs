//! What is plugged in: the device source with the real kernel and udevd.

#[path = "host_udev/listener.rs"]
mod listener;

use anyhow::Context;
use devgate::sources::udev::{self, UdevConfig};
use devgate_core::{DevPath, DeviceEvent, Event};
use devgate_tests::{TestResult, UdevHost};

use listener::{Listener, of_macvtap};

/// The kernel gives a device's number and folder to the next one at once; what makes them two is the incarnation.
fn a_device_is_found_when_it_comes_and_missed_when_it_goes() -> TestResult {
    let host = UdevHost::new()?;
    let number = host.taps().plug(1)?;
    host.settle()?;
    let devpath = host.devpath(1, number)?;
    let mut listener = Listener::new(&host)?;
    listener.classes(&[of_macvtap("sensor")]);

    let listed = listener.next_listed();
    let device = listed.iter().find(|device| device.devpath == devpath).context("the device is in the list")?;
    assert_eq!((device.number, device.subsystem.as_str()), (number, "macvtap"));
    assert_eq!(device.properties["ID_SERIAL"], "ACME_Sensor_mvt1");
    assert_eq!((device.owner.mode, device.owner.gid), (0o660, 20));
    assert_eq!(device.devnode, format!("/dev/{}", devpath.kernel_name()));
    assert_eq!(device.parents[0].subsystem.as_deref(), Some("net"));
    assert!(matches!(listener.next(), Event::Classes(classes) if classes.len() == 1), "behind the list");
    let first = listener.read(&devpath).context("it can be read")?;
    assert_eq!(first, *device, "the list and the look say the same");

    host.taps().unplug(1)?;
    let removed = listener.wait_for(|event| match event {
        DeviceEvent::Removed { devpath, number } => Some((devpath.clone(), *number)),
        _ => None,
    });
    assert_eq!(removed, (devpath.clone(), Some(number)));
    assert_eq!(listener.read(&devpath), None);

    assert_eq!(host.taps().plug(2)?, number, "the number is given to the next device");
    let added = listener.wait_for(|event| match event {
        DeviceEvent::Added { devpath } => Some(devpath.clone()),
        _ => None,
    });
    let second = listener.read(&added).context("the next device is there")?;
    assert_eq!(second.properties["ID_SERIAL"], "ACME_Sensor_mvt2");
    assert_ne!(second.incarnation, first.incarnation);
    Ok(())
}

/// The same name, the same number, the same place in sysfs: only the stay is another one.
// Fault: agent/src/sources/udev/device.rs
// - Ok(inode(Path::new(&format!("{SYSFS}{devpath}")))? == Some(stay.plug))
// + Ok(inode(Path::new(&format!("{SYSFS}{devpath}")))?.is_some())
fn a_device_remains_until_it_is_unplugged() -> TestResult {
    let host = UdevHost::new()?;
    let index = "link add link vt1 name mvt1 index 1001 type macvtap";
    host.network().ip(index)?;
    host.settle()?;
    let devpath = DevPath::from("/devices/virtual/net/mvt1/macvtap/tap1001");
    let mut listener = Listener::new(&host)?;
    listener.classes(&[of_macvtap("sensor")]);
    listener.next_listed();
    let first = listener.read(&devpath).context("it can be read")?;
    assert!(listener.remains(&first));

    host.taps().unplug(1)?;
    assert!(!listener.remains(&first), "it is gone");
    host.network().ip(index)?;
    host.settle()?;
    let second = listener.read(&devpath).context("another one is at the same place")?;
    assert!(!listener.remains(&first), "it is gone for good");
    assert!(listener.remains(&second));
    Ok(())
}

// udev keeps properties by number. A device that has just got the number of one that has left must not be taken for it.
// Fault: agent/src/sources/udev/stays.rs
// - !stay.stale
// + true
fn a_device_is_not_taken_for_the_one_before() -> TestResult {
    let host = UdevHost::new()?;
    let number = host.taps().plug(1)?;
    host.settle()?;
    let old = host.devpath(1, number)?;
    let mut listener = Listener::new(&host)?;
    listener.classes(&[of_macvtap("sensor")]);
    assert!(listener.next_listed().iter().any(|device| device.devpath == old));

    host.pause()?;
    host.taps().unplug(1)?;
    assert_eq!(host.taps().plug(2)?, number);
    listener.wait_for(|event| matches!(event, DeviceEvent::Removed { .. }).then_some(()));
    let new = host.devpath(2, number)?;
    assert_eq!(listener.read(&new), None, "the database still has the serial number of the one before");

    host.resume()?;
    listener.wait_for(|event| matches!(event, DeviceEvent::Added { devpath } if *devpath == new).then_some(()));
    let device = listener.read(&new).context("udev has finished with it")?;
    assert_eq!(device.properties["ID_SERIAL"], "ACME_Sensor_mvt2");
    Ok(())
}

// A device that udev has not handled lacks the properties that a class might exclude it by.
// Fault: agent/src/sources/udev/device.rs
// - if !known || (database == Database::Required && !device.is_initialized()) {
// + if !known {
fn a_device_counts_when_udev_has_finished_with_it() -> TestResult {
    let host = UdevHost::new()?;
    let mut listener = Listener::new(&host)?;
    listener.classes(&[of_macvtap("sensor")]);
    listener.next_listed();
    host.pause()?;
    let number = host.taps().plug(1)?;
    let devpath = host.devpath(1, number)?;
    assert_eq!(listener.read(&devpath), None);
    host.resume()?;
    listener
        .wait_for(|event| matches!(event, DeviceEvent::Added { devpath: added } if *added == devpath).then_some(()));
    assert!(listener.read(&devpath).is_some());
    Ok(())
}

// Fault: agent/src/sources/udev/monitor.rs
// - heard.lost |= std::mem::take(&mut self.lost);
// + heard.lost = false;
fn b56_a_flood_is_right_in_the_end() -> TestResult {
    const FLOOD: usize = 20_000;
    let host = UdevHost::without_udev()?;
    let flooded = host.taps().plug(1)?;
    let path = host.devpath(1, flooded)?;
    let leaving = host.taps().plug(2)?;
    let mut listener = Listener::with(&UdevConfig { receive_buffer: 4096, ..host.config() })?;
    listener.classes(&[of_macvtap("sensor")]);
    assert_eq!(listener.next_listed().len(), 2);

    // The source does not run meanwhile: what its socket does not hold is lost.
    for round in 0..FLOOD {
        host.trigger(&path, "change")?;
        if round == FLOOD / 2 {
            host.taps().unplug(2)?;
            host.network().ip("link add link vt1 name mvt3 type macvtap")?;
        }
    }
    let coming = leaving;
    listener.follow_until(|devices| {
        devices.len() == 2
            && devices.values().any(|device| device.number == flooded)
            && devices
                .values()
                .any(|device| device.number == coming && device.parents[0].devpath.as_str().ends_with("/mvt3"))
    });
    assert!(listener.counters().overflows() > 0, "messages were lost");
    let listings = listener.counters().listings();
    assert!(listings < 1000, "{listings} lists were made of it");
    Ok(())
}

// Fault: agent/src/sources/udev/monitor.rs
// - if !self.inbox.more {
// + if true {
fn b57_a_burst_is_handled_to_its_last_event() -> TestResult {
    const BURST: usize = 600;
    let host = UdevHost::without_udev()?;
    let number = host.taps().plug(1)?;
    let devpath = host.devpath(1, number)?;
    let mut listener = Listener::new(&host)?;
    listener.classes(&[of_macvtap("sensor")]);
    listener.next_listed();
    // All of it waits in the socket, more than is taken at once.
    (0..BURST).try_for_each(|_| host.trigger(&devpath, "change"))?;
    for _ in 0..BURST {
        listener.wait_for(|event| {
            matches!(event, DeviceEvent::Changed { devpath: changed } if *changed == devpath).then_some(())
        });
    }
    Ok(())
}

// udev's group can be written to by others; the kernel's cannot.
// Fault: agent/src/sources/udev/monitor.rs
// - self.reader.stays().handled(number, sequence);
// - }
// - self.send_device(hint(&action, devpath)).await
// + }
// + self.send_device(DeviceEvent::Removed { devpath, number: Some(number) }).await
fn what_others_send_is_a_hint_at_most() -> TestResult {
    let host = UdevHost::new()?;
    let number = host.taps().plug(1)?;
    host.settle()?;
    let devpath = host.devpath(1, number)?;
    let mut listener = Listener::new(&host)?;
    listener.classes(&[of_macvtap("sensor")]);
    listener.next_listed();
    let before = listener.read(&devpath);

    let sender = host.network().uevents()?;
    let (major, minor) = (number.major(), number.minor());
    let pairs = |action: &str, devpath: &DevPath| {
        format!("ACTION={action}\0DEVPATH={devpath}\0SUBSYSTEM=macvtap\0MAJOR={major}\0MINOR={minor}\0SEQNUM=999999\0")
    };
    let made_up = DevPath::from("/devices/virtual/net/none/tap9");
    sender.send(format!("remove@{devpath}\0{}", pairs("remove", &devpath)).as_bytes())?;
    sender.send_as_udev(&listener::udev_message("macvtap", &pairs("remove", &devpath)))?;
    sender.send_as_udev(&listener::udev_message("macvtap", &pairs("add", &made_up)))?;

    let mut seen = Vec::new();
    listener.wait_for(|event| {
        seen.push(format!("{event:?}"));
        matches!(event, DeviceEvent::Added { devpath } if *devpath == made_up).then_some(())
    });
    assert!(!seen.iter().any(|event| event.starts_with("Removed")), "{seen:?}");
    assert_eq!(listener.read(&made_up), None, "there is no such device");
    assert_eq!(listener.read(&devpath), before, "the device is as it was");
    assert!(before.is_some());
    assert_eq!(listener.counters().strangers(), 1, "the kernel's group is the kernel's");
    Ok(())
}

fn messages_of_another_form_lead_to_another_list() -> TestResult {
    let host = UdevHost::new()?;
    let mut listener = Listener::new(&host)?;
    listener.classes(&[of_macvtap("sensor")]);
    listener.next_listed();
    host.network().uevents()?.send_as_udev(&[0x55; 200])?;
    listener.next_listed();
    assert_eq!(listener.counters().unreadable(), 1);
    Ok(())
}

// The kernel tells of the folder that is moved, not of the devices in it.
// Fault: agent/src/sources/udev/monitor.rs
// - for (from, to) in with_it {
// + for (from, to) in with_it.into_iter().take(0) {
fn a_device_moves_with_what_it_is_part_of() -> TestResult {
    let host = UdevHost::new()?;
    let number = host.taps().plug(1)?;
    host.settle()?;
    let old = host.devpath(1, number)?;
    let mut listener = Listener::new(&host)?;
    listener.classes(&[of_macvtap("sensor")]);
    listener.next_listed();
    let before = listener.read(&old).context("it is there")?;
    host.network().ip("link set mvt1 name mvt9")?;
    let (from, to) = listener.wait_for(|event| match event {
        DeviceEvent::Moved { from, to } => Some((from.clone(), to.clone())),
        _ => None,
    });
    assert_eq!((&from, &to), (&old, &host.devpath(1, number)?));
    let after = listener.read(&to).context("it is there still")?;
    assert_eq!(after.incarnation, before.incarnation, "it is the same stay");
    Ok(())
}

// Without the classes it is not known what to look for; an empty list would say that nothing is there.
fn nothing_is_listed_before_there_are_classes() -> TestResult {
    let host = UdevHost::new()?;
    host.taps().plug(1)?;
    host.settle()?;
    let mut listener = Listener::new(&host)?;
    listener.classes(&[]);
    assert!(listener.next_listed().is_empty(), "no class asks for anything");
    assert!(matches!(listener.next(), Event::Classes(classes) if classes.is_empty()));
    listener.classes(&[of_macvtap("sensor")]);
    assert_eq!(listener.next_listed().len(), 1);
    assert!(matches!(listener.next(), Event::Classes(classes) if classes.len() == 1));
    listener.classes(&[of_macvtap("sensor"), of_macvtap("probe")]);
    assert!(
        matches!(listener.next(), Event::Classes(classes) if classes.len() == 2),
        "they ask for no more than before"
    );
    Ok(())
}

// Fault: agent/src/sources/udev/reader.rs
// - return Err(UdevError::NoDatabase);
// + return Ok(());
fn b59_what_is_missing_is_said_at_once() -> TestResult {
    let host = UdevHost::without_udev()?;
    let config = UdevConfig { database: udev::Database::Required, ..host.config() };
    std::fs::remove_dir_all(host.root().join("run/udev"))?;
    let said = |config: &UdevConfig| match udev::open(config) {
        Ok(_) => "nothing".to_owned(),
        Err(error) => error.to_string(),
    };
    assert!(said(&config).contains("mount the host's /run/udev"), "{}", said(&config));
    let config = UdevConfig { net_namespace: "/nowhere/net".into(), ..host.config() };
    assert!(said(&config).contains("/nowhere/net") && said(&config).contains("udev.netNamespace"));
    let config = UdevConfig { mount_namespace: Some("/nowhere/mnt".into()), ..host.config() };
    assert!(said(&config).contains("/nowhere/mnt") && said(&config).contains("udev.mountNamespace"));
    Ok(())
}

devgate_tests::tests![
    a_device_is_found_when_it_comes_and_missed_when_it_goes,
    a_device_remains_until_it_is_unplugged,
    a_device_is_not_taken_for_the_one_before,
    a_device_counts_when_udev_has_finished_with_it,
    b56_a_flood_is_right_in_the_end,
    b57_a_burst_is_handled_to_its_last_event,
    what_others_send_is_a_hint_at_most,
    messages_of_another_form_lead_to_another_list,
    a_device_moves_with_what_it_is_part_of,
    nothing_is_listed_before_there_are_classes,
    b59_what_is_missing_is_said_at_once,
];
