//! What a demonstration could leave on the host.

use std::{
    collections::BTreeSet,
    env, fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use devgate::executors::enforcer::CgroupRoot;
use devgate_tests::prelude::*;
use rustix::process::Pid;

/// How all names begin.
const PREFIX: &str = "devgate-test";

/// Things by their names, each with what it is.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Traces(BTreeSet<String>);

impl Traces {
    /// Cgroups, pins, temporary files and mounts that are there now.
    pub(crate) fn on_the_host() -> Result<Self> {
        let mut found = BTreeSet::new();
        let folders = [CgroupRoot::find()?.path().to_owned(), "/sys/fs/bpf".into(), "/dev/shm".into(), env::temp_dir()];
        for folder in folders {
            found.extend(
                entries(&folder)?
                    .filter(|name| name.starts_with(PREFIX))
                    .map(|name| format!("{}/{name}", folder.display())),
            );
        }
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        // Identity and place of each.
        found.extend(mounts.lines().map(|line| line.split(' ').take(5).collect::<Vec<_>>().join(" ")));
        Ok(Self(found))
    }

    /// The namespaces of the processes that a demonstration has started, other than this process's.
    pub(crate) fn of(supervisor: Pid) -> Result<Self> {
        let supervisor = supervisor.as_raw_nonzero();
        let children = fs::read_to_string(format!("/proc/{supervisor}/task/{supervisor}/children"))?;
        let stage = children.split_whitespace().next().context("it has started no process")?;
        let stage = fs::read_link(format!("/proc/{stage}/ns/pid"))?;
        let mut found = BTreeSet::new();
        for process in processes()? {
            // Some end meanwhile.
            let namespaces = namespaces(&process);
            if namespaces.contains(&stage.display().to_string()) {
                found.extend(namespaces);
            }
        }
        let ours = namespaces(Path::new("/proc/self"));
        Ok(Self(found.difference(&ours).cloned().collect()))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Nobody is in any of the namespaces.
    pub(crate) fn assert_gone(&self) -> TestResult {
        for process in processes()? {
            let found = namespaces(&process);
            let left: Vec<_> = found.intersection(&self.0).collect();
            ensure!(left.is_empty(), "{} is still in {left:?}", process.display());
        }
        Ok(())
    }

    /// The host is as it was.
    pub(crate) fn assert_unchanged(&self) -> TestResult {
        let now = Self::on_the_host()?;
        let left: Vec<_> = now.0.symmetric_difference(&self.0).collect();
        ensure!(left.is_empty(), "it has left or taken away: {left:#?}");
        Ok(())
    }
}

/// The cgroups of a demonstration.
pub(crate) fn cgroups_of(supervisor: Pid) -> Result<Vec<TestCgroup>> {
    let root = CgroupRoot::find()?;
    let prefix = format!("{PREFIX}-demo-{}-", supervisor.as_raw_nonzero());
    let named = entries(root.path())?.filter(|name| name.starts_with(&prefix));
    named.map(|name| TestCgroup::open(&root, &Path::new("/").join(name))).collect()
}

fn entries(folder: &Path) -> Result<impl Iterator<Item = String>> {
    let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    Ok(entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()))
}

fn processes() -> Result<impl Iterator<Item = PathBuf>> {
    let numbers = entries(Path::new("/proc"))?.filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
    Ok(numbers.map(|number| Path::new("/proc").join(number)))
}

/// Those that can be told: a process that has ended has none.
fn namespaces(process: &Path) -> BTreeSet<String> {
    let links = ["pid", "mnt", "net"].iter().map(|kind| fs::read_link(process.join("ns").join(kind)));
    links.flatten().map(|link| link.display().to_string()).collect()
}
