//! Which calls the kernel asks about, and what about: seen in the records of our own program.

use devgate::executors::enforcer::{AuditReader, RecordRate};
use devgate_tests::{prelude::*, prober::Held};

tests![
    each_way_to_open_asks_for_what_it_uses,
    access_and_mknod_ask_for_themselves,
    opening_a_block_device_asks_twice_and_a_denial_stops_it,
    a_path_descriptor_is_free_and_opening_it_is_not,
    what_is_open_stays_open,
    a_watch_asks_to_read,
    a_mount_without_devices_refuses_before_we_are_asked,
];

const NONE: [Access; 0] = [];

/// A managed container in which every decision is recorded, and a process in it.
struct Recorded {
    enforcer: KernelEnforcer,
    reader: AuditReader,
    prober: Prober,
    container: TestCgroup,
    // Last, so that it goes last.
    _scratch: Scratch,
}

impl Recorded {
    fn new(name: &str) -> anyhow::Result<Self> {
        let scratch = Scratch::new(name)?;
        let mut enforcer = scratch.enforcer_with(|config| {
            config.audit_everything = true;
            config.record_rate = RecordRate { per_second: 0, burst: 1 };
        })?;
        let container = scratch.cgroup("container")?;
        enforcer.manage(&container, Policy::default())?;
        let reader = enforcer.audit_reader()?;
        let prober = scratch.prober(&container)?;
        Ok(Self { enforcer, reader, prober, container, _scratch: scratch })
    }

    /// What was asked about a device since the last call.
    fn asked(&mut self, device: DeviceNumber) -> Vec<Access> {
        let records = drain(&mut self.reader);
        assert!(records.iter().all(|record| record.pid == self.prober.pid()));
        let about = records.into_iter().filter(|record| record.device == device);
        about.map(|record| Access::from_bits(record.access)).collect()
    }
}

// Fault: agent-ebpf/abi/src/number.rs
// - Some(device) => Some(Self { device, access: Access::from_bits(access_type >> 16) }),
// + Some(device) => Some(Self { device, access: Access::from_bits(access_type >> 16 & 3) }),
fn each_way_to_open_asks_for_what_it_uses() -> TestResult {
    let mut recorded = Recorded::new("open")?;
    for (flags, asks) in [
        (libc::O_RDONLY, Access::READ),
        (libc::O_WRONLY, Access::WRITE),
        (libc::O_RDWR, Access::READ_WRITE),
        // For ioctl alone (open(2), "File access mode"), with the rights to both.
        (libc::O_ACCMODE, Access::READ_WRITE),
        (libc::O_RDONLY | libc::O_TRUNC, Access::READ_WRITE),
    ] {
        assert_eq!(recorded.prober.open_with(ABSENT, flags), NO_DEVICE);
        assert_eq!(recorded.asked(ABSENT), [asks], "{flags:#o}");
    }
    Ok(())
}

// Fault: agent-ebpf/src/device.rs
// - if request.device.is_standard() {
// + if request.device.is_standard() || request.access.bits() == 1 {
fn access_and_mknod_ask_for_themselves() -> TestResult {
    let mut recorded = Recorded::new("access")?;
    for access in [Access::NONE, Access::READ, Access::WRITE, Access::READ_WRITE] {
        assert_eq!(recorded.prober.access(ABSENT, access), ALLOWED);
        assert_eq!(recorded.asked(ABSENT), [access]);
    }
    assert_eq!(recorded.prober.mknod(ABSENT), ALLOWED);
    assert_eq!(recorded.asked(ABSENT), [Access::MKNOD]);
    assert_eq!(recorded.prober.stat(ABSENT), ALLOWED);
    assert_eq!(recorded.asked(ABSENT), NONE);
    Ok(())
}

// Fault: agent-ebpf/abi/src/number.rs
// - 1 => Some(Self::Block),
// + 1 => None,
fn opening_a_block_device_asks_twice_and_a_denial_stops_it() -> TestResult {
    let mut recorded = Recorded::new("block")?;
    if recorded.prober.open(LOOP, Access::READ) == NO_DEVICE {
        return skip("there is no loop device");
    }
    assert_eq!(recorded.asked(LOOP), [Access::READ, Access::READ]);
    recorded.enforcer.revoke(recorded.container.id(), LOOP, Revocation::Deny)?;
    assert_eq!(recorded.prober.open(LOOP, Access::READ), DENIED);
    assert_eq!(recorded.asked(LOOP), [Access::READ]);
    // A grant opens it, which takes both.
    let _runtime = deny_all(&recorded.container)?;
    recorded.enforcer.give(&recorded.container, LOOP, &granting(Access::READ))?;
    assert_eq!(recorded.prober.open(LOOP, Access::READ), ALLOWED);
    assert_eq!(recorded.asked(LOOP), [Access::READ, Access::READ]);
    let counters = recorded.enforcer.read_back()?.cgroups[0].counters;
    assert_eq!((counters.granted, counters.denied), (2, 1));
    Ok(())
}

fn hold(prober: &mut Prober, device: DeviceNumber, flags: i32) -> anyhow::Result<Held> {
    prober.hold(device, flags).map_err(|answer| anyhow::anyhow!("{device} cannot be opened: {answer:?}"))
}

// Fault: agent/src/executors/enforcer/kernel.rs
// - deny: Access::ALL,
// + deny: Access::MKNOD,
fn a_path_descriptor_is_free_and_opening_it_is_not() -> TestResult {
    let mut recorded = Recorded::new("path")?;
    let held = hold(&mut recorded.prober, FUSE, libc::O_PATH)?;
    assert_eq!(recorded.asked(FUSE), NONE);
    assert_eq!(recorded.prober.reopen(&held, Access::READ_WRITE), ALLOWED);
    assert_eq!(recorded.asked(FUSE), [Access::READ_WRITE]);
    recorded.enforcer.revoke(recorded.container.id(), FUSE, Revocation::Deny)?;
    assert_eq!(recorded.prober.reopen(&held, Access::READ), DENIED);
    assert_eq!(recorded.asked(FUSE), [Access::READ]);
    let another = hold(&mut recorded.prober, FUSE, libc::O_PATH)?;
    assert_eq!(recorded.asked(FUSE), NONE);
    assert_eq!(recorded.prober.reopen(&another, Access::WRITE), DENIED);
    Ok(())
}

/// No revocation reaches an open descriptor: the kernel does not ask again. Opening it anew is asked about.
// Fault: agent/src/executors/enforcer/kernel.rs
// - allow: Access::NONE,
// - deny: Access::ALL,
// + allow: Access::NONE,
// + deny: Access::NONE,
fn what_is_open_stays_open() -> TestResult {
    let mut recorded = Recorded::new("held")?;
    if recorded.prober.open(LOOP, Access::READ) == NO_DEVICE {
        return skip("there is no loop device");
    }
    let held = hold(&mut recorded.prober, LOOP, libc::O_RDWR)?;
    recorded.asked(LOOP);
    let nothing_behind_it = Answer(libc::ENOSPC);
    assert_eq!([recorded.prober.read(&held), recorded.prober.write(&held)], [ALLOWED, nothing_behind_it]);
    recorded.enforcer.revoke(recorded.container.id(), LOOP, Revocation::Deny)?;
    assert_eq!([recorded.prober.read(&held), recorded.prober.write(&held)], [ALLOWED, nothing_behind_it]);
    assert_eq!(recorded.asked(LOOP), NONE);
    assert_eq!(recorded.prober.reopen(&held, Access::READ), DENIED);
    assert_eq!(recorded.asked(LOOP), [Access::READ]);
    Ok(())
}

fn a_watch_asks_to_read() -> TestResult {
    let mut recorded = Recorded::new("watch")?;
    assert_eq!(recorded.prober.watch(ABSENT), ALLOWED);
    assert_eq!(recorded.asked(ABSENT), [Access::READ]);
    recorded.enforcer.revoke(recorded.container.id(), ABSENT, Revocation::Deny)?;
    assert_eq!(recorded.prober.watch(ABSENT), DENIED);
    Ok(())
}

fn a_mount_without_devices_refuses_before_we_are_asked() -> TestResult {
    let mut recorded = Recorded::new("nodev")?;
    recorded.prober = Prober::start(&recorded.container, &Nodes::nodev()?)?;
    assert_eq!(recorded.prober.open(FUSE, Access::READ), Answer(libc::EACCES));
    assert_eq!(recorded.asked(FUSE), NONE);
    Ok(())
}
