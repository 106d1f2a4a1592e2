//! Hand-made containers: mount, pid and if asked user namespace, a root and `/dev` of their own, a cgroup.

use std::fs;
use std::io::{Read, Seek};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, bail, ensure};
use devgate::executors::device_nodes::ContainerRef;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::inside::CREATE;
use crate::spec::{Line, MAPPED_ROOT, Order, Reply, Spec, Stat};

/// A running container that ends with this value.
pub(crate) struct Container {
    pub id: String,
    /// Of its first process, on the host.
    pub pid: u32,
    creator: Child,
    line: Option<Line>,
    cgroup: Cgroup,
}

impl Container {
    pub(crate) fn start(spec: &Spec) -> Result<Self> {
        let cgroup = Cgroup::make()?;
        let (ours, theirs) = UnixStream::pair()?;
        let creator = Command::new("/proc/self/exe")
            .arg(CREATE)
            .stdin(Stdio::from(std::os::fd::OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .spawn()?;
        let mut container = Self { id: cgroup.id.clone(), pid: 0, creator, line: None, cgroup };
        // It waits for the specification, so what it starts is in the cgroup.
        let creator = container.creator.id();
        fs::write(container.cgroup.leaf.join("cgroup.procs"), creator.to_string())?;
        let line = container.line.insert(Line::new(ours));
        line.say(spec)?;
        if spec.user_namespace {
            let _: String = line.hear()?;
            for map in ["uid_map", "gid_map"] {
                fs::write(format!("/proc/{creator}/{map}"), format!("0 {MAPPED_ROOT} 65536"))?;
            }
            line.say(&"mapped")?;
        }
        container.pid = line.hear().context("the container did not start")?;
        line.say(&"go")?;
        let _: String = line.hear().context("the container did not become ready")?;
        Ok(container)
    }

    /// As the agent would find it from what a runtime tells.
    pub(crate) fn find(&self) -> Result<ContainerRef> {
        Ok(ContainerRef::find(self.pid, self.cgroup.number()?, Path::new("/proc"), &cgroup_root()?)?)
    }

    pub(crate) fn order(&mut self, order: &Order) -> Result<Reply> {
        let line = self.line.as_mut().context("the container has ended")?;
        line.say(order)?;
        line.hear().with_context(|| format!("{order:?}"))
    }

    /// The id of its cgroup.
    pub(crate) fn cgroup_id(&self) -> Result<u64> {
        self.cgroup.number()
    }

    /// The directory of the cgroup that its own is in.
    pub(crate) fn cgroup_top(&self) -> &Path {
        &self.cgroup.top
    }

    /// An order that must succeed.
    pub(crate) fn must(&mut self, order: &Order) -> Result<()> {
        let reply = self.order(order)?;
        ensure!(reply == Reply::Done, "{order:?}: {reply:?}");
        Ok(())
    }

    /// `None` if there is nothing at the path.
    pub(crate) fn stat(&mut self, path: &str) -> Result<Option<Stat>> {
        match self.order(&Order::Stat(path.to_owned()))? {
            Reply::Stat(stat) => Ok(Some(stat)),
            Reply::Errno(libc::ENOENT) => Ok(None),
            other => bail!("stat {path}: {other:?}"),
        }
    }

    /// The lines of its mount table.
    pub(crate) fn mounts(&self) -> Result<Vec<String>> {
        let table = fs::read_to_string(format!("/proc/{}/mountinfo", self.pid))?;
        Ok(table.lines().map(str::to_owned).collect())
    }

    /// Ends it and waits until it is gone.
    pub(crate) fn end(&mut self) {
        self.line = None;
        // Waiting cannot fail, or the container has been waited for already.
        let _ = self.creator.wait();
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        self.end();
    }
}

/// `devgate-test-nodes-<pid>-<n>/cri-containerd-<id>.scope/container`: the process is in one below the container's, as with crun.
pub(crate) struct Cgroup {
    pub id: String,
    pub leaf: PathBuf,
    top: PathBuf,
}

impl Cgroup {
    pub(crate) fn make() -> Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let id = format!("{:08x}{number:04x}", std::process::id());
        let top = cgroup_root()?.join(format!("{}-{number}", test_prefix()));
        let leaf = top.join(format!("cri-containerd-{id}.scope/container"));
        fs::create_dir_all(&leaf)?;
        Ok(Self { id, leaf, top })
    }

    /// The id that the kernel gave to the container's cgroup, the one above the leaf.
    pub(crate) fn number(&self) -> Result<u64> {
        let own = self.leaf.parent().context("the leaf is in the container's cgroup")?;
        Ok(fs::metadata(own)?.ino())
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        if let Err(error) = wait_until_empty(&self.top) {
            eprintln!("cannot wait for the end of {}: {error}", self.top.display());
        }
        for directory in self.leaf.ancestors().take_while(|directory| directory.starts_with(&self.top)) {
            if let Err(error) = fs::remove_dir(directory) {
                eprintln!("cannot remove {}: {error}", directory.display());
            }
        }
    }
}

/// A process leaves its cgroup a moment after its parent has learnt of its end.
fn wait_until_empty(cgroup: &Path) -> std::io::Result<()> {
    let mut events = fs::File::open(cgroup.join("cgroup.events"))?;
    loop {
        let mut text = String::new();
        events.rewind()?;
        events.read_to_string(&mut text)?;
        if text.contains("populated 0") {
            return Ok(());
        }
        // A change since the file was read last is told at once.
        let mut polled = [PollFd::new(&events, PollFlags::PRI)];
        if poll(&mut polled, Some(&Timespec { tv_sec: 10, tv_nsec: 0 }))? == 0 {
            return Err(std::io::ErrorKind::TimedOut.into());
        }
    }
}

/// What the names of this run's cgroups and directories begin with.
pub(crate) fn test_prefix() -> String {
    format!("devgate-test-nodes-{}", std::process::id())
}

/// The id of the cgroup where a process is.
pub(crate) fn cgroup_of(pid: u32) -> Result<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
    let path = text.lines().find_map(|line| line.strip_prefix("0::/")).context("it is in no cgroup v2")?;
    Ok(fs::metadata(cgroup_root()?.join(path))?.ino())
}

/// Where the cgroup v2 hierarchy is mounted.
pub(crate) fn cgroup_root() -> Result<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    let mut points = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let point = fields.next()?;
        (fields.next()? == "cgroup2").then(|| PathBuf::from(point))
    });
    points.next().context("no cgroup v2 hierarchy is mounted")
}
