//! That the container that is changed is the one that was meant.

use std::fs;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use devgate::executors::device_nodes::{
    Change, ContainerError, ContainerRef, DeviceNodes, EntryError, HelperProcesses, VisitError,
};
use libtest_mimic::Trial;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::thread::{UnshareFlags, unshare_unsafe};

use crate::container::{Cgroup, Container, cgroup_root};
use crate::executor::{block_on, config, executor, must_have, node, place, trials};
use crate::spec::{Order, Spec};

pub(crate) fn trials() -> Vec<Trial> {
    trials![
        b16_the_cgroup_is_the_containers_when_its_process_is_below,
        b18_a_pid_that_belongs_to_another_is_not_entered,
        b18_a_pid_of_another_cgroup_is_not_found,
        b18_a_process_outside_the_cgroup_is_not_entered,
        a_process_of_the_host_is_not_entered,
        a_process_of_the_host_is_not_entered_by_an_agent_in_a_container,
        a_process_that_left_its_user_namespace_is_not_entered,
        b67_an_agent_in_a_new_mount_namespace_reaches_the_container,
        b67_a_container_in_a_new_mount_namespace_is_reached_there,
    ]
}

fn pidfd(pid: u32) -> Result<OwnedFd> {
    let pid = Pid::from_raw(i32::try_from(pid)?).context("pid 0")?;
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}

/// Visits a container in which nothing may happen.
fn entry_error(container: &ContainerRef) -> Result<EntryError> {
    let visit = block_on(async { Ok(executor()?.visit(container, vec![Change::Place(node("/dev/scanner"))]).await) })?;
    match visit {
        Err(VisitError::NotEntered(error)) => Ok(error),
        other => bail!("{other:?}"),
    }
}

/// A process of the host, in a cgroup, that ends with this value.
struct Sleeper(Child);

impl Sleeper {
    fn start(command: &mut Command, cgroup: &Cgroup) -> Result<Self> {
        let mut sleeper = Self(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?);
        fs::write(cgroup.leaf.join("cgroup.procs"), sleeper.0.id().to_string())?;
        // What it says back has gone through it, so it has done all that comes before.
        sleeper.0.stdin.as_mut().context("no input")?.write_all(b"?")?;
        sleeper.0.stdout.as_mut().context("no output")?.read_exact(&mut [0])?;
        Ok(sleeper)
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        // `cat` ends with its input, and neither can fail for a child that has not been waited for.
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

// Fault: agent/src/executors/device_nodes/container.rs
// - if !ids.contains(&cgroup_id) {
// + if ids.first() != Some(&cgroup_id) {
fn b16_the_cgroup_is_the_containers_when_its_process_is_below() -> Result<()> {
    let container = Container::start(&Spec::default())?;
    let top = format!("{}/cri-containerd-{}.scope", container.cgroup_top().display(), container.id);
    ensure!(container.find()?.cgroup_id() == fs::metadata(top)?.ino(), "another cgroup's id");
    Ok(())
}

// Fault: agent/src/executors/device_nodes/helper/target.rs
// - _ => Err(EntryError::ProcessGone),
// + _ => Err(EntryError::HostNamespace),
fn b18_a_pid_that_belongs_to_another_is_not_entered() -> Result<()> {
    let mut container = Container::start(&Spec::default())?;
    let found = container.find()?;
    let (pid, id) = (container.pid, container.cgroup_id()?);
    let cgroup = Cgroup::make()?;
    container.end();
    let stranger = with_pid(pid, &cgroup)?;
    let mounts = || fs::read_to_string(format!("/proc/{pid}/mountinfo"));
    let before = mounts()?;
    let error = entry_error(&found)?;
    ensure!(error == EntryError::ProcessGone, "{error:?}");
    ensure!(mounts()? == before, "the stranger has been changed");
    let found = ContainerRef::find(pid, id, Path::new("/proc"), &cgroup_root()?);
    ensure!(matches!(found, Err(ContainerError::Stranger { .. })), "{found:?}");
    drop(stranger);
    Ok(())
}

/// A process with this very number, in a mount namespace of its own.
fn with_pid(pid: u32, cgroup: &Cgroup) -> Result<Sleeper> {
    // Another process of the machine may take the number first; then it ends, and the next attempt may have it.
    for _ in 0..1000 {
        fs::write("/proc/sys/kernel/ns_last_pid", (pid - 1).to_string())?;
        let sleeper = Sleeper::start(Command::new("unshare").args(["--mount", "cat"]), cgroup)?;
        if sleeper.0.id() == pid {
            return Ok(sleeper);
        }
    }
    bail!("process number {pid} could not be had again")
}

// Fault: agent/src/executors/device_nodes/container.rs
// - if !ids.contains(&cgroup_id) {
// + if ids.is_empty() {
fn b18_a_pid_of_another_cgroup_is_not_found() -> Result<()> {
    let container = Container::start(&Spec::default())?;
    let other = Cgroup::make()?;
    let found = ContainerRef::find(container.pid, other.number()?, Path::new("/proc"), &cgroup_root()?);
    ensure!(matches!(found, Err(ContainerError::Stranger { .. })), "{found:?}");
    Ok(())
}

// Fault: agent/src/executors/device_nodes/helper/target.rs
// - if ids.contains(&request.cgroup_id) {
// + if !ids.is_empty() {
fn b18_a_process_outside_the_cgroup_is_not_entered() -> Result<()> {
    let mut container = Container::start(&Spec::default())?;
    let other = Cgroup::make()?;
    let root = fs::metadata(cgroup_root()?)?.ino();
    for expected in [fs::metadata(&other.leaf)?.ino(), root] {
        let error = entry_error(&ContainerRef::new(pidfd(container.pid)?, expected))?;
        ensure!(matches!(error, EntryError::WrongCgroup { .. }), "{error:?}");
    }
    ensure!(container.stat("/dev/scanner")?.is_none(), "the container was changed");
    Ok(())
}

// Fault: agent/src/executors/device_nodes/helper/target.rs
// - if same(&own_mount, &mount_namespace).map_err(stat_failed)?
// + if same(&own_mount, &user_namespace).map_err(stat_failed)?
fn a_process_of_the_host_is_not_entered() -> Result<()> {
    let cgroup = Cgroup::make()?;
    let sleeper = Sleeper::start(&mut Command::new("cat"), &cgroup)?;
    let found = ContainerRef::find(sleeper.0.id(), cgroup.number()?, Path::new("/proc"), &cgroup_root()?)?;
    let error = entry_error(&found)?;
    ensure!(error == EntryError::HostNamespace, "{error:?}");
    Ok(())
}

// Fault: agent/src/executors/device_nodes/helper/host_mounts.rs
// - Ok(self.first.contains(&seen.id))
// + Ok(self.first.contains(&0))
fn a_process_of_the_host_is_not_entered_by_an_agent_in_a_container() -> Result<()> {
    let cgroup = Cgroup::make()?;
    let sleeper = Sleeper::start(&mut Command::new("cat"), &cgroup)?;
    let found = ContainerRef::find(sleeper.0.id(), cgroup.number()?, Path::new("/proc"), &cgroup_root()?)?;
    let error = in_own_mount_namespace(move || entry_error(&found))?;
    ensure!(error == EntryError::HostNamespace, "{error:?}");
    Ok(())
}

// Fault: agent/src/executors/device_nodes/helper/target.rs
// - if !same(&owner, &user_namespace).map_err(stat_failed)? {
// + if same(&owner, &mount_namespace).map_err(stat_failed)? {
fn a_process_that_left_its_user_namespace_is_not_entered() -> Result<()> {
    let mut container = Container::start(&Spec::default())?;
    container.must(&Order::NewUserNamespace)?;
    let error = entry_error(&container.find()?)?;
    ensure!(error == EntryError::ForeignUserNamespace, "{error:?}");
    Ok(())
}

/// Runs something as an agent would that has a mount namespace of its own.
fn in_own_mount_namespace<T: Send + 'static>(agent: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let thread = std::thread::spawn(|| {
        // SAFETY: CLONE_FILES is not given.
        unsafe { unshare_unsafe(UnshareFlags::NEWNS) }?;
        agent()
    });
    thread.join().map_err(|_| anyhow::anyhow!("the agent panicked"))?
}

// Fault: agent/src/executors/device_nodes/helper/target.rs
// - move_into_link_name_space(self.mount_namespace.as_fd(), Some(LinkNameSpaceType::Mount))
// + Ok::<(), Errno>(())
fn b67_an_agent_in_a_new_mount_namespace_reaches_the_container() -> Result<()> {
    let mut container = Container::start(&Spec::default())?;
    let (found, config) = (container.find()?, config()?);
    let outcomes = in_own_mount_namespace(move || {
        let changes = vec![Change::Place(node("/dev/scanner"))];
        block_on(async { Ok(HelperProcesses::new(config).visit(&found, changes).await?) })
    })?;
    ensure!(outcomes.len() == 1, "{outcomes:?}");
    must_have(&mut container, "/dev/scanner")?;
    Ok(())
}

// Fault: agent/src/executors/device_nodes/helper/target.rs
// - let mount_namespace = namespace("ns/mnt")?;
// + let mount_namespace = namespace("ns/pid")?;
fn b67_a_container_in_a_new_mount_namespace_is_reached_there() -> Result<()> {
    let mut container = Container::start(&Spec::default())?;
    let found = container.find()?;
    container.must(&Order::NewMountNamespace)?;
    block_on(async { place(&executor()?, &container, node("/dev/first")).await })?;
    // The reference from before leads there too.
    let changes = vec![Change::Place(node("/dev/second"))];
    block_on(async { Ok(executor()?.visit(&found, changes).await?) })?;
    must_have(&mut container, "/dev/first")?;
    must_have(&mut container, "/dev/second")?;
    Ok(())
}
