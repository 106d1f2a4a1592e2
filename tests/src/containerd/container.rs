//! Containers, from the wish for one to its end.

use std::{
    io::{self, Read},
    process::{Command, Output, Stdio},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use anyhow::{Context, Result, bail};

use super::{Containerd, PLAIN};
use crate::wait::wait_until;

/// First of the 65536 ids of the host that a container with a user namespace has.
const MAPPED_ROOT: u32 = 100_000;

/// How many containers are started at a time. The work is the runtime's and takes all of two processors.
const PARALLEL: usize = 4;

/// The namespace where containers are unless said otherwise, as for `ctr`.
pub(super) const NAMESPACE: &str = "default";

/// The low-level runtime.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Oci {
    /// containerd's own.
    #[default]
    Runc,
    /// The one of Podman and CRI-O.
    Crun,
}

/// A container to be.
#[derive(Clone, Debug)]
pub struct NewContainer<'a> {
    containerd: &'a Containerd,
    id: String,
    namespace: String,
    image: String,
    cgroup: Option<String>,
    options: Vec<String>,
    command: Vec<String>,
}

impl<'a> NewContainer<'a> {
    pub(super) fn new(containerd: &'a Containerd, id: &str) -> Self {
        Self {
            containerd,
            id: id.to_owned(),
            namespace: NAMESPACE.to_owned(),
            image: PLAIN.to_owned(),
            cgroup: None,
            options: Vec::new(),
            command: ["sleep", "1000000"].map(str::to_owned).to_vec(),
        }
    }

    /// Its id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Gives it a label.
    #[must_use]
    pub fn label(self, key: &str, value: &str) -> Self {
        self.option(["--label", &format!("{key}={value}")])
    }

    /// Takes another image than [`PLAIN`].
    #[must_use]
    pub fn image(self, name: &str) -> Self {
        Self { image: name.to_owned(), ..self }
    }

    /// Puts it into another namespace than `default`.
    #[must_use]
    pub fn namespace(self, name: &str) -> Self {
        Self { namespace: name.to_owned(), ..self }
    }

    /// Names its cgroup otherwise than by its id. The path is below [`Containerd::cgroup`].
    #[must_use]
    pub fn cgroup(self, path: &str) -> Self {
        Self { cgroup: Some(path.to_owned()), ..self }
    }

    /// Takes another runtime than runc.
    #[must_use]
    pub fn oci(self, runtime: Oci) -> Self {
        match runtime {
            Oci::Runc => self,
            Oci::Crun => self.option(["--runc-binary", "crun"]),
        }
    }

    /// Gives it a user namespace.
    #[must_use]
    pub fn user_namespace(self) -> Self {
        let map = format!("0:{MAPPED_ROOT}:65536");
        self.option(["--uidmap", &map, "--gidmap", &map])
    }

    /// Gives it all capabilities, and all devices that are there now.
    #[must_use]
    pub fn privileged(self) -> Self {
        self.option(["--privileged"])
    }

    /// Runs this rather than `sleep`.
    #[must_use]
    pub fn command<const N: usize>(self, command: [&str; N]) -> Self {
        Self { command: command.map(str::to_owned).to_vec(), ..self }
    }

    /// Adds options of `ctr run`.
    #[must_use]
    pub fn option<const N: usize>(mut self, options: [&str; N]) -> Self {
        self.options.extend(options.map(str::to_owned));
        self
    }

    /// Starts it.
    pub fn run(self) -> Result<Container<'a>> {
        let Self { containerd, id, namespace, image, cgroup, options, command } = self;
        let cgroup = containerd.cgroup().path().join(cgroup.as_ref().unwrap_or(&id));
        let cgroup = cgroup.to_str().context("the cgroup has an odd name")?;
        // A hybrid host has no controller for shares in the second version.
        let fixed =
            ["--namespace", &namespace, "run", "--detach", "--null-io", "--cpu-shares", "0", "--cgroup", cgroup];
        let words = options.iter().chain([&image, &id]).chain(&command).map(String::as_str);
        containerd.ctr(fixed.into_iter().chain(words))?;
        Ok(Container { containerd, id, namespace })
    }
}

/// A container, running or not. It is gone at the latest when its [`Containerd`] is.
#[derive(Clone, Debug)]
pub struct Container<'a> {
    containerd: &'a Containerd,
    id: String,
    namespace: String,
}

impl Container<'_> {
    /// Its id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The number of its first process on this host.
    pub fn pid(&self) -> Result<u32> {
        let tasks = self.ctr(["tasks", "list"])?;
        let own = tasks.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()).find(|row| row[0] == self.id);
        let Some(&[_, pid, _]) = own.as_deref() else { bail!("{} has no task:\n{tasks}", self.id) };
        Ok(pid.parse()?)
    }

    /// Runs a command in it, to its end.
    ///
    /// `ctr` loses what a process writes if it ends at once after that. So a shell around the command stays until all has
    /// been read.
    pub fn exec<const N: usize>(&self, command: [&str; N]) -> Result<Output> {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("exec-{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let script =
            format!("\"$@\" </dev/null; code=$?; echo '{ALL_SAID}'; echo '{ALL_SAID}' >&2; read -r _; exit $code");
        let words =
            ["--namespace", &self.namespace, "tasks", "exec", "--exec-id", &name, &self.id, "sh", "-c", &script];
        let mut ctr: Command = self.containerd.ctr_command(words.into_iter().chain(["sh"]).chain(command))?;
        let piped = ctr.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut ctr = piped.spawn().context("cannot run ctr")?;
        let (stdout, stderr) = (ctr.stdout.take().context("a pipe")?, ctr.stderr.take().context("a pipe")?);
        let stderr = thread::spawn(move || read_all(stderr));
        let stdout = read_all(stdout)?;
        let stderr = stderr.join().map_err(|_| anyhow::anyhow!("the reader has failed"))??;
        drop(ctr.stdin.take());
        Ok(Output { status: ctr.wait()?, stdout, stderr })
    }

    /// Sets a label of the container.
    pub fn set_label(&self, key: &str, value: &str) -> Result<()> {
        self.ctr(["containers", "label", &self.id, &format!("{key}={value}")]).map(drop)
    }

    /// Freezes it.
    pub fn pause(&self) -> Result<()> {
        self.ctr(["tasks", "pause", &self.id]).map(drop)
    }

    /// Goes on with it.
    pub fn resume(&self) -> Result<()> {
        self.ctr(["tasks", "resume", &self.id]).map(drop)
    }

    /// Kills what runs in it. It stays, with its exit status.
    pub fn kill(&self) -> Result<()> {
        self.ctr(["tasks", "kill", "--signal", "SIGKILL", &self.id]).map(drop)
    }

    /// Starts it again after it was killed, with another first process.
    pub fn start_again(&self) -> Result<()> {
        let stopped = |row: &str| row.starts_with(&format!("{} ", self.id)) && row.ends_with("STOPPED");
        let mut tasks = Ok(String::new());
        wait_until("the container has ended", || {
            tasks = self.ctr(["tasks", "list"]);
            tasks.as_ref().map_or(true, |tasks| tasks.lines().any(|row| stopped(row.trim_end())))
        });
        tasks?;
        self.ctr(["tasks", "delete", &self.id])?;
        self.ctr(["tasks", "start", "--detach", "--null-io", &self.id]).map(drop)
    }

    /// Ends and deletes it, with its files.
    pub fn delete(self) -> Result<()> {
        self.ctr(["tasks", "delete", "--force", &self.id])?;
        self.ctr(["containers", "delete", &self.id]).map(drop)
    }

    fn ctr<const N: usize>(&self, arguments: [&str; N]) -> Result<String> {
        self.containerd.ctr(["--namespace", &self.namespace].into_iter().chain(arguments))
    }
}

/// The last line of a command that runs in a container.
const ALL_SAID: &str = "devgate-test: all is said";

/// Reads up to the last line or the end.
fn read_all(mut pipe: impl Read) -> io::Result<Vec<u8>> {
    let end = format!("{ALL_SAID}\n");
    let (mut said, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        let length = pipe.read(&mut buffer)?;
        said.extend_from_slice(&buffer[..length]);
        if said.ends_with(end.as_bytes()) {
            said.truncate(said.len() - end.len());
            return Ok(said);
        }
        if length == 0 {
            return Ok(said);
        }
    }
}

pub(super) fn run_all<'a>(
    containerd: &'a Containerd,
    ids: &[String],
    configure: impl Fn(NewContainer<'a>) -> NewContainer<'a> + Sync,
) -> Result<Vec<Container<'a>>> {
    let next = AtomicUsize::new(0);
    let started = Mutex::new(Vec::with_capacity(ids.len()));
    let work = || -> Result<()> {
        while let Some(id) = ids.get(next.fetch_add(1, Ordering::Relaxed)) {
            let container = configure(containerd.container(id)).run()?;
            started.lock().map_err(|_| anyhow::anyhow!("another one has failed"))?.push(container);
        }
        Ok(())
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..PARALLEL).map(|_| scope.spawn(work)).collect();
        let joined = |worker: thread::ScopedJoinHandle<'_, Result<()>>| {
            worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        workers.into_iter().try_for_each(joined)
    })?;
    started.into_inner().map_err(|_| anyhow::anyhow!("a worker has panicked"))
}
