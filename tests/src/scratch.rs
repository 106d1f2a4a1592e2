//! A place of its own for each test.

use std::{
    path::{Path, PathBuf},
    process,
};

use anyhow::{Context, Result};
use devgate::executors::enforcer::{CgroupRoot, EnforcerConfig, KernelEnforcer, uninstall};

use crate::{
    cgroup::{self, TestCgroup},
    nodes::Nodes,
    prober::Prober,
};

/// Where the tests pin.
const BPFFS: &str = "/sys/fs/bpf";

/// A cgroup to be the ancestor of a test's containers, a folder for pins, a folder for the guard's lock and one for
/// device nodes. All of it, and whatever was enforced or started there, is gone when the value is dropped.
///
/// Make it first and [`Prober`]s and enforcers after it, so that they go before it.
#[derive(Debug)]
pub struct Scratch {
    /// What goes at the end: the ancestor, or the cgroup that shelters it.
    outermost: PathBuf,
    ancestor: TestCgroup,
    config: EnforcerConfig,
    nodes: Nodes,
    _run_dir: tempfile::TempDir,
}

impl Scratch {
    /// Makes it. The name tells it from those of other tests that run at the same time.
    pub fn new(name: &str) -> Result<Self> {
        Self::make(name, false)
    }

    /// The same with a cgroup of its own around the ancestor: nobody makes or removes anything beside it.
    pub fn sheltered(name: &str) -> Result<Self> {
        Self::make(name, true)
    }

    fn make(name: &str, sheltered: bool) -> Result<Self> {
        let name = format!("devgate-test-{name}-{}", process::id());
        let executable = agent()?;
        let root = CgroupRoot::find()?;
        let run_dir = tempfile::Builder::new().prefix(&name).tempdir()?;
        let nodes = Nodes::new().context("cannot make a folder for device nodes")?;
        let outer = TestCgroup::new(&root, &Path::new("/").join(&name))?;
        let outermost = outer.folder().to_owned();
        let ancestor = if sheltered { outer.child("ancestor")? } else { outer };
        let config = EnforcerConfig {
            ancestor: ancestor.path().to_owned(),
            pin_root: Path::new(BPFFS).join(&name),
            run_dir: run_dir.path().to_owned(),
            // The first process may belong to somebody who does not let us look.
            net_namespace: "/proc/self/ns/net".into(),
            executable,
            ..EnforcerConfig::default()
        };
        Ok(Self { outermost, ancestor, config, nodes, _run_dir: run_dir })
    }

    /// The cgroup that an enforcer is linked to.
    pub fn ancestor(&self) -> &TestCgroup {
        &self.ancestor
    }

    /// Makes a cgroup directly below the ancestor.
    pub fn cgroup(&self, name: &str) -> Result<TestCgroup> {
        self.ancestor.child(name)
    }

    /// The nodes that probers open.
    pub fn nodes(&self) -> &Nodes {
        &self.nodes
    }

    /// Starts a process in a cgroup that tries accesses.
    pub fn prober(&self, cgroup: &TestCgroup) -> Result<Prober> {
        Prober::start(cgroup, &self.nodes)
    }

    /// The configuration of an enforcer that is linked to the ancestor; all else is as by default.
    pub fn config(&self) -> EnforcerConfig {
        self.config.clone()
    }

    /// An enforcer that enforces below the ancestor.
    pub fn enforcer(&self) -> Result<KernelEnforcer> {
        self.enforcer_with(|_| {})
    }

    /// An enforcer with some of its configuration changed.
    pub fn enforcer_with(&self, change: impl FnOnce(&mut EnforcerConfig)) -> Result<KernelEnforcer> {
        let mut config = self.config();
        change(&mut config);
        let mut enforcer = KernelEnforcer::open(config)?;
        enforcer.activate()?;
        Ok(enforcer)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Each step is taken, whatever became of the others; what stays behind is found at the end of the run.
        if let Err(error) = uninstall(&self.config) {
            eprintln!("{}: cannot uninstall: {error}", self.config.pin_root.display());
        }
        if let Err(error) = cgroup::remove(&self.outermost) {
            eprintln!("{error:#}");
        }
    }
}

/// The program under test.
pub(crate) fn agent() -> Result<PathBuf> {
    std::env::var_os("DEVGATE_BIN")
        .map(PathBuf::from)
        .context("DEVGATE_BIN does not name the devgate program; run the tests by `cargo xtask test`")
}
