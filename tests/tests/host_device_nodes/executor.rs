//! What all cases use of the executor.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use devgate::executors::device_nodes::{
    Change, DevPath, DeviceNodes, HelperConfig, HelperProcesses, NodeTag, Outcome, Place, Refusal,
};
use devgate_abi::DeviceNumber;
use libtest_mimic::{Completion, Trial};

use crate::container::{Container, cgroup_root};
use crate::spec::Stat;

/// The device of the tests: it can be opened wherever no device program forbids it, and nothing happens.
pub(crate) const FUSE: DeviceNumber = DeviceNumber::char(10, 229);
/// Another one, which the containers have as `/dev/null` at most.
pub(crate) const NULL: DeviceNumber = DeviceNumber::char(1, 3);

/// The tests with these names.
macro_rules! trials {
    ($($test:ident),* $(,)?) => { vec![$($crate::executor::trial(stringify!($test), $test)),*] };
}
pub(crate) use trials;

/// A test that is skipped where hand-made containers cannot be made.
pub(crate) fn trial(name: &str, test: fn() -> Result<()>) -> Trial {
    Trial::ignorable_test(name, move || {
        if let Some(reason) = missing() {
            return Ok(Completion::ignored_with(reason));
        }
        test().map_err(|error| format!("{error:?}"))?;
        Ok(Completion::Completed)
    })
}

fn missing() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("needs root".to_owned());
    }
    cgroup_root().err().map(|error| error.to_string())
}

/// Runs an async test.
pub(crate) fn block_on<T>(test: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(test)
}

pub(crate) fn config() -> Result<HelperConfig> {
    Ok(HelperConfig {
        executable: executable()?,
        cgroup_root: cgroup_root()?,
        deadline: Duration::from_secs(20),
        ..HelperConfig::default()
    })
}

pub(crate) fn executor() -> Result<HelperProcesses> {
    Ok(HelperProcesses::new(config()?))
}

/// The agent's executable: `DEVGATE_BIN`, or the one beside the test's in cargo's target directory.
fn executable() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("DEVGATE_BIN") {
        return Ok(path.into());
    }
    let test = std::env::current_exe()?;
    let path = test.ancestors().nth(2).context("the test is not in a target directory")?.join("devgate");
    ensure!(path.exists(), "{} is missing: run `cargo build -p devgate`, or set DEVGATE_BIN", path.display());
    Ok(path)
}

pub(crate) fn path(path: &str) -> DevPath {
    DevPath::try_from(path.to_owned()).expect("a path below /dev")
}

pub(crate) fn tag(tag: &str) -> NodeTag {
    NodeTag::try_from(tag.to_owned()).expect("a tag")
}

/// [`FUSE`] at a path, with unusual bits and owner.
pub(crate) fn node(at: &str) -> Place {
    Place { path: path(at), number: FUSE, mode: 0o642, uid: 3, gid: 20, tag: tag("fuse+1"), label: None }
}

/// One change in one visit.
pub(crate) async fn change(executor: &HelperProcesses, container: &Container, change: Change) -> Result<Outcome> {
    let mut outcomes = executor.visit(&container.find()?, vec![change]).await?;
    outcomes.pop().context("no outcome")
}

/// Places one node, which must not have been there, and returns its mount id.
pub(crate) async fn place(executor: &HelperProcesses, container: &Container, place: Place) -> Result<u64> {
    match change(executor, container, Change::Place(place)).await? {
        Outcome::Placed { mount_id } => Ok(mount_id),
        other => anyhow::bail!("not placed: {other:?}"),
    }
}

/// Tries to place [`node`], which must be refused and change nothing in the mount table.
pub(crate) fn refusal(container: &Container, at: &str) -> Result<Refusal> {
    let before = container.mounts()?;
    let outcome = block_on(async { change(&executor()?, container, Change::Place(node(at))).await })?;
    ensure!(container.mounts()? == before, "mounts have changed: {:#?}", container.mounts()?);
    match outcome {
        Outcome::Refused(refusal) => Ok(refusal),
        other => anyhow::bail!("not refused: {other:?}"),
    }
}

/// Sees that the container has [`node`] there, and can open it.
pub(crate) fn must_have(container: &mut Container, at: &str) -> Result<Stat> {
    let stat = container.stat(at)?.with_context(|| format!("{at} is missing"))?;
    let facts = (stat.mode, stat.uid, stat.gid, stat.major, stat.minor);
    ensure!(facts == (libc::S_IFCHR | 0o642, 3, 20, 10, 229), "{at} is {stat:?}");
    container.must(&crate::spec::Order::Open(at.to_owned()))?;
    Ok(stat)
}
