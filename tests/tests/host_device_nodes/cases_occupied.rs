//! Containers in which something stands in the way. Nothing of it is changed.

use anyhow::{Result, ensure};
use devgate::executors::device_nodes::{Change, FileKind, Outcome, Refusal};
use libtest_mimic::Trial;

use crate::container::Container;
use crate::executor::{block_on, change, executor, must_have, node, place, refusal, trials};
use crate::spec::{Dev, Order, Spec};

pub(crate) fn trials() -> Vec<Trial> {
    trials![
        what_stands_at_the_path_stays,
        what_stands_at_a_directory_of_the_path_stays,
        a_node_of_the_runtime_is_left_alone,
        a_read_only_dev_is_reported,
        a_full_dev_is_reported,
        a_missing_dev_is_reported,
        a_fork_storm_delays_nothing,
    ]
}

fn something(kind: FileKind, at: &str) -> Vec<Order> {
    let at = at.to_owned();
    match kind {
        // A link to what does not exist: following it would create that.
        FileKind::Symlink => vec![Order::Symlink { target: "/volume/made".to_owned(), path: at }],
        FileKind::Directory => vec![Order::Mkdir(at)],
        FileKind::Socket => vec![Order::BindSocket(at)],
        FileKind::Device => vec![Order::Mknod { path: at, major: 1, minor: 3 }],
        FileKind::Mount => vec![Order::Mkdir(at.clone()), Order::MountTmpfs(at)],
        FileKind::File | FileKind::Fifo => vec![Order::Write { path: at, text: "mine".to_owned() }],
    }
}

// Fault: agent/src/executors/device_nodes/helper/place.rs
// - Found::Other(kind) => return Err(occupied(place, kind)),
// + Found::Other(kind) => return Err(occupied(place, if kind == FileKind::Socket { FileKind::File } else { kind })),
fn what_stands_at_the_path_stays() -> Result<()> {
    let mut container = Container::start(&Spec::default())?;
    for kind in
        [FileKind::Symlink, FileKind::Directory, FileKind::Socket, FileKind::Device, FileKind::Mount, FileKind::File]
    {
        let at = format!("/dev/{kind:?}");
        for order in something(kind, &at) {
            container.must(&order)?;
        }
        let before = container.stat(&at)?;
        let refusal = refusal(&container, &at)?;
        ensure!(refusal == Refusal::Occupied { path: at.clone(), kind }, "{refusal:?}");
        ensure!(container.stat(&at)? == before, "{at} has changed");
    }
    ensure!(container.stat("/volume/made")?.is_none(), "the link was followed");
    Ok(())
}

// Fault: agent/src/executors/device_nodes/helper/dev_dir.rs
// - Err(Errno::LOOP | Errno::NOTDIR) => {
// + Err(Errno::NXIO) => {
fn what_stands_at_a_directory_of_the_path_stays() -> Result<()> {
    let mut container = Container::start(&Spec::default())?;
    container.must(&Order::Mkdir("/dev/elsewhere/001".to_owned()))?;
    container.must(&Order::Symlink { target: "elsewhere".to_owned(), path: "/dev/bus".to_owned() })?;
    container.must(&Order::Write { path: "/dev/file".to_owned(), text: String::new() })?;
    for (directory, kind) in [("/dev/bus", FileKind::Symlink), ("/dev/file", FileKind::File)] {
        let refusal = refusal(&container, &format!("{directory}/001/004"))?;
        ensure!(refusal == Refusal::Occupied { path: directory.to_owned(), kind }, "{refusal:?}");
    }
    ensure!(container.stat("/dev/elsewhere/001/004")?.is_none(), "the link was followed");
    Ok(())
}

// Fault: agent/src/executors/device_nodes/helper/place.rs
// - Found::Node(number) if number == place.number => return Ok(Outcome::NotOurs),
// + Found::Node(number) if number != place.number => return Ok(Outcome::NotOurs),
fn a_node_of_the_runtime_is_left_alone() -> Result<()> {
    let mut container = Container::start(&Spec::default())?;
    container.must(&Order::Mknod { path: "/dev/scanner".to_owned(), major: 10, minor: 229 })?;
    let before = container.stat("/dev/scanner")?;
    let outcome = block_on(async { change(&executor()?, &container, Change::Place(node("/dev/scanner"))).await })?;
    ensure!(outcome == Outcome::NotOurs, "{outcome:?}");
    ensure!(container.stat("/dev/scanner")? == before, "it has changed");
    Ok(())
}

// Fault: agent/src/executors/device_nodes/helper/visit.rs
// - Errno::ROFS => Refusal::ReadOnly { path: path.to_string() },
// + Errno::ROFS => Refusal::DevMissing,
fn a_read_only_dev_is_reported() -> Result<()> {
    let mut container = Container::start(&Spec::default())?;
    container.must(&Order::RemountReadOnly("/dev".to_owned()))?;
    for at in ["/dev/scanner", "/dev/bus/usb/001/004"] {
        let refusal = refusal(&container, at)?;
        ensure!(refusal == Refusal::ReadOnly { path: at.to_owned() }, "{refusal:?}");
    }
    Ok(())
}

// Fault: agent/src/executors/device_nodes/helper/visit.rs
// - Errno::NOSPC | Errno::DQUOT => Refusal::NoSpace { path: path.to_string() },
// + Errno::DQUOT => Refusal::NoSpace { path: path.to_string() },
fn a_full_dev_is_reported() -> Result<()> {
    let mut container = Container::start(&Spec { dev: Dev::OwnWithInodes(8), ..Spec::default() })?;
    container.must(&Order::Fill("/dev".to_owned()))?;
    let refusal = refusal(&container, "/dev/scanner")?;
    ensure!(refusal == Refusal::NoSpace { path: "/dev/scanner".to_owned() }, "{refusal:?}");
    container.must(&Order::Unlink("/dev/fill0".to_owned()))?;
    block_on(async { place(&executor()?, &container, node("/dev/scanner")).await })?;
    must_have(&mut container, "/dev/scanner")?;
    Ok(())
}

// Fault: agent/src/executors/device_nodes/helper/dev_dir.rs
// - Errno::NOENT => Refusal::DevMissing,
// + Errno::NOENT => Refusal::DevIsSymlink,
fn a_missing_dev_is_reported() -> Result<()> {
    let mut container = Container::start(&Spec::default())?;
    container.must(&Order::Unmount("/dev".to_owned()))?;
    container.must(&Order::Rmdir("/dev".to_owned()))?;
    let refusal = refusal(&container, "/dev/scanner")?;
    ensure!(refusal == Refusal::DevMissing, "{refusal:?}");
    ensure!(container.stat("/dev")?.is_none(), "something was made");
    Ok(())
}

// Fault: agent/src/executors/device_nodes/process.rs
// - let deadline = self.config.deadline;
// + let deadline = self.config.deadline / 200_000;
fn a_fork_storm_delays_nothing() -> Result<()> {
    let mut container = Container::start(&Spec::default())?;
    let mut other = Container::start(&Spec::default())?;
    container.must(&Order::ForkStorm(8))?;
    for index in 0..10 {
        let at = format!("/dev/scanner{index}");
        block_on(async {
            let executor = executor()?;
            let (stormy, quiet) =
                tokio::join!(place(&executor, &container, node(&at)), place(&executor, &other, node(&at)));
            stormy.and(quiet)
        })?;
        must_have(&mut container, &at)?;
        must_have(&mut other, &at)?;
    }
    let outcome = block_on(async { change(&executor()?, &container, Change::Place(node("/dev/scanner0"))).await })?;
    ensure!(matches!(outcome, Outcome::AlreadyThere { .. }), "{outcome:?}");
    Ok(())
}
