//! The process that forks helpers: it dies, hangs, and leaves nothing behind.

use std::collections::BTreeSet;
use std::fs;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use devgate::executors::device_nodes::{Change, DeviceNodes, HelperConfig, HelperProcesses, VisitError};
use devgate_tests::{wait_readable, wait_until};
use libtest_mimic::Trial;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::cases_fuse::silent;
use crate::container::Container;
use crate::executor::{block_on, config, executor, must_have, node, place, trials};
use crate::spec::{Order, Spec};
use crate::visitor::Visitor;

pub(crate) fn trials() -> Vec<Trial> {
    trials![
        a_server_that_died_is_replaced,
        a_server_that_dies_while_it_is_asked_is_replaced,
        a_server_that_hangs_is_replaced,
        a_helper_that_hangs_does_not_hide_that_the_server_has_died,
        a_helper_that_hangs_keeps_no_other_container_waiting,
        a_visit_that_is_given_up_leaves_no_helper,
        a_thousand_visits_leave_nothing_behind,
        the_server_ends_with_the_agent,
    ]
}

/// The server of an executor that has made a visit, taken hold of while it lives.
fn server(executor: &HelperProcesses) -> Result<OwnedFd> {
    process(executor.server_pid().context("no server")?)
}

fn process(pid: u32) -> Result<OwnedFd> {
    let pid = Pid::from_raw(i32::try_from(pid)?).context("pid 0")?;
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}

fn kill(process: &OwnedFd) -> Result<()> {
    pidfd_send_signal(process, Signal::KILL)?;
    wait_readable("the process has ended", process);
    Ok(())
}

/// The processes that this one has started and not yet reaped.
fn children(pid: u32) -> Vec<String> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    children.split_whitespace().map(str::to_owned).collect()
}

/// Names the mount namespace of a process that lives.
fn mount_namespace(pid: &str) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{pid}/ns/mnt")).ok()
}

// Fault: agent/src/executors/device_nodes/server.rs
// - && descriptors::send(&server.requests, b"?", &descriptors).is_ok()
// + && matches!(descriptors::send(&server.requests, b"?", &descriptors), Ok(()) | Err(_))
fn a_server_that_died_is_replaced() -> Result<()> {
    let mut container = Container::start(&Spec::default())?;
    block_on(async {
        let executor = executor()?;
        place(&executor, &container, node("/dev/first")).await?;
        kill(&server(&executor)?)?;
        place(&executor, &container, node("/dev/second")).await?;
        Ok(())
    })?;
    must_have(&mut container, "/dev/first")?;
    must_have(&mut container, "/dev/second")?;
    Ok(())
}

// Fault: agent/src/executors/device_nodes/process.rs
// - const ATTEMPTS: usize = 2;
// + const ATTEMPTS: usize = 1;
fn a_server_that_dies_while_it_is_asked_is_replaced() -> Result<()> {
    let mut container = Container::start(&Spec::default())?;
    block_on(async {
        let executor = executor()?;
        place(&executor, &container, node("/dev/first")).await?;
        let server = server(&executor)?;
        pidfd_send_signal(&server, Signal::STOP)?;
        // The first of the two asks for a helper before the other has its turn.
        let (placed, killed) = tokio::join!(place(&executor, &container, node("/dev/second")), async { kill(&server) });
        killed?;
        placed?;
        Ok(())
    })?;
    must_have(&mut container, "/dev/second")?;
    Ok(())
}

// Fault: agent/src/executors/device_nodes/process.rs
// - self.server.give_up(&server);
// + drop(server);
fn a_server_that_hangs_is_replaced() -> Result<()> {
    let mut container = Container::start(&Spec::default())?;
    block_on(async {
        let executor = HelperProcesses::new(HelperConfig { deadline: Duration::from_secs(1), ..config()? });
        place(&executor, &container, node("/dev/first")).await?;
        let server = server(&executor)?;
        pidfd_send_signal(&server, Signal::STOP)?;
        let changes = vec![Change::Place(node("/dev/second"))];
        let visit = executor.visit(&container.find()?, changes).await;
        ensure!(matches!(visit, Err(VisitError::Deadline(_))), "{visit:?}");
        ensure!(executor.hanging().borrow().is_empty(), "the container is blamed for it");
        let next = place(&executor, &container, node("/dev/second")).await;
        // The request that was given up is found abandoned.
        pidfd_send_signal(&server, Signal::CONT)?;
        wait_readable("the server has ended", &server);
        next?;
        Ok(())
    })?;
    must_have(&mut container, "/dev/second")?;
    Ok(())
}

/// Begins a visit to a [`silent`] container, and does something meanwhile.
async fn during_a_hanging_visit<T>(
    executor: &HelperProcesses,
    mut container: Container,
    meanwhile: impl Future<Output = Result<T>>,
) -> Result<T> {
    let found = container.find()?;
    let mut visit = Box::pin(executor.visit(&found, vec![Change::Place(node("/dev/scanner"))]));
    // Once its message has been taken the helper waits in a sleep that no signal ends.
    let taken = tokio::task::spawn_blocking(move || (container.must(&Order::TakeFuseMessage), container));
    let mut container = tokio::select! {
        // Both can be polled again, and neither is dropped.
        visit = &mut visit => anyhow::bail!("the container has answered: {visit:?}"),
        taken = taken => {
            let (taken, container) = taken?;
            taken?;
            container
        }
    };
    let result = tokio::select! {
        visit = &mut visit => Err(anyhow::anyhow!("the visit has ended first: {visit:?}")),
        result = meanwhile => result,
    };
    drop(visit);
    container.must(&Order::CloseFuse)?;
    executor.hanging().wait_for(BTreeSet::is_empty).await?;
    result
}

// Fault: agent/src/executors/device_nodes/helper/server.rs
// - drop(requests);
// + std::mem::forget(requests);
fn a_helper_that_hangs_does_not_hide_that_the_server_has_died() -> Result<()> {
    let (silent, mut other) = (silent("/", true)?, Container::start(&Spec::default())?);
    block_on(async {
        let executor = executor()?;
        let others = async {
            kill(&server(&executor)?)?;
            place(&executor, &other, node("/dev/scanner")).await
        };
        during_a_hanging_visit(&executor, silent, others).await
    })?;
    must_have(&mut other, "/dev/scanner")?;
    Ok(())
}

// Fault: agent/src/executors/device_nodes/process.rs
// - drop(turn);
// + let _for_ever = turn;
fn a_helper_that_hangs_keeps_no_other_container_waiting() -> Result<()> {
    let (silent, mut other) = (silent("/", true)?, Container::start(&Spec::default())?);
    block_on(async {
        let executor = HelperProcesses::new(HelperConfig { parallel: 1, ..config()? });
        during_a_hanging_visit(&executor, silent, place(&executor, &other, node("/dev/scanner"))).await
    })?;
    must_have(&mut other, "/dev/scanner")?;
    Ok(())
}

// Fault: agent/src/executors/device_nodes/process.rs
// - match pidfd_send_signal(&pidfd, Signal::KILL) {
// + match pidfd_send_signal(&pidfd, Signal::CHILD) {
fn a_visit_that_is_given_up_leaves_no_helper() -> Result<()> {
    // Nobody takes its message, so a helper here can be killed.
    let container = silent("/", false)?;
    block_on(async {
        // The helper's own time would end long after the test's patience.
        let executor = HelperProcesses::new(HelperConfig { deadline: Duration::from_mins(5), ..config()? });
        let other = Container::start(&Spec::default())?;
        place(&executor, &other, node("/dev/scanner")).await?;
        let server = executor.server_pid().context("no server")?;
        wait_until("the first helper has ended", || children(server).is_empty());
        let (found, entered) = (container.find()?, mount_namespace(&container.pid.to_string()));
        let visit = executor.visit(&found, vec![Change::Place(node("/dev/scanner"))]);
        let inside = move || children(server).iter().any(|helper| mount_namespace(helper) == entered);
        let begun = tokio::task::spawn_blocking(move || wait_until("a helper is in the container", inside));
        tokio::select! {
            // The visit is what is given up here.
            visit = visit => anyhow::bail!("the container has answered: {visit:?}"),
            begun = begun => begun?,
        }
        let ended =
            tokio::task::spawn_blocking(move || wait_until("the helper has ended", || children(server).is_empty()));
        ended.await?;
        executor.hanging().wait_for(BTreeSet::is_empty).await?;
        Ok(())
    })
}

// Fault: agent/src/executors/device_nodes/helper/server.rs
// - match unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) } {
// + match unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) } {
// Fault: agent/src/executors/device_nodes/helper/server.rs
// - _ => {}
// + _ => std::mem::forget((pidfd, conversation)),
// Fault: agent/src/executors/device_nodes/process.rs
// - self.pidfd = None;
// + std::mem::forget(self.pidfd.take());
fn a_thousand_visits_leave_nothing_behind() -> Result<()> {
    let container = Container::start(&Spec::default())?;
    let mut agent = Visitor::start(&container)?;
    let first = agent.visit(1)?;
    let last = agent.visit(500)?;
    ensure!(first.server == last.server, "the server has died");
    ensure!((first.server_files, first.own_files) == (last.server_files, last.own_files), "{first:?}, then {last:?}");
    wait_until("all helpers have gone", || children(last.server).is_empty());
    ensure!(children(agent.pid()) == [last.server.to_string()], "the agent has {:?}", children(agent.pid()));
    Ok(())
}

// Fault: agent/src/executors/device_nodes/helper/server.rs
// - if length == 0 {
// + if length == 2 {
fn the_server_ends_with_the_agent() -> Result<()> {
    let container = Container::start(&Spec::default())?;
    let mut agent = Visitor::start(&container)?;
    let server = process(agent.visit(1)?.server)?;
    agent.kill()?;
    let ended = std::panic::catch_unwind(|| wait_readable("the server has ended", &server));
    // A faulty one shall not outlive the test.
    let _ = pidfd_send_signal(&server, Signal::KILL);
    ended.map_err(|_| anyhow::anyhow!("the server lives on"))
}
