//! Device programs of others: runtimes and systemd are expected, and whatever else denies is not overridden unasked.

use std::os::fd::AsFd;

use devgate::executors::enforcer::{ForeignFilters, WithheldReason, sys};
use devgate_tests::{
    prelude::*,
    prober::Attempt,
    raw::{RawMap, Shape},
};

tests![
    b12_systemd_may_attach_anew_at_any_time,
    a_grant_over_an_unknown_program_is_withheld,
    a_program_with_maps_is_no_runtime_s,
    programs_of_runtimes_and_systemd_are_expected,
    the_configuration_names_more_programs_or_overrides_all,
    a_program_above_ours_is_no_reason,
    nothing_is_enforced_below_a_program_that_denies_all,
];

/// A program of a name that denies every device.
fn denying(cgroup: &TestCgroup, name: &str) -> anyhow::Result<Runtime> {
    Runtime::of(cgroup, sys::load_device_program(&sys::return_constant(0), name)?)
}

/// As systemd does at each reload: a new program at the end, then the old one goes; and as it did before version 248:
/// the old one goes first, and for a moment there is none.
// Fault: agent-ebpf/abi/src/decide.rs
// - if denies(rule.deny, access) {
// + if denies(rule.deny, access) && !layer.own {
// Fault: agent-ebpf/src/device.rs
// - if unsafe { bpf_set_retval(0) } == 0 { KEEP } else { REFUSE }
// + if unsafe { bpf_set_retval(-1) } == 0 { KEEP } else { REFUSE }
// Fault: agent-ebpf/src/device.rs
// - return Some(REFUSE);
// + return Some(KEEP);
fn b12_systemd_may_attach_anew_at_any_time() -> TestResult {
    let scratch = Scratch::new("b12")?;
    let mut enforcer = scratch.enforcer()?;
    let container = scratch.cgroup("container")?;
    enforcer.manage(&container, Policy::default())?;
    enforcer.give(&container, FUSE, &granting(Access::READ))?;
    enforcer.revoke(container.id(), ABSENT, Revocation::Deny)?;
    let (mut one, mut two) = (scratch.prober(&container)?, scratch.prober(&container)?);
    let open = Attempt::Open(libc::O_RDONLY | libc::O_NONBLOCK);
    let mut systemd = denying(&container, "sd_devices")?;
    let (granted, denied) = (one.run(FUSE, open), two.run(ABSENT, open));
    for reload in 0..200 {
        if reload % 2 == 0 {
            let next = denying(&container, "sd_devices")?;
            systemd = next;
        } else {
            drop(systemd);
            granted.go_on(2);
            denied.go_on(2);
            systemd = denying(&container, "sd_devices")?;
        }
        granted.go_on(2);
        denied.go_on(2);
        assert_eq!(sys::effective_programs(container.as_fd())?.len(), 2);
    }
    assert_eq!(enforcer.check()?, []);
    for (run, answer) in [(granted, ALLOWED), (denied, DENIED)] {
        let counts = run.stop();
        assert_eq!(counts.of(answer), counts.total(), "{counts:?}");
        assert!(counts.total() >= 600);
    }
    drop(systemd);
    Ok(())
}

// Fault: agent/src/executors/enforcer/kernel.rs
// - if self.config.foreign_filters == ForeignFilters::Withhold {
// + if false {
// Fault: agent/src/executors/enforcer/filters.rs
// - let expected = of_runtime || name == SYSTEMD || known.contains(&name);
// + let expected = info.map_count == 0 || name == SYSTEMD || known.contains(&name);
fn a_grant_over_an_unknown_program_is_withheld() -> TestResult {
    let scratch = Scratch::new("foreign")?;
    let mut enforcer = scratch.enforcer()?;
    // In the container itself, and in a cgroup between it and ours.
    let pod = scratch.cgroup("pod")?;
    let container = pod.child("container")?;
    let mut prober = scratch.prober(&container)?;
    enforcer.manage(&container, Policy::default())?;
    for place in [&container, &pod] {
        let foreign = denying(place, "other_agent")?;
        let info: sys::ProgramInfo = sys::info(foreign.as_fd())?;
        let outcome = enforcer.give(&container, FUSE, &granting(Access::READ))?;
        let GrantOutcome::Withheld(reason) = outcome else { panic!("{outcome:?}") };
        let WithheldReason::ForeignFilterDenies(filters) = &reason else { panic!("{reason:?}") };
        let [filter] = &filters[..] else { panic!("{filters:?}") };
        assert_eq!((filter.id, &filter.identity), (info.id, &Some(("other_agent".to_owned(), info.tag))));
        for part in ["ForeignFilterDenies", "other_agent", &info.id.to_string()] {
            assert!(reason.to_string().contains(part), "{reason}");
        }
        assert_eq!(enforcer.read_back()?.rules, [], "nothing was changed");
        assert_eq!(prober.open(FUSE, Access::READ), DENIED);
        drop(foreign);
        assert_eq!(enforcer.give(&container, FUSE, &granting(Access::READ))?, GrantOutcome::Granted);
        enforcer.revoke(container.id(), FUSE, Revocation::Forget)?;
    }
    // What is attached beside the container does not matter.
    let beside = scratch.cgroup("beside")?;
    let _foreign = denying(&beside, "other_agent")?;
    assert_eq!(enforcer.give(&container, FUSE, &granting(Access::READ))?, GrantOutcome::Granted);
    Ok(())
}

/// Without a name, as those of runtimes; but theirs are constants, and this one can change its mind.
// Fault: agent/src/executors/enforcer/filters.rs
// - let of_runtime = name.is_empty() && info.map_count == 0;
// + let of_runtime = name.is_empty();
fn a_program_with_maps_is_no_runtime_s() -> TestResult {
    let scratch = Scratch::new("map")?;
    let mut enforcer = scratch.enforcer()?;
    let container = scratch.cgroup("container")?;
    enforcer.manage(&container, Policy::default())?;
    let map = RawMap::create(Shape { kind: 2, key_size: 4, value_size: 4, max_entries: 1, flags: 0 })?;
    let program = runtime_with_map(&map);
    let foreign = attach(&container, &program)?;
    let outcome = enforcer.give(&container, FUSE, &granting(Access::READ))?;
    assert!(matches!(outcome, GrantOutcome::Withheld(WithheldReason::ForeignFilterDenies(_))), "{outcome:?}");
    drop(foreign);
    assert_eq!(enforcer.give(&container, FUSE, &granting(Access::READ))?, GrantOutcome::Granted);
    Ok(())
}

/// `r1 = map; r0 = 0; exit`, where the first instruction has two halves (`BPF_LD | BPF_IMM | BPF_DW`, with
/// `BPF_PSEUDO_MAP_FD` as its source).
fn runtime_with_map(map: &RawMap) -> Vec<sys::Instruction> {
    use std::os::fd::AsRawFd;
    let fd = u64::from(map.as_fd().as_raw_fd().cast_unsigned());
    let mut program = vec![0x18 | 1 << 8 | 1 << 12 | fd << 32, 0];
    program.extend(sys::return_constant(0));
    program
}

// Fault: agent/src/executors/enforcer/filters.rs
// - const SYSTEMD: &str = "sd_devices";
// + const SYSTEMD: &str = "sd_device";
// Fault: agent/src/executors/enforcer/filters.rs
// - let of_runtime = name.is_empty() && info.map_count == 0;
// + let of_runtime = name.is_empty() && info.map_count > 0;
fn programs_of_runtimes_and_systemd_are_expected() -> TestResult {
    let scratch = Scratch::new("expected")?;
    let mut enforcer = scratch.enforcer()?;
    let container = scratch.cgroup("container")?;
    let mut prober = scratch.prober(&container)?;
    enforcer.manage(&container, Policy::default())?;
    for names in [&[""][..], &["sd_devices"], &["", "sd_devices", ""]] {
        let programs: Vec<Runtime> =
            names.iter().map(|name| denying(&container, name)).collect::<anyhow::Result<_>>()?;
        assert_eq!(prober.open(FUSE, Access::READ), DENIED, "{names:?}");
        assert_eq!(enforcer.give(&container, FUSE, &granting(Access::READ))?, GrantOutcome::Granted, "{names:?}");
        assert_eq!(prober.open(FUSE, Access::READ), ALLOWED, "{names:?}");
        enforcer.revoke(container.id(), FUSE, Revocation::Forget)?;
        drop(programs);
    }
    Ok(())
}

// Fault: agent/src/executors/enforcer/filters.rs
// - let expected = of_runtime || name == SYSTEMD || known.contains(&name);
// + let expected = of_runtime || name == SYSTEMD;
fn the_configuration_names_more_programs_or_overrides_all() -> TestResult {
    let scratch = Scratch::new("known")?;
    let container = scratch.cgroup("container")?;
    let _foreign = denying(&container, "other_agent")?;
    let mut prober = scratch.prober(&container)?;
    let changes: [fn(&mut EnforcerConfig); 2] = [
        |config| config.known_filters = vec!["another".to_owned(), "other_agent".to_owned()],
        |config| config.foreign_filters = ForeignFilters::Override,
    ];
    for change in changes {
        let mut enforcer = scratch.enforcer_with(change)?;
        enforcer.manage(&container, Policy::default())?;
        assert_eq!(prober.open(FUSE, Access::READ), DENIED);
        assert_eq!(enforcer.give(&container, FUSE, &granting(Access::READ))?, GrantOutcome::Granted);
        assert_eq!(prober.open(FUSE, Access::READ), ALLOWED);
        enforcer.revoke(container.id(), FUSE, Revocation::Forget)?;
    }
    Ok(())
}

/// What runs after ours is overridden by nobody, so a grant takes nothing from it. Before ours is in force there is
/// nothing to tell the order by but the cgroups.
// Fault: agent/src/executors/enforcer/kernel.rs
// - let before = programs.into_iter().take_while(|id| !ours.contains(id)).filter(|id| !after.contains(id));
// + let before = programs.into_iter().filter(|id| !ours.contains(id)).filter(|id| !after.contains(id));
// Fault: agent/src/executors/enforcer/kernel.rs
// - let before = programs.into_iter().take_while(|id| !ours.contains(id)).filter(|id| !after.contains(id));
// + let before = programs.into_iter().take_while(|id| !ours.contains(id));
fn a_program_above_ours_is_no_reason() -> TestResult {
    let scratch = Scratch::new("above")?;
    let kubepods = scratch.cgroup("kubepods")?;
    let container = kubepods.child("container")?;
    let _runtime = deny_all(&container)?;
    let allowing = |cgroup: &TestCgroup| -> anyhow::Result<Runtime> {
        Runtime::of(cgroup, sys::load_device_program(&sys::return_constant(1), "other_agent")?)
    };
    let _above = allowing(scratch.ancestor())?;
    let config = EnforcerConfig { ancestor: kubepods.path().to_owned(), ..scratch.config() };
    let mut enforcer = KernelEnforcer::open(config)?;
    assert_eq!(enforcer.give(&container, FUSE, &granting(Access::READ))?, GrantOutcome::Granted);
    enforcer.activate()?;
    // Attached to the same cgroup after ours, it runs after ours.
    let _later = allowing(&kubepods)?;
    assert_eq!(enforcer.give(&container, FUSE, &granting(Access::READ))?, GrantOutcome::Granted);
    enforcer.manage(&container, Policy::default())?;
    assert_eq!(scratch.prober(&container)?.open(FUSE, Access::READ), ALLOWED);
    Ok(())
}

// Fault: agent/src/executors/enforcer/self_test.rs
// - if errno == libc::EPERM && !after.is_empty() {
// + if errno == libc::EACCES && !after.is_empty() {
fn nothing_is_enforced_below_a_program_that_denies_all() -> TestResult {
    let scratch = Scratch::new("last")?;
    let kubepods = scratch.cgroup("kubepods")?;
    let above = denying(scratch.ancestor(), "other_agent")?;
    let config = EnforcerConfig { ancestor: kubepods.path().to_owned(), ..scratch.config() };
    let error = format!("{:#}", anyhow::Error::from(KernelEnforcer::open(config.clone()).map(drop).unwrap_err()));
    assert!(error.contains("other_agent"), "it is not the kernel that lacks something: {error}");
    drop(above);
    KernelEnforcer::open(config)?.activate()?;
    Ok(())
}
