//! Containers that see file systems of the host where nodes would be made. Nothing on the host changes.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use devgate::executors::device_nodes::{Change, FileKind, Outcome, Refusal};
use libtest_mimic::Trial;
use rustix::fs::statfs;
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, unmount};

use crate::container::{Container, test_prefix};
use crate::executor::{block_on, change, executor, node, place, refusal, trials};
use crate::spec::{Dev, Order, Spec};

pub(crate) fn trials() -> Vec<Trial> {
    trials![
        the_hosts_dev_is_left_alone,
        a_tmpfs_of_the_host_is_left_alone,
        a_tmpfs_that_the_host_mounts_later_is_left_alone,
        a_shared_dev_is_left_alone,
        a_directory_of_the_host_below_dev_is_left_alone,
        dev_may_not_be_a_link_out_of_the_root,
        a_dev_that_is_no_tmpfs_is_left_alone,
    ]
}

/// A directory of the host that must stay as it is.
struct HostDirectory {
    path: PathBuf,
    /// Whether it, and the file system on it, was made for the test.
    made: bool,
    mounted: bool,
}

impl HostDirectory {
    fn plain() -> Result<Self> {
        let directory = tempfile::Builder::new().prefix(&test_prefix()).tempdir()?;
        Ok(Self { path: directory.keep(), made: true, mounted: false })
    }

    fn tmpfs(propagation: MountPropagationFlags) -> Result<Self> {
        let mut host = Self::plain()?;
        mount("tmpfs", &host.path, "tmpfs", MountFlags::empty(), c"mode=755")?;
        host.mounted = true;
        mount_change(&host.path, propagation)?;
        Ok(host)
    }

    /// The host's devtmpfs itself: a second mount of it would be at the mercy of whoever cleans up temporary directories.
    fn devtmpfs() -> Self {
        Self { path: PathBuf::from("/dev"), made: false, mounted: false }
    }

    /// What of the tests is in it, and how many mounts the host has on such things.
    fn contents(&self) -> Result<(Vec<String>, usize)> {
        let entries: Vec<_> = fs::read_dir(&self.path)?.collect::<Result<_, _>>()?;
        let names = entries.iter().map(|entry| entry.file_name().to_string_lossy().into_owned());
        let names = names.filter(|name| name.starts_with("devgate-test")).collect();
        let path = format!("{}/devgate-test", self.path.display());
        Ok((names, fs::read_to_string("/proc/self/mounts")?.lines().filter(|line| line.contains(&path)).count()))
    }
}

impl Drop for HostDirectory {
    fn drop(&mut self) {
        // A faulty agent has made these.
        for name in self.contents().map(|(names, _)| names).unwrap_or_default() {
            let path = self.path.join(name);
            if let Err(error) = fs::remove_file(&path).or_else(|_| fs::remove_dir_all(&path)) {
                eprintln!("cannot remove {}: {error}", path.display());
            }
        }
        if self.mounted
            && let Err(error) = unmount(&self.path, UnmountFlags::DETACH)
        {
            eprintln!("cannot unmount {}: {error}", self.path.display());
        }
        if self.made
            && let Err(error) = fs::remove_dir(&self.path)
        {
            eprintln!("cannot remove {}: {error}", self.path.display());
        }
    }
}

/// `TMPFS_MAGIC` of `linux/magic.h`.
const TMPFS_MAGIC: i64 = 0x0102_1994;

/// Tries to place nodes with this directory at `/dev`, which must be refused and leave it as it was.
fn refused_on(host: &HostDirectory) -> Result<Refusal> {
    let before = host.contents()?;
    let container = Container::start(&Spec { dev: Dev::Host(host.path.clone()), ..Spec::default() })?;
    let refusals = ["/dev/devgate-test-node", "/dev/devgate-test/node"].map(|at| refusal(&container, at));
    ensure!(host.contents()? == before, "the host has changed: {:?}", host.contents()?);
    let [first, second] = refusals;
    let (first, second) = (first?, second?);
    ensure!(first == second, "{first:?}, but in a directory {second:?}");
    Ok(first)
}

// Fault: agent/src/executors/device_nodes/helper/host_mounts.rs
// - if mount.fs_type == "devtmpfs" {
// + if mount.fs_type == "" {
fn the_hosts_dev_is_left_alone() -> Result<()> {
    let refusal = refused_on(&HostDirectory::devtmpfs())?;
    ensure!(refusal == Refusal::HostDev { path: "/dev".to_owned() }, "{refusal:?}");
    Ok(())
}

// Fault: agent/src/executors/device_nodes/helper/host_mounts.rs
// - if host.superblock == mount.superblock {
// + if host.superblock.is_empty() {
fn a_tmpfs_of_the_host_is_left_alone() -> Result<()> {
    let refusal = refused_on(&HostDirectory::tmpfs(MountPropagationFlags::PRIVATE)?)?;
    ensure!(refusal == Refusal::HostDev { path: "/dev".to_owned() }, "{refusal:?}");
    Ok(())
}

// Fault: agent/src/executors/device_nodes/helper/host_mounts.rs
// - && !known.have_changed()?
// + && (!known.have_changed()? || known.mounts.first.is_empty())
fn a_tmpfs_that_the_host_mounts_later_is_left_alone() -> Result<()> {
    block_on(async {
        let executor = executor()?;
        let own = Container::start(&Spec::default())?;
        place(&executor, &own, node("/dev/scanner")).await?;
        // The process that has forked the first helper forks this one too.
        let host = HostDirectory::tmpfs(MountPropagationFlags::PRIVATE)?;
        let container = Container::start(&Spec { dev: Dev::Host(host.path.clone()), ..Spec::default() })?;
        let outcome = change(&executor, &container, Change::Place(node("/dev/devgate-test-node"))).await?;
        let refusal = Refusal::HostDev { path: "/dev".to_owned() };
        ensure!(outcome == Outcome::Refused(refusal), "{outcome:?}");
        Ok(())
    })
}

// Fault: agent/src/executors/device_nodes/helper/host_mounts.rs
// - if mount.shared.is_some() && host.shared == mount.shared {
// + if mount.shared.is_none() && host.shared == mount.shared {
fn a_shared_dev_is_left_alone() -> Result<()> {
    let refusal = refused_on(&HostDirectory::tmpfs(MountPropagationFlags::SHARED)?)?;
    ensure!(refusal == Refusal::SharedDev { path: "/dev".to_owned() }, "{refusal:?}");
    Ok(())
}

// Fault: agent/src/executors/device_nodes/helper/dev_dir.rs
// - let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_XDEV | NO_LINKS;
// + let resolve = ResolveFlags::BENEATH | NO_LINKS;
fn a_directory_of_the_host_below_dev_is_left_alone() -> Result<()> {
    for (host, expected) in [
        (HostDirectory::plain()?, Refusal::Occupied { path: "/dev/bus".to_owned(), kind: FileKind::Mount }),
        (HostDirectory::devtmpfs(), Refusal::HostDev { path: "/dev/bus".to_owned() }),
    ] {
        let before = host.contents()?;
        let spec = Spec { volume: Some(host.path.clone()), ..Spec::default() };
        let mut container = Container::start(&spec)?;
        container.must(&Order::Mkdir("/dev/bus".to_owned()))?;
        container.must(&Order::MoveMount { from: "/volume".to_owned(), to: "/dev/bus".to_owned() })?;
        for at in ["/dev/bus/devgate-test", "/dev/bus/devgate-test/004"] {
            let refusal = refusal(&container, at)?;
            ensure!(refusal == expected, "{refusal:?}");
        }
        ensure!(host.contents()? == before, "the host has changed: {:?}", host.contents()?);
    }
    Ok(())
}

// Fault: agent/src/executors/device_nodes/helper/dev_dir.rs
// - let opened = openat2(root, "dev", DIRECTORY, Mode::empty(), resolve);
// + let opened = rustix::fs::openat(root, "dev", DIRECTORY.difference(OFlags::NOFOLLOW), Mode::empty());
fn dev_may_not_be_a_link_out_of_the_root() -> Result<()> {
    let host = HostDirectory::plain()?;
    let before = host.contents()?;
    let host_path = host.path.to_str().context("the path is not text")?.to_owned();
    for target in ["/volume".to_owned(), host_path.clone(), format!("../../..{host_path}")] {
        let spec = Spec { volume: Some(host.path.clone()), ..Spec::default() };
        let mut container = Container::start(&spec)?;
        container.must(&Order::Unmount("/dev".to_owned()))?;
        container.must(&Order::Rmdir("/dev".to_owned()))?;
        container.must(&Order::Symlink { target, path: "/dev".to_owned() })?;
        let refusal = refusal(&container, "/dev/devgate-test-node")?;
        ensure!(refusal == Refusal::DevIsSymlink, "{refusal:?}");
        ensure!(host.contents()? == before, "the host has changed: {:?}", host.contents()?);
    }
    Ok(())
}

// Fault: agent/src/executors/device_nodes/helper/host_mounts.rs
// - if mount.fs_type != "tmpfs" {
// + if mount.fs_type == "tmpfs" {
fn a_dev_that_is_no_tmpfs_is_left_alone() -> Result<()> {
    let host = HostDirectory::plain()?;
    let refusal = refused_on(&host)?;
    // Where `/tmp` is a tmpfs the directory is refused as the host's, which another case is about.
    let on_tmpfs = statfs(&host.path)?.f_type == TMPFS_MAGIC;
    let fits = if on_tmpfs {
        matches!(refusal, Refusal::HostDev { .. })
    } else {
        matches!(refusal, Refusal::DevNotTmpfs { .. })
    };
    ensure!(fits, "{refusal:?}");
    Ok(())
}
