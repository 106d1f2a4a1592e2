//! A real containerd of a test's own, with real containers.
//!
//! It runs in a mount namespace of its own, where `/run` is a new tmpfs and `/sys/fs/cgroup` is the hierarchy of cgroups
//! v2, as on a host that has no other. Whatever it starts runs below the cgroup that it was given, and whatever it keeps is
//! on that tmpfs: no disk has to be waited for. So all of it ends with one write to `cgroup.kill`, and all mounts and files
//! go with their namespace.

mod container;
mod events;
mod image;
mod memlock;

use std::{
    collections::BTreeMap,
    fs::{self, File},
    os::{
        fd::AsRawFd,
        unix::{net::UnixStream, process::CommandExt},
    },
    path::{Path, PathBuf},
    process::{self, Child, Command, Stdio},
    sync::{Mutex, MutexGuard, OnceLock, PoisonError},
};

use anyhow::{Context, Result, bail};

use crate::{
    cgroup::{self, TestCgroup},
    wait::wait_until,
};

pub use container::{Container, NewContainer, Oci};
pub use events::{EventLog, time_of_day};
pub use image::{PLAIN, write as write_image};

/// What the daemon is configured with. What is switched off is not used here, or writes elsewhere.
const CONFIG: &str = r#"version = 2
root = "/run/containerd-root"
state = "/run/containerd"
disabled_plugins = [
    "io.containerd.grpc.v1.cri",
    "io.containerd.internal.v1.opt",
    "io.containerd.snapshotter.v1.aufs",
    "io.containerd.snapshotter.v1.btrfs",
    "io.containerd.snapshotter.v1.devmapper",
    "io.containerd.snapshotter.v1.zfs",
]
[grpc]
address = "@/containerd.sock"
"#;

/// Enters the daemon's cgroup (`$0`) and becomes the daemon with its configuration (`$1`) in a mount namespace of its own.
const FIRST_START: &str = "echo $$ > \"$0/cgroup.procs\" && \
    mount -t cgroup2 cgroup2 /sys/fs/cgroup && mount -t tmpfs tmpfs /run && exec containerd --config \"$1\"";

/// The same in the mount namespace (`$2`) that is there already.
const NEXT_START: &str = "echo $$ > \"$0/cgroup.procs\" && exec nsenter --mount=\"$2\" containerd --config \"$1\"";

/// A running containerd. It ends with this value, and so do its containers.
#[derive(Debug)]
pub struct Containerd {
    daemon: Mutex<Option<Child>>,
    cgroup: TestCgroup,
    daemon_cgroup: TestCgroup,
    /// Keeps the namespace while the daemon is dead.
    mounts: OnceLock<File>,
    folder: tempfile::TempDir,
}

impl Containerd {
    /// Starts it below a cgroup, with the image [`PLAIN`].
    pub fn start(parent: &TestCgroup) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("devgate-test-containerd").tempdir()?;
        let path = folder.path().to_str().context("the temporary folder has an odd name")?;
        fs::write(folder.path().join("config.toml"), CONFIG.replace('@', path))?;
        let cgroup = parent.child("containerd")?;
        let daemon_cgroup = cgroup.child("daemon")?;
        let containerd = Self { daemon: Mutex::default(), cgroup, daemon_cgroup, mounts: OnceLock::new(), folder };
        containerd.start_daemon()?;
        containerd.import(PLAIN, &[])?;
        Ok(containerd)
    }

    /// Its socket.
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("containerd.sock")
    }

    /// The cgroup below which all containers are.
    pub fn cgroup(&self) -> &TestCgroup {
        &self.cgroup
    }

    /// Makes an image with these labels in its configuration, and gives it this name. A name that was there is pointed
    /// elsewhere.
    pub fn import(&self, name: &str, labels: &[(&str, &str)]) -> Result<()> {
        self.import_into(container::NAMESPACE, name, labels)
    }

    /// The same in another namespace than `default`: each has images of its own.
    pub fn import_into(&self, namespace: &str, name: &str, labels: &[(&str, &str)]) -> Result<()> {
        let archive = self.folder.path().join("image.tar");
        image::write(&archive, name, labels)?;
        self.ctr(["--namespace", namespace, "images", "import", &archive.to_string_lossy()])?;
        Ok(fs::remove_file(archive)?)
    }

    /// A container to be, by its id.
    pub fn container(&self, id: &str) -> NewContainer<'_> {
        NewContainer::new(self, id)
    }

    /// Starts one container for each id, as many at a time as is quickest.
    pub fn run_all<'a>(
        &'a self,
        ids: &[String],
        configure: impl Fn(NewContainer<'a>) -> NewContainer<'a> + Sync,
    ) -> Result<Vec<Container<'a>>> {
        container::run_all(self, ids, configure)
    }

    /// The first processes of all containers of the namespace `default`, by the container's id.
    pub fn pids(&self) -> Result<BTreeMap<String, u32>> {
        let tasks = self.ctr(["tasks", "list"])?;
        let rows = tasks.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
        let pids = rows.filter_map(|row| Some((row.first()?.to_string(), row.get(1)?.parse().ok()?)));
        Ok(pids.collect())
    }

    /// Notes its events from now on.
    pub fn events(&self) -> Result<EventLog> {
        EventLog::start(self.ctr_command(["events"])?, &self.folder.path().join("events"))
    }

    /// Runs the tool `ctr`; returns what it prints.
    pub fn ctr<'a>(&self, arguments: impl IntoIterator<Item = &'a str>) -> Result<String> {
        let mut command = self.ctr_command(arguments)?;
        let output = command.stdin(Stdio::null()).output().context("cannot run ctr")?;
        if !output.status.success() {
            bail!("{command:?}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Kills the daemon; its containers run on.
    pub fn kill_daemon(&self) -> Result<()> {
        if let Some(mut daemon) = self.daemon().take() {
            daemon.kill()?;
            daemon.wait()?;
            fs::remove_file(self.socket())?;
        }
        Ok(())
    }

    /// Starts the daemon, if it does not run.
    pub fn start_daemon(&self) -> Result<()> {
        let mut place = self.daemon();
        if place.is_some() {
            return Ok(());
        }
        let mounts = self.mounts.get();
        let (program, arguments) = if mounts.is_none() {
            ("unshare", &["--mount", "--propagation", "private", "sh", "-c", FIRST_START][..])
        } else {
            ("sh", &["-c", NEXT_START][..])
        };
        let mut command = Command::new(program);
        command.args(arguments);
        command.arg(self.daemon_cgroup.folder()).arg(self.folder.path().join("config.toml"));
        command.args(mounts.map(path_of));
        let log = self.folder.path().join("log");
        let log_file = File::options().create(true).append(true).open(&log)?;
        command.stdin(Stdio::null()).stdout(log_file.try_clone()?).stderr(log_file);
        memlock::pretend(&mut command);
        let daemon = place.insert(command.process_group(0).spawn().context("cannot start containerd")?);
        let socket = self.folder.path().join("containerd.sock");
        let mut ended = None;
        wait_until("containerd serves", || {
            ended = daemon.try_wait().ok().flatten();
            ended.is_some() || UnixStream::connect(&socket).is_ok()
        });
        if let Some(status) = ended {
            *place = None;
            bail!("containerd: {status}: {}", fs::read_to_string(log).unwrap_or_default());
        }
        if mounts.is_none() {
            let namespace = File::open(format!("/proc/{}/ns/mnt", daemon.id()))?;
            self.mounts.get_or_init(|| namespace);
        }
        Ok(())
    }

    fn daemon(&self) -> MutexGuard<'_, Option<Child>> {
        self.daemon.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ctr_command<'a>(&self, arguments: impl IntoIterator<Item = &'a str>) -> Result<Command> {
        let mounts = self.mounts.get().context("containerd was never started")?;
        let mut command = Command::new("nsenter");
        command.arg(format!("--mount={}", path_of(mounts).display())).args(["ctr", "--address"]).arg(self.socket());
        command.args(arguments);
        Ok(command)
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        // Each step is taken, whatever became of the others; what stays behind is found at the end of the run.
        if let Err(error) = cgroup::remove(self.cgroup.folder()) {
            eprintln!("{error:#}");
        }
        if let Some(mut daemon) = self.daemon().take()
            && let Err(error) = daemon.wait()
        {
            eprintln!("cannot wait for containerd: {error}");
        }
    }
}

/// How another process opens a file of ours.
fn path_of(file: &File) -> PathBuf {
    Path::new("/proc").join(process::id().to_string()).join("fd").join(file.as_raw_fd().to_string())
}
