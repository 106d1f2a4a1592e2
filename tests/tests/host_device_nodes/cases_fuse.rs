//! Containers with a file system that never answers.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use devgate::executors::device_nodes::{Change, DeviceNodes, HelperConfig, HelperProcesses, Refusal, VisitError};
use libtest_mimic::Trial;

use crate::container::Container;
use crate::executor::{block_on, config, executor, must_have, node, place, refusal, trials};
use crate::spec::{Order, Spec};

pub(crate) fn trials() -> Vec<Trial> {
    trials![
        a_file_system_that_never_answers_at_dev_is_not_even_asked,
        a_file_system_that_never_answers_costs_one_deadline,
        a_helper_that_cannot_be_killed_is_given_up,
    ]
}

const DEADLINE: Duration = Duration::from_millis(500);

/// A container with such a file system at `path`, which is mounted by means of a node that we placed.
pub(crate) fn silent(path: &str, greet: bool) -> Result<Container> {
    let mut container = Container::start(&Spec::default())?;
    block_on(async { place(&executor()?, &container, node("/dev/fuse")).await })?;
    container.must(&Order::MountFuse { device: "/dev/fuse".to_owned(), path: path.to_owned(), greet })?;
    Ok(container)
}

fn impatient() -> Result<HelperProcesses> {
    Ok(HelperProcesses::new(HelperConfig { deadline: DEADLINE, ..config()? }))
}

// Fault: agent/src/executors/device_nodes/helper/look.rs
// - stat(file, StatxFlags::MNT_ID).map(|stat| stat.stx_mnt_id)
// + statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::ALL).map(|stat| stat.stx_mnt_id)
fn a_file_system_that_never_answers_at_dev_is_not_even_asked() -> Result<()> {
    for greet in [false, true] {
        let container = silent("/dev", greet)?;
        let refusal = refusal(&container, "/dev/scanner")?;
        ensure!(refusal == Refusal::DevNotTmpfs { fstype: "fuse".to_owned() }, "{refusal:?}");
    }
    Ok(())
}

// Fault: agent/src/executors/device_nodes/process.rs
// - let answer = timeout_at(until, exchange).await.unwrap_or(Err(VisitError::Deadline(deadline)))?;
// + let answer = timeout_at(until + deadline * 99, exchange).await.unwrap_or(Err(VisitError::Deadline(deadline)))?;
fn a_file_system_that_never_answers_costs_one_deadline() -> Result<()> {
    let container = silent("/", false)?;
    let mut other = Container::start(&Spec::default())?;
    block_on(async {
        let executor = impatient()?;
        let (found, changes) = (container.find()?, vec![Change::Place(node("/dev/scanner"))]);
        let start = Instant::now();
        let others = async { (place(&executor, &other, node("/dev/scanner")).await, start.elapsed()) };
        let (visit, (placed, waited)) = tokio::join!(executor.visit(&found, changes), others);
        ensure!(matches!(visit, Err(VisitError::Deadline(_))), "{visit:?}");
        ensure!(start.elapsed() < 4 * DEADLINE, "given up after {:?}", start.elapsed());
        placed?;
        ensure!(waited < DEADLINE, "the other container waited {waited:?}");
        // This one can be killed.
        executor.hanging().wait_for(std::collections::BTreeSet::is_empty).await?;
        Ok(())
    })?;
    must_have(&mut other, "/dev/scanner")?;
    Ok(())
}

// Fault: agent/src/executors/device_nodes/process.rs
// - hanging.send_modify(|ids| _ = ids.insert(cgroup_id));
// + hanging.send_modify(|ids| _ = ids.remove(&cgroup_id));
fn a_helper_that_cannot_be_killed_is_given_up() -> Result<()> {
    let mut container = silent("/", true)?;
    let mut other = Container::start(&Spec::default())?;
    block_on(async {
        let executor = impatient()?;
        let (found, changes) = (container.find()?, vec![Change::Place(node("/dev/scanner"))]);
        // Once its message has been taken the helper waits in a sleep that no signal ends.
        let visit = executor.visit(&found, changes.clone());
        let taken = tokio::task::spawn_blocking(move || (container.must(&Order::TakeFuseMessage), container));
        let (visit, taken) = tokio::join!(visit, taken);
        ensure!(matches!(visit, Err(VisitError::Deadline(_))), "{visit:?}");
        let (taken, mut container) = taken?;
        taken?;
        let start = Instant::now();
        let again = executor.visit(&found, changes).await;
        ensure!(matches!(again, Err(VisitError::Hanging)) && start.elapsed() < DEADLINE, "{again:?}");
        place(&executor, &other, node("/dev/scanner")).await?;

        // Time enough for a process that can be killed to end.
        ensure!(executor.hanging().borrow().contains(&found.cgroup_id()), "the helper has ended");
        container.must(&Order::CloseFuse)?;
        executor.hanging().wait_for(std::collections::BTreeSet::is_empty).await?;
        Ok(())
    })?;
    must_have(&mut other, "/dev/scanner")?;
    Ok(())
}
