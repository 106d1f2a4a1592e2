//! A machine in small: an ancestor with managed containers, and beside it cgroups with programs of a runtime's kind.

use std::{
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use devgate::executors::enforcer::{
    AuditReader, Cgroup, CgroupRoot, Enforcer, EnforcerConfig, ForeignFilters, Grant, GrantOutcome, KernelEnforcer,
    Limits, RecordRate, Revocation, Scope,
    sys::{self, Instruction, ProgramInfo},
    uninstall,
};
use devgate_abi::{Access, DeviceNumber, Policy};

use super::scratch::{Nodes, Tree};

/// What a program has cost since statistics are on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cost {
    /// Nanoseconds.
    pub(super) time: u64,
    /// Runs.
    pub(super) runs: u64,
}

/// Reads what a program costs.
fn cost(program: &OwnedFd) -> Result<Cost> {
    let info: ProgramInfo = sys::info(program.as_fd()).context("cannot ask for a program's statistics")?;
    Ok(Cost { time: info.run_time, runs: info.run_count })
}

/// The parts are dropped from the first to the last.
pub(super) struct Lab {
    enforcer: KernelEnforcer,
    _pins: Pins,
    root: CgroupRoot,
    tree: Tree,
    pub(super) nodes: Nodes,
    beside: PathBuf,
    containers: Vec<Cgroup>,
    /// Where the next ones are made.
    pods: [PathBuf; 2],
    programs: Vec<OwnedFd>,
    _statistics: OwnedFd,
}

/// Removes the pins, and ends the guard.
struct Pins {
    config: EnforcerConfig,
    _run: tempfile::TempDir,
}

impl Drop for Pins {
    fn drop(&mut self) {
        if let Err(error) = uninstall(&self.config) {
            eprintln!("cannot remove {}: {error}", self.config.pin_root.display());
        }
    }
}

impl Lab {
    /// Puts our program in force at an ancestor of its own.
    pub(super) fn new() -> Result<Self> {
        let name = format!("devgate-test-bench-{}", std::process::id());
        let root = CgroupRoot::find()?;
        let mut tree = Tree::new(root.path());
        let top = Path::new("/");
        let ancestor = tree.make(top, &name)?;
        let beside = tree.make(top, &format!("{name}-beside"))?;
        // As the kubelet has them: pods at one level, and pods of another class of service one level below.
        let guaranteed = tree.make(&ancestor, "pod")?;
        let burstable = tree.make(&ancestor, "burstable")?;
        let burstable = tree.make(&burstable, "pod")?;

        let run = tempfile::tempdir().context("cannot make a folder")?;
        let config = EnforcerConfig {
            ancestor: ancestor.clone(),
            pin_root: Path::new("/sys/fs/bpf").join(&name),
            run_dir: run.path().to_owned(),
            net_namespace: "/proc/self/ns/net".into(),
            // The containers have programs that no runtime is known by.
            foreign_filters: ForeignFilters::Override,
            record_rate: RecordRate { per_second: 0, burst: 0 },
            // The reader may be slow; records that find no room cost less than others.
            // The columns together have more than twice the rules of the largest. With twice the room, keys share places as
            // often as on a node that has 10,000 rules.
            limits: Limits { audit_bytes: 1 << 24, rules: 2 * Limits::default().rules, ..Limits::default() },
            ..EnforcerConfig::default()
        };
        let pins = Pins { config: config.clone(), _run: run };
        let mut enforcer = KernelEnforcer::open(config)?;
        enforcer.activate()?;
        let ids = sys::attached_programs(enforcer.ancestor().as_fd()).context("cannot ask for our program")?;
        ensure!(ids.len() == 1, "{} programs are attached to the ancestor", ids.len());
        let ours = sys::program_by_id(ids[0]).context("cannot open our program")?;
        Ok(Self {
            enforcer,
            _pins: pins,
            root,
            tree,
            nodes: Nodes::new()?,
            beside,
            containers: Vec::new(),
            pods: [burstable, guaranteed],
            programs: vec![ours],
            _statistics: sys::enable_statistics().context("cannot have programs measured (Linux 5.8)")?,
        })
    }

    /// The folder of a cgroup.
    pub(super) fn folder(&self, cgroup: &Path) -> PathBuf {
        self.tree.folder(cgroup)
    }

    /// Reads what one of the programs has cost; the first is ours.
    pub(super) fn cost(&self, program: usize) -> Result<Cost> {
        cost(&self.programs[program])
    }

    /// Makes a cgroup with a program, out of our program's reach. Returns the program too.
    pub(super) fn beside(&mut self, name: &str, code: &[Instruction]) -> Result<(PathBuf, usize)> {
        let path = self.tree.make(&self.beside, name)?;
        let program = self.attach(&path, code)?;
        Ok((path, program))
    }

    /// Makes a cgroup that is not managed, with a runtime's program that denies everything if `denied`.
    pub(super) fn unmanaged(&mut self, name: &str, denied: bool) -> Result<PathBuf> {
        let path = self.tree.make(&self.pods[0], name)?;
        if denied {
            self.attach(&path, &sys::return_constant(0))?;
        }
        Ok(path)
    }

    /// Makes a container and takes it under management. Half of them are at one level, half at another.
    pub(super) fn container(&mut self, denied: bool) -> Result<usize> {
        let index = self.containers.len();
        let parent = if denied { 0 } else { index % 2 };
        let path = self.tree.make(&self.pods[parent], &format!("container-{index}"))?;
        if denied {
            self.attach(&path, &sys::return_constant(0))?;
        }
        let cgroup = self.root.cgroup(&path)?;
        self.enforcer.manage(&cgroup, Policy::default())?;
        self.containers.push(cgroup);
        Ok(index)
    }

    /// How many containers there are.
    pub(super) fn containers(&self) -> usize {
        self.containers.len()
    }

    /// The path of a container's cgroup.
    pub(super) fn path(&self, container: usize) -> PathBuf {
        self.containers[container].path().to_owned()
    }

    /// Sets a container's policy.
    pub(super) fn manage(&mut self, container: usize, policy: Policy) -> Result<()> {
        Ok(self.enforcer.manage(&self.containers[container], policy)?)
    }

    /// Grants the devices.
    pub(super) fn grant(&mut self, container: usize, devices: &[DeviceNumber]) -> Result<()> {
        for &device in devices {
            let epoch = self.enforcer.epoch(device)?;
            let grant = Grant {
                access: Access::READ_WRITE,
                scope: Scope::Exact,
                hotplug: true,
                expires_at: None,
                rule_id: 1,
                generation: 1,
            };
            let outcome = self.enforcer.grant(&self.containers[container], device, epoch, &grant)?;
            ensure!(outcome == GrantOutcome::Granted, "the grant of {device} was withheld");
        }
        Ok(())
    }

    /// Denies the devices.
    pub(super) fn deny(&mut self, container: usize, devices: &[DeviceNumber]) -> Result<()> {
        for &device in devices {
            self.enforcer.revoke(self.containers[container].id(), device, Revocation::Deny)?;
        }
        Ok(())
    }

    /// Makes every rule for the devices void.
    pub(super) fn void(&mut self, devices: &[DeviceNumber]) -> Result<()> {
        for &device in devices {
            self.enforcer.void(device)?;
        }
        Ok(())
    }

    /// Reads the audit records.
    pub(super) fn reader(&self) -> Result<AuditReader> {
        Ok(self.enforcer.audit_reader()?)
    }

    /// How many records a container caused, and how many of them were lost.
    pub(super) fn records(&self, container: usize) -> Result<(u64, u64)> {
        let id = self.containers[container].id();
        let applied = self.enforcer.read_back()?;
        let cgroup = applied.cgroups.iter().find(|cgroup| cgroup.id == id).context("a container is not managed")?;
        Ok((cgroup.counters.recorded, cgroup.counters.lost))
    }

    /// How many instructions the verifier looked at in our program.
    pub(super) fn verified_instructions(&self) -> Result<u32> {
        let info: ProgramInfo = sys::info(self.programs[0].as_fd()).context("cannot ask for our program")?;
        Ok(info.verified_instructions)
    }

    /// Attaches a program to a cgroup as a runtime does.
    fn attach(&mut self, path: &Path, code: &[Instruction]) -> Result<usize> {
        let program = sys::load_device_program(code, "").context("cannot load a device program")?;
        let cgroup = self.root.cgroup(path)?;
        sys::attach(program.as_fd(), cgroup.as_fd(), None).context("cannot attach a device program")?;
        self.programs.push(program);
        Ok(self.programs.len() - 1)
    }
}
