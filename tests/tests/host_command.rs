//! `devgate enforcer`: what it shows and removes, without the agent.

use std::{
    os::fd::AsFd,
    process::{Command, Output},
};

use devgate::executors::enforcer::{status, sys};
use devgate_tests::*;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use serde_json::{Value, json};

tests![
    status_tells_what_is_in_force,
    status_fails_when_nothing_is_enforced,
    uninstall_gives_the_runtime_its_verdict_back,
    uninstall_leaves_a_running_agent_alone,
];

/// Runs `devgate enforcer COMMAND` for the scratch.
fn devgate(scratch: &Scratch, command: &[&str]) -> anyhow::Result<Output> {
    let config = scratch.config();
    let mut run = Command::new(&config.executable);
    run.arg("enforcer").args(command).arg("--pin-root").arg(&config.pin_root);
    run.arg("--run-dir").arg(&config.run_dir).arg("--ancestor").arg(&config.ancestor);
    Ok(run.output()?)
}

/// What it printed, if it ended with this status.
fn printed(scratch: &Scratch, command: &[&str], code: i32) -> anyhow::Result<String> {
    let output = devgate(scratch, command)?;
    let errors = String::from_utf8(output.stderr)?;
    assert_eq!(output.status.code(), Some(code), "{errors}");
    assert_eq!(errors.is_empty(), code == 0, "{errors}");
    Ok(String::from_utf8(output.stdout)? + &errors)
}

// Fault: agent/src/executors/enforcer/status.rs
// - Ok(Some(Usage { used, limit: info.max_entries }))
// + Ok(Some(Usage { used: used + 1, limit: info.max_entries }))
// Fault: agent/src/executors/enforcer/status.rs
// - configured: ancestor.is_ok_and(|ancestor| ancestor.id() == info.cgroup),
// + configured: ancestor.is_ok(),
// Fault: agent/src/executors/enforcer/status.rs
// - unguarded: if flags.intersects(StateFlags::REQUIRE_GUARD) { Unguarded::Deny } else { Unguarded::Keep },
// + unguarded: config.unguarded,
fn status_tells_what_is_in_force() -> TestResult {
    let scratch = Scratch::new("status")?;
    let mut enforcer = scratch.enforcer_with(|config| {
        config.unguarded = devgate::executors::enforcer::Unguarded::Deny;
    })?;
    let container = scratch.cgroup("container")?;
    enforcer.manage(&container, Policy::default())?;
    for index in 0..3 {
        enforcer.give(&container, absent(index), &granting(Access::READ))?;
    }
    enforcer.revoke(container.id(), absent(0), Revocation::Forget)?;
    let [program] = sys::attached_programs(scratch.ancestor().as_fd())?[..] else { panic!("ours is attached once") };
    let guard = status(&scratch.config())?.guards.uevent_process.expect("a guard lives");

    // While the agent runs, and when it is gone.
    for _ in 0..2 {
        let text = printed(&scratch, &["status"], 0)?;
        for line in [
            "layout:              v1",
            &format!("link:                attached (program {program}, cgroup {})", scratch.ancestor().id()),
            &format!("uevent guard:        alive (process {guard}, 0 numbers voided)"),
            "without a guard:     devices that can be unplugged are denied",
            "managed cgroups:     1 of 4096",
            "rules:               2 of 65536",
            "device numbers:      3 of 16384",
        ] {
            assert!(text.lines().any(|have| have == line), "{line:?} is not in\n{text}");
        }
        let value: Value = serde_json::from_str(&printed(&scratch, &["status", "--json"], 0)?)?;
        let link = json!({
            "state": "attached", "program": program, "cgroup": scratch.ancestor().id(), "configured": true,
        });
        assert_eq!(value["link"], link);
        assert_eq!(value["guards"]["ueventProcess"], guard);
        assert_eq!(value["guards"]["unguarded"], "deny");
        assert_eq!(value["rules"], json!({"used": 2, "limit": 65536}));
        if !status(&scratch.config())?.guards.device_del {
            assert!(text.contains("device_del guard:    none"), "{text}");
        }
        let _ = sys::pinned(&scratch.config().pin_root.join("link"))?;
    }
    drop(enforcer);
    printed(&scratch, &["status"], 0)?;
    // The link is to another cgroup than the one that is asked about.
    let config = scratch.config();
    let elsewhere = Command::new(&config.executable)
        .args(["enforcer", "status", "--ancestor"])
        .arg(container.path())
        .arg("--pin-root")
        .arg(&config.pin_root)
        .output()?;
    assert_eq!(elsewhere.status.code(), Some(1));
    let errors = String::from_utf8(elsewhere.stderr)?;
    assert!(errors.contains("the link is not to the cgroup that is asked about"), "{errors}");
    Ok(())
}

// Fault: agent/src/executors/enforcer/status.rs
// - if info.cgroup == 0 {
// + if info.cgroup == 1 {
// Fault: agent/src/cli/enforcer.rs
// - LinkState::Absent | LinkState::Detached { .. } => anyhow::bail!("nothing is enforced"),
// + LinkState::Absent | LinkState::Detached { .. } => Ok(()),
fn status_fails_when_nothing_is_enforced() -> TestResult {
    let scratch = Scratch::new("nothing")?;
    let text = printed(&scratch, &["status"], 1)?;
    assert!(text.contains("link:                absent"), "{text}");
    assert!(text.contains("rules:               none"), "{text}");
    assert!(text.contains("devgate: nothing is enforced"), "{text}");
    let output = devgate(&scratch, &["status", "--json"])?;
    assert_eq!(output.status.code(), Some(1));
    let value: Value = serde_json::from_slice(&output.stdout)?;
    assert_eq!((&value["link"], &value["rules"]), (&json!({"state": "absent"}), &Value::Null));

    let enforcer = scratch.enforcer()?;
    let guard = status(&scratch.config())?.guards.uevent_process.and_then(Pid::from_raw).expect("a guard lives");
    let ended = pidfd_open(guard, PidfdFlags::empty())?;
    kill_process(guard, Signal::KILL)?;
    wait_readable("the guard has ended", &ended);
    sys::link_detach(sys::pinned(&scratch.config().pin_root.join("link"))?.as_fd())?;
    let text = printed(&scratch, &["status"], 1)?;
    assert!(text.contains("link:                detached (program "), "{text}");
    assert!(text.contains("uevent guard:        none"), "{text}");
    drop(enforcer);
    Ok(())
}

// Fault: agent/src/executors/enforcer/status.rs
// - guard::end_running(&config.run_dir).map_err(EnforcerError::Guard)?;
// + let _ = &config.run_dir;
// Fault: agent/src/executors/enforcer/status.rs
// - Ok(()) => removed.push(link),
// + Ok(()) => {}
fn uninstall_gives_the_runtime_its_verdict_back() -> TestResult {
    let scratch = Scratch::new("uninstall")?;
    let config = scratch.config();
    let container = scratch.cgroup("container")?;
    let _runtime = deny_all(&container)?;
    let revoked = scratch.cgroup("revoked")?;
    let (mut inside, mut outside) = (scratch.prober(&container)?, scratch.prober(&revoked)?);
    let mut agent = Agent::start(&config)?;
    agent.manage(&container, Policy::default())?;
    agent.manage(&revoked, Policy::DENY_OTHERS)?;
    agent.give(&container, FUSE, Access::READ, true)?;
    agent.kill()?;
    let verdicts =
        |inside: &mut Prober, outside: &mut Prober| [inside.open(FUSE, Access::READ), outside.open(FUSE, Access::READ)];
    assert_eq!(verdicts(&mut inside, &mut outside), [ALLOWED, DENIED]);
    let guard = status(&config)?.guards.uevent_process.and_then(Pid::from_raw).expect("a guard lives");
    let ended = pidfd_open(guard, PidfdFlags::empty())?;

    let text = printed(&scratch, &["uninstall"], 0)?;
    assert_eq!(verdicts(&mut inside, &mut outside), [DENIED, ALLOWED], "when the command has ended");
    assert_eq!(
        text,
        format!("removed {}\nremoved {}\n", config.pin_root.join("link").display(), config.pin_root.display())
    );
    assert!(!config.pin_root.exists());
    assert!(is_readable(&ended), "the guard has ended");
    assert_eq!(sys::attached_programs(scratch.ancestor().as_fd())?, [0_u32; 0]);
    assert_eq!(printed(&scratch, &["uninstall"], 0)?, "nothing was installed\n");
    // And the other way round: it can be installed again.
    scratch.enforcer()?;
    Ok(())
}

/// It would put back what was removed.
// Fault: agent/src/executors/enforcer/status.rs
// - let _lock = if config.pin_root.exists() { Some(lock(&config.pin_root)?) } else { None };
// + let _ = lock;
fn uninstall_leaves_a_running_agent_alone() -> TestResult {
    let scratch = Scratch::new("running")?;
    let mut agent = Agent::start(&scratch.config())?;
    let text = printed(&scratch, &["uninstall"], 1)?;
    assert!(text.contains("another devgate enforces with the pins in"), "{text}");
    assert_eq!(agent.check()?, "", "nothing was touched");
    agent.kill()?;
    printed(&scratch, &["uninstall"], 0)?;
    Ok(())
}
