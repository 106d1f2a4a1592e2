//! A machine for an agent: containerd, udev, devices to plug, a folder of classes, all real and all the test's own.

use std::{
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use devgate::config;
use devgate_abi::{Access, DeviceNumber};
use serde_json::Value;

use crate::{
    cgroup::TestCgroup,
    containerd::{Container, Containerd},
    lines::Lines,
    network::Taps,
    prober::{Answer, Attempt, Held, Prober, Run},
    running_agent::{self, RunningAgent},
    scratch::{Scratch, agent},
    udevd::UdevHost,
};

/// The label by which containers ask.
pub const WISH: &str = "devgate.dev/classes";

/// A class of the devices whose serial numbers fit a glob (see [`USB_LIKE`](crate::udevd::USB_LIKE)); `rest` is further
/// fields of its `spec`, each on a line with two spaces before it.
pub fn class(name: &str, serials: &str, rest: &str) -> String {
    format!(
        "apiVersion: devgate.dev/v1alpha1\nkind: DeviceClass\nmetadata: {{ name: {name} }}\nspec:\n  match: [ {{ subsystem: \
         macvtap, properties: {{ ID_SERIAL: \"ACME_Sensor_{serials}\" }} }} ]\n  allocation: {{ kind: All }}\n{rest}"
    )
}

/// The machine. All that is on it goes with the value.
#[derive(Debug)]
pub struct Machine {
    containerd: Containerd,
    udev: UdevHost,
    folder: tempfile::TempDir,
    scratch: Scratch,
}

impl Machine {
    /// A machine with nothing on it: no class, no device, no container, no agent. The name tells it from those of other
    /// tests that run at the same time.
    pub fn new(name: &str) -> Result<Self> {
        Self::with(|| Scratch::new(name))
    }

    /// The same with nothing beside the ancestor of its containers, so that nothing that others do there wakes an agent.
    pub fn sheltered(name: &str) -> Result<Self> {
        Self::with(|| Scratch::sheltered(name))
    }

    fn with(scratch: impl FnOnce() -> Result<Scratch>) -> Result<Self> {
        let udev = UdevHost::new()?;
        let scratch = scratch()?;
        let containerd = Containerd::start(scratch.ancestor())?;
        let folder = tempfile::Builder::new().prefix("devgate-test-machine").tempdir()?;
        fs::create_dir(folder.path().join("classes"))?;
        Ok(Self { containerd, udev, folder, scratch })
    }

    /// The runtime, which starts containers.
    pub fn containerd(&self) -> &Containerd {
        &self.containerd
    }

    /// udev, and where devices are plugged.
    pub fn udev(&self) -> &UdevHost {
        &self.udev
    }

    /// The devices to plug.
    pub fn taps(&self) -> &Taps {
        self.udev.taps()
    }

    /// Cgroups and pins.
    pub fn scratch(&self) -> &Scratch {
        &self.scratch
    }

    /// Where classes, audit log and state are.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Writes a file of classes, as an editor does that renames.
    pub fn write_class(&self, file: &str, text: &str) -> Result<()> {
        let fresh = self.folder().join("class.new");
        fs::write(&fresh, text)?;
        Ok(fs::rename(fresh, self.folder().join("classes").join(file))?)
    }

    /// Takes a file of classes away.
    pub fn remove_class(&self, file: &str) -> Result<()> {
        Ok(fs::remove_file(self.folder().join("classes").join(file))?)
    }

    /// What an agent here is configured with.
    pub fn config(&self) -> config::File {
        let mut file = config::File::default();
        let enforcer = self.scratch.config();
        file.run_dir = enforcer.run_dir;
        file.state_dir = self.folder().join("state");
        file.enforcer.ancestor = enforcer.ancestor;
        file.enforcer.pin_root = enforcer.pin_root;
        let udev = self.udev.config();
        file.enforcer.net_namespace.clone_from(&udev.net_namespace);
        file.udev.net_namespace = udev.net_namespace;
        file.udev.mount_namespace = udev.mount_namespace;
        file.udev.database = udev.database;
        file.classes.folder = self.folder().join("classes");
        file.containerd.socket = self.containerd.socket();
        file.audit.file = Some(self.audit_file());
        "info,devgate=debug".clone_into(&mut file.log.filter);
        file
    }

    /// Starts an agent; when this returns it knows everything and has told the kernel.
    pub fn agent(&self) -> Result<RunningAgent> {
        self.agent_with(|_| {})
    }

    /// Starts an agent with some of its configuration changed.
    pub fn agent_with(&self, change: impl FnOnce(&mut config::File)) -> Result<RunningAgent> {
        let config = self.write_config(change)?;
        let mut agent = RunningAgent::launch(&[agent()?.into()], &config, &self.folder().join("agent.log"))?;
        agent.until_ready()?;
        Ok(agent)
    }

    /// Starts an agent and waits for nothing.
    pub fn launch_agent(&self) -> Result<RunningAgent> {
        self.launch_agent_by(&[])
    }

    /// The same by means of a program that becomes it.
    pub fn launch_agent_by(&self, wrapper: &[&str]) -> Result<RunningAgent> {
        let config = self.write_config(|_| {})?;
        let mut words: Vec<_> = wrapper.iter().map(OsString::from).collect();
        words.push(agent()?.into());
        RunningAgent::launch(&words, &config, &self.folder().join("agent.log"))
    }

    /// Runs `devgate uninstall`; returns what it prints.
    pub fn uninstall(&self) -> Result<String> {
        self.uninstall_with(|_| {})
    }

    /// The same with some of the configuration changed.
    pub fn uninstall_with(&self, change: impl FnOnce(&mut config::File)) -> Result<String> {
        running_agent::subcommand(&agent()?, "uninstall", &self.write_config(change)?)
    }

    /// The audit log, from its beginning.
    pub fn audit(&self) -> Result<Audit> {
        Ok(Audit(Lines::all(&self.audit_file())?))
    }

    /// The audit log, from now on.
    pub fn audit_from_now(&self) -> Result<Audit> {
        Ok(Audit(Lines::from_now(&self.audit_file())?))
    }

    /// Somebody in a container who opens what is there.
    pub fn insider(&self, container: &Container<'_>) -> Result<Insider> {
        self.insider_of(&self.containerd.cgroup().existing(container.id())?, container.pid()?)
    }

    /// The same in a container with another cgroup than the usual one; `pid` is that of its first process.
    pub fn insider_of(&self, cgroup: &TestCgroup, pid: u32) -> Result<Insider> {
        Ok(Insider { prober: self.scratch.prober(cgroup)?, root: format!("/proc/{pid}/root").into() })
    }

    fn audit_file(&self) -> PathBuf {
        self.folder().join("audit.jsonl")
    }

    /// What is JSON is YAML too.
    fn write_config(&self, change: impl FnOnce(&mut config::File)) -> Result<PathBuf> {
        let mut file = self.config();
        change(&mut file);
        let path = self.folder().join("devgate.yaml");
        fs::write(&path, serde_json::to_string_pretty(&file)?)?;
        Ok(path)
    }
}

/// The lines of the audit log.
#[derive(Debug)]
pub struct Audit(Lines);

impl Audit {
    /// Waits for a line of this event that fits.
    pub fn wait(&mut self, event: &str, mut fits: impl FnMut(&Value) -> bool) -> Result<Value> {
        self.wait_any(&format!("a line {event:?} in the audit log"), |line| line["event"] == event && fits(line))
    }

    /// Waits for any line that fits; `what` says which.
    pub fn wait_any(&mut self, what: &str, mut fits: impl FnMut(&Value) -> bool) -> Result<Value> {
        self.0.wait(what, |line| {
            let value: Value = serde_json::from_str(line).ok()?;
            fits(&value).then_some(value)
        })
    }

    /// All that came since the last call.
    pub fn news(&mut self) -> Result<Vec<Value>> {
        self.0.news()?.iter().map(|line| serde_json::from_str(line).with_context(|| line.clone())).collect()
    }
}

/// Somebody in a container who opens what is there: a process in its cgroup that looks at files as the container does.
#[derive(Debug)]
pub struct Insider {
    prober: Prober,
    root: PathBuf,
}

impl Insider {
    /// Opens the file at a path of the container.
    pub fn open(&mut self, path: &str, access: Access) -> Answer {
        self.prober.open_path(&self.path(path), access)
    }

    /// Opens the file at a path of the container, and keeps it open.
    pub fn hold(&mut self, path: &str, access: Access) -> Result<Held, Answer> {
        self.prober.hold_path(&self.path(path), access)
    }

    /// Closes what it holds.
    pub fn close(&mut self, held: Held) {
        self.prober.close(held);
    }

    /// Which device answers behind the node at a path of the container, by the name that it was plugged with; or the error.
    pub fn which(&mut self, path: &str) -> Answer {
        self.prober.which_path(&self.path(path))
    }

    /// Opens what is at a path of the container again and again, without pause.
    pub fn run(&mut self, path: &str, attempt: Attempt) -> Run<'_> {
        let path = self.path(path);
        self.prober.run_path(&path, attempt)
    }

    /// The process, which opens nodes of its own of any number.
    pub fn prober(&mut self) -> &mut Prober {
        &mut self.prober
    }

    /// Opens a node of its own of this number.
    pub fn open_number(&mut self, number: DeviceNumber) -> Answer {
        self.prober.open(number, Access::READ_WRITE)
    }

    /// Whether there is anything at a path of the container.
    pub fn exists(&self, path: &str) -> bool {
        fs::symlink_metadata(self.path(path)).is_ok()
    }

    /// The number of the node at a path of the container; `None` if there is nothing.
    pub fn number(&self, path: &str) -> Result<Option<DeviceNumber>> {
        use std::os::unix::fs::{FileTypeExt, MetadataExt};
        let path = self.path(path);
        let metadata = match fs::symlink_metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            metadata => metadata.with_context(|| path.clone())?,
        };
        ensure!(metadata.file_type().is_char_device(), "{path} is no character device");
        Ok(Some(DeviceNumber::char(rustix::fs::major(metadata.rdev()), rustix::fs::minor(metadata.rdev()))))
    }

    fn path(&self, path: &str) -> String {
        format!("{}{path}", self.root.display())
    }
}
