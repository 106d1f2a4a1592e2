//! The guard process: who it is, what it may, and that there is always one.

use std::{
    fs,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
};

use devgate::executors::enforcer::{Unguarded, status};
use devgate_tests::{
    guards,
    network::{Network, Uevents},
    prelude::*,
    raw,
};
use rustix::process::{PidfdFlags, getsid, pidfd_open};

tests![
    the_guard_holds_two_descriptors_and_no_rights,
    the_guard_outlives_the_agent,
    a_guard_that_is_not_in_charge_ends_with_its_agent,
    guards_follow_each_other_without_a_gap,
    the_guard_receives_nothing_and_never_wakes,
];

/// A message of the kernel about the removal of [`FUSE`].
fn removal() -> Vec<u8> {
    let fields = "remove@/a ACTION=remove DEVPATH=/a SUBSYSTEM=misc MAJOR=10 MINOR=229 DEVNAME=fuse SEQNUM=1 ";
    fields.replace(' ', "\0").into_bytes()
}

// Fault: agent/src/executors/enforcer/guard.rs
// - set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?;
// + set_capabilities(None, CapabilitySets { effective: none, permitted: CapabilitySet::BPF, inheritable: none })?;
// Fault: agent/src/executors/enforcer/guard.rs
// - .env_clear()
// + .env("DEVGATE_SECRET", "of the agent")
// Fault: agent/src/executors/enforcer/guard.rs
// - let _ = setsid();
// + let _ = setsid;
fn the_guard_holds_two_descriptors_and_no_rights() -> TestResult {
    let scratch = Scratch::new("guard")?;
    let enforcer = scratch.enforcer_with(|config| config.unguarded = Unguarded::Deny)?;
    let guard = guards::in_charge(&scratch.config())?;
    for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
        assert_eq!(guards::field(guard, set)?, "0000000000000000", "{set}");
    }
    let folder = format!("/proc/{}", guard.as_raw_nonzero());
    let mut held: Vec<(String, String)> = fs::read_dir(format!("{folder}/fd"))?
        .flatten()
        .map(|entry| {
            let target = fs::read_link(entry.path()).unwrap_or_default();
            (entry.file_name().to_string_lossy().into_owned(), target.to_string_lossy().into_owned())
        })
        .collect();
    held.sort();
    let [(_, socket), (_, array), (_, line), (_, lock)] = &held[..] else { panic!("it holds {held:?}") };
    assert!(socket.starts_with("socket:["), "{held:?}");
    assert_eq!(array, "anon_inode:bpf-map");
    assert_eq!(line, "/dev/null", "it is on the line no more");
    assert_eq!(lock, &scratch.config().run_dir.join("guard.lock").display().to_string());
    assert_eq!(fs::read(format!("{folder}/environ"))?, b"");
    assert_eq!(fs::read_link(format!("{folder}/cwd"))?.to_str(), Some("/"));
    assert_eq!(getsid(Some(guard))?, guard, "it leads a session of its own");
    assert_eq!(guards::all(&scratch.config())?, [guard]);
    drop(enforcer);
    Ok(())
}

// Fault: agent/src/executors/enforcer/guard.rs
// - if self.in_charge {
// + if false {
// Fault: agent/src/executors/enforcer/guard.rs
// - rustix::event::pause();
// + let _ = rustix::event::poll(&mut [], Some(&rustix::time::Timespec { tv_sec: 0, tv_nsec: 1_000_000 }));
// + if rustix::process::getppid().is_none_or(|parent| std::fs::read_to_string(format!("/proc/{}/cmdline", parent.as_raw_nonzero())).is_ok_and(|line| !line.contains("agent-of-a-test"))) { std::process::exit(0) }
fn the_guard_outlives_the_agent() -> TestResult {
    let scratch = Scratch::new("outlives")?;
    let network = Network::new()?;
    let config = EnforcerConfig { net_namespace: network.path(), ..scratch.config() };
    let uevents = network.uevents()?;
    let container = scratch.cgroup("container")?;
    let _runtime = deny_all(&container)?;
    let mut prober = scratch.prober(&container)?;
    let mut agent = Agent::start(&config)?;
    agent.manage(&container, Policy::default())?;
    agent.give(&container, FUSE, Access::READ, true)?;
    let guard = guards::in_charge(&config)?;
    let ended = pidfd_open(guard, PidfdFlags::empty())?;
    agent.kill()?;
    assert_eq!(prober.open(FUSE, Access::READ), ALLOWED);
    uevents.send(&removal())?;
    assert_eq!(prober.open(FUSE, Access::READ), DENIED);
    assert!(!is_readable(&ended));
    assert_eq!(guards::in_charge(&config)?, guard);
    // The next agent's guard comes in its place; when an agent ends in peace its guard stays as well.
    for _ in 0..2 {
        let before = guards::in_charge(&config)?;
        let mut enforcer = scratch.enforcer_with(|changed| *changed = config.clone())?;
        assert!(is_readable(&ended));
        assert_ne!(guards::in_charge(&config)?, before);
        assert_eq!(guards::all(&config)?.len(), 1);
        enforcer.give(&container, FUSE, &granting(Access::READ))?;
        drop(enforcer);
        uevents.send(&removal())?;
        assert_eq!(prober.open(FUSE, Access::READ), DENIED);
    }
    Ok(())
}

// Fault: agent/src/executors/enforcer/guard.rs
// - await_charge()?;
fn a_guard_that_is_not_in_charge_ends_with_its_agent() -> TestResult {
    let scratch = Scratch::new("incharge")?;
    let config = scratch.config();
    Agent::start(&config)?.kill()?;
    let guard = guards::in_charge(&config)?;
    let agent = Agent::start_inactive(&config)?;
    assert_eq!(guards::all(&config)?.len(), 2);
    assert_eq!(guards::in_charge(&config)?, guard, "until the agent enforces");
    agent.kill()?;
    wait_until("its guard has ended", || guards::all(&config).is_ok_and(|all| all == [guard]));
    // Also when the agent goes in peace, and there is none before it.
    drop(KernelEnforcer::open(config.clone())?);
    assert_eq!(guards::all(&config)?, [guard]);
    scratch.enforcer()?;
    assert_eq!(guards::all(&config)?, [guards::in_charge(&config)?]);
    Ok(())
}

/// One agent takes over from the other, again and again, while devices are removed without a pause: each removal voids.
// Fault: agent/src/executors/enforcer/kernel.rs
// - let guard = Guard::start(&config, &mut loaded.programs)?;
// + super::guard::end_running(&config.run_dir).unwrap();
// + let guard = Guard::start(&config, &mut loaded.programs)?;
fn guards_follow_each_other_without_a_gap() -> TestResult {
    let scratch = Scratch::new("gap")?;
    let network = Network::new()?;
    let uevents = network.uevents()?;
    let open = || scratch.enforcer_with(|config| config.net_namespace = network.path());
    let config = scratch.config();
    let mut enforcer = open()?;
    let epoch = enforcer.epoch(FUSE)?;
    let enough = AtomicBool::new(false);
    thread::scope(|scope| {
        let removals = scope.spawn(|| removals_until(&enough, &uevents, &config));
        let agents: anyhow::Result<KernelEnforcer> = (0..6).try_fold(enforcer, |before, _| {
            drop(before);
            open()
        });
        enough.store(true, Relaxed);
        let count = removals.join().expect("every removal has voided")?;
        assert!(count > 1000, "there were but {count} removals");
        assert!(agents?.epoch(FUSE)?.value() >= epoch.value() + count);
        Ok(())
    })
}

/// Removes the device, and looks each time whether its epoch has risen. Returns how often.
fn removals_until(enough: &AtomicBool, uevents: &Uevents, config: &EnforcerConfig) -> anyhow::Result<u64> {
    let mut count = 0;
    let mut before = raw::epoch(config, FUSE)?.expect("it has an epoch");
    while !enough.load(Relaxed) {
        uevents.send(&removal())?;
        let after = raw::epoch(config, FUSE)?.expect("it has an epoch");
        assert!(after > before, "removal {count} was not seen");
        before = after;
        count += 1;
    }
    Ok(count)
}

// Fault: agent-ebpf/src/guard.rs
// - const DROP: i64 = 0;
// + const DROP: i64 = -1;
fn the_guard_receives_nothing_and_never_wakes() -> TestResult {
    let scratch = Scratch::new("quiet")?;
    let network = Network::new()?;
    let mut enforcer = scratch.enforcer_with(|config| config.net_namespace = network.path())?;
    let before = enforcer.epoch(FUSE)?;
    let guard = guards::in_charge(&scratch.config())?;
    let socket = fs::read_link(format!("/proc/{}/fd/0", guard.as_raw_nonzero()))?.display().to_string();
    let inode = socket.trim_start_matches("socket:[").trim_end_matches(']');
    // `sk Eth Pid Groups Rmem Wmem Dump Locks Drops Inode`
    let waiting = || {
        let table = network.enter(|| Ok(fs::read_to_string("/proc/thread-self/net/netlink")?))?;
        let columns = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let line = table.lines().map(columns).find(|columns| columns.last().is_some_and(|last| last == inode));
        let line = line.expect("the guard's socket is in the namespace");
        anyhow::Ok((line[4].clone(), line[8].clone()))
    };
    let uevents = network.uevents()?;
    let wakes = || guards::field(guard, "voluntary_ctxt_switches");
    let woken = wakes()?;
    assert_eq!(waiting()?, ("0".to_owned(), "0".to_owned()));
    for _ in 0..300 {
        uevents.send(&removal())?;
        uevents.send(b"add@/a\0ACTION=add\0DEVPATH=/a\0SUBSYSTEM=misc\0MAJOR=10\0MINOR=229\0SEQNUM=2\0")?;
    }
    assert_eq!(waiting()?, ("0".to_owned(), "0".to_owned()), "nothing waits and nothing was lost");
    assert_eq!(wakes()?, woken);
    assert_eq!(enforcer.epoch(FUSE)?.value(), before.value() + 300);
    assert_eq!(status(&scratch.config())?.guards.uevent_advances, 300);
    Ok(())
}
