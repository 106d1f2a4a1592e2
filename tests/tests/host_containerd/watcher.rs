//! The source as a test sees it: what is known of the containers after everything that it has told.

use std::{
    collections::BTreeMap,
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use devgate::{
    executors::enforcer::CgroupRoot,
    sources::containerd::{self, ContainerdConfig},
};
use devgate_core::{Container, ContainerEvent, ContainerState, Event, Task};
use devgate_tests::Containerd;
use tokio::{
    runtime::Runtime,
    sync::{mpsc, oneshot},
    time::timeout,
};

/// What takes longer than this never comes.
const PATIENCE: Duration = Duration::from_secs(30);

/// A running source. It ends with this value.
pub(crate) struct Watcher {
    events: mpsc::Receiver<Event>,
    known: BTreeMap<String, Container>,
    lists: usize,
    runtime: Runtime,
    running: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
}

impl Watcher {
    /// Starts it, and waits for its first list.
    pub(crate) fn start(containerd: &Containerd) -> Result<Self> {
        let config = ContainerdConfig { socket: containerd.socket(), ..ContainerdConfig::default() };
        let (sender, events) = mpsc::channel(64);
        let (stop, stopped) = oneshot::channel();
        let source_runtime = runtime()?;
        let thread = thread::spawn(move || {
            source_runtime.block_on(containerd::run(config, sender, async {
                // Its end is as good as a message.
                drop(stopped.await);
            }));
        });
        let running = Some((stop, thread));
        let mut watcher = Self { events, known: BTreeMap::new(), lists: 0, runtime: runtime()?, running };
        watcher.until("there is a list", |watcher| watcher.lists > 0)?;
        Ok(watcher)
    }

    /// Takes in what is told until the condition holds; `what` says what that means.
    pub(crate) fn until(&mut self, what: &str, condition: impl Fn(&Self) -> bool) -> Result<()> {
        while !condition(self) {
            self.take().with_context(|| format!("in vain waited until {what}"))?;
        }
        Ok(())
    }

    /// Takes in what is told until the container runs, and is where its process is on this host. Returns its task.
    pub(crate) fn until_running(&mut self, id: &str, pid: u32) -> Result<Task> {
        self.until(
            &format!("{id} runs as {pid}"),
            |watcher| matches!(watcher.state(id), Some(ContainerState::Running(task)) if task.pid == pid),
        )?;
        let task = self.task(id).context("it runs")?.clone();
        let cgroup = CgroupRoot::find()?.cgroup(task.cgroup.path.as_ref())?;
        assert_eq!(cgroup.id(), task.cgroup.id.0, "{id}: the id is not that of {}", task.cgroup.path);
        Ok(task)
    }

    /// Takes in what is told until the container has no task.
    pub(crate) fn until_stopped(&mut self, id: &str) -> Result<()> {
        self.until(&format!("{id} is stopped"), |watcher| watcher.state(id) == Some(&ContainerState::Stopped))
    }

    /// How many complete lists there were.
    pub(crate) fn lists(&self) -> usize {
        self.lists
    }

    /// A container of the namespace `default`.
    pub(crate) fn container(&self, id: &str) -> Option<&Container> {
        self.known.get(&format!("containerd/default/{id}"))
    }

    pub(crate) fn state(&self, id: &str) -> Option<&ContainerState> {
        self.container(id).map(|container| &container.state)
    }

    pub(crate) fn task(&self, id: &str) -> Option<&Task> {
        self.container(id).and_then(Container::task)
    }

    /// The classes that a container asks for, and the warnings about it.
    pub(crate) fn wishes(&self, id: &str) -> (Vec<String>, Vec<String>) {
        let (claims, warnings) = self.container(id).map(Container::all_claims).unwrap_or_default();
        let classes = claims.iter().flat_map(|claim| &claim.classes).map(ToString::to_string).collect();
        (classes, warnings.iter().map(ToString::to_string).collect())
    }

    /// All that is known, by the name that the core gives it.
    pub(crate) fn known(&self) -> &BTreeMap<String, Container> {
        &self.known
    }

    fn take(&mut self) -> Result<()> {
        let event = self.runtime.block_on(async { timeout(PATIENCE, self.events.recv()).await })?;
        match event.context("the source has ended")? {
            Event::Container(ContainerEvent::Seen(container)) => {
                self.known.insert(container.id.to_string(), container);
            }
            Event::Container(ContainerEvent::Gone { id, pid: None }) => {
                self.known.remove(&id.to_string());
            }
            Event::Container(ContainerEvent::Listed { runtime, containers }) => {
                assert_eq!(runtime, containerd::RUNTIME);
                self.known = containers.into_iter().map(|it| (it.id.to_string(), it)).collect();
                self.lists += 1;
            }
            other => bail!("the source told something else: {other:?}"),
        }
        Ok(())
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.running.take() {
            drop(stop);
            let ended = thread.join();
            assert!(ended.is_ok() || thread::panicking(), "the source has panicked");
        }
    }
}

fn runtime() -> Result<Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}
