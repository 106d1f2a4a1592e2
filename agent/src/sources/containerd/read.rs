//! From what containerd and the kernel say of a container to what the core wants to know.

use std::collections::BTreeMap;
use std::sync::Arc;

use containerd_client::types::v1::{Process, Status};
use devgate_core::{Container, ContainerState, Labels};
use futures_util::{StreamExt, stream};

use super::ContainerdConfig;
use super::client::{CallError, Client};
use super::hint::Key;
use super::image::{self, ImageCache, ImageProblem, LABEL_PREFIX};
use super::record::{Moment, Record};
use super::session::runtime_id;
use crate::sources::container::{FindTask, TaskProblem};

/// How many containers are read at the same time.
pub(super) const PARALLEL: usize = 16;

/// Kubernetes' namespace, where labels are no wishes, so that nobody needs to know where they come from.
const WITHOUT_WISHES: &str = "k8s.io";

/// A container as it was read.
#[derive(Clone, Debug)]
pub(super) struct Known {
    pub(super) container: Container,
    /// When it was created: with the same name it may be another one by now.
    created: Moment,
}

/// What came of reading a container.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) key: Key,
    /// The container; `None` if there is none. An error says nothing of it.
    pub(super) found: Result<Option<Known>, ReadProblem>,
    /// What is not as it should be with a container that was found.
    pub(super) flaws: Vec<Flaw>,
}

/// Why a container could not be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReadProblem {
    #[error(transparent)]
    Call(#[from] CallError),
    #[error(transparent)]
    Task(TaskProblem),
    #[error("its task is in a state that containerd does not know")]
    UnknownState,
}

/// What is not as it should be with a container, which is told of nonetheless.
#[derive(Debug, thiserror::Error)]
pub(super) enum Flaw {
    #[error("it counts as stopped")]
    Task(#[source] TaskProblem),
    #[error("its labels do not count, since those of its image are not known")]
    Image(#[source] ImageProblem),
}

impl Flaw {
    /// Whether it may be gone at the next try, while nothing has happened to the container.
    pub(super) fn may_pass(&self) -> bool {
        match self {
            Self::Task(_) => false,
            Self::Image(problem) => problem.may_pass(),
        }
    }
}

/// Everything that was known, by container.
pub(super) type AllKnown = BTreeMap<Key, Arc<Known>>;

/// Reads containers.
#[derive(Debug)]
pub(super) struct Reader<'a, F> {
    pub(super) client: Client,
    pub(super) tasks: &'a F,
    pub(super) images: &'a ImageCache,
    pub(super) config: &'a ContainerdConfig,
}

impl<F: FindTask> Reader<'_, F> {
    /// Reads one container. `known` is what was read of it last, `created` the number of a first process that it has just
    /// got.
    pub(super) async fn one(&self, key: Key, known: Option<Arc<Known>>, created: Option<u32>) -> Reading {
        let record = match self.client.container(&key.namespace, &key.id).await {
            Ok(Some(record)) => record,
            Ok(None) => return Reading { key, found: Ok(None), flaws: Vec::new() },
            Err(error) => return Reading { key, found: Err(error.into()), flaws: Vec::new() },
        };
        // If the process is the container's, as its cgroup says, there is nothing to ask. That it has been started, or has
        // ended, is told next.
        let task =
            created.and_then(|pid| self.tasks.find(&runtime_id(key.clone()), pid, record.cgroups_path.as_deref()).ok());
        match task {
            Some(task) => {
                let mut flaws = Vec::new();
                let known = self.known(&key, record, ContainerState::Created(task), known, &mut flaws).await;
                Reading { key, found: Ok(Some(known)), flaws }
            }
            None => self.complete(key, record, None, known).await,
        }
    }

    /// Reads all containers of the namespaces that are told of.
    pub(super) async fn all(&self, known: AllKnown) -> Result<Vec<Reading>, CallError> {
        let mut namespaces = self.config.namespaces.clone();
        if namespaces.is_empty() {
            namespaces = self.client.namespaces().await?;
        }
        let mut readings = Vec::new();
        for namespace in namespaces {
            let records = self.client.containers(&namespace).await?;
            let tasks = self.client.tasks(&namespace).await?;
            let mut tasks: BTreeMap<String, Process> = tasks.into_iter().map(|task| (task.id.clone(), task)).collect();
            let reading = records.into_iter().map(|record| {
                let key = Key { namespace: namespace.clone(), id: record.id.clone() };
                let (task, known) = (tasks.remove(&key.id), known.get(&key).cloned());
                self.complete(key, record, task, known)
            });
            readings.extend(stream::iter(reading).buffer_unordered(PARALLEL).collect::<Vec<_>>().await);
        }
        Ok(readings)
    }

    /// Reads what is not in the container's record. A task that is not given may have been left out, so it is asked for.
    async fn complete(&self, key: Key, record: Record, task: Option<Process>, known: Option<Arc<Known>>) -> Reading {
        let mut flaws = Vec::new();
        let found = match self.state(&key, &record, task, &mut flaws).await {
            Ok(state) => Ok(Some(self.known(&key, record, state, known, &mut flaws).await)),
            Err(problem) => Err(problem),
        };
        Reading { key, found, flaws }
    }

    async fn known(
        &self,
        key: &Key,
        record: Record,
        state: ContainerState,
        known: Option<Arc<Known>>,
        flaws: &mut Vec<Flaw>,
    ) -> Known {
        let image_labels = self.image_labels(key, &record, known, flaws).await;
        let id = runtime_id(key.clone());
        let container = Container { id, state, labels: record.labels, image_labels, claims: Vec::new() };
        Known { container, created: record.created }
    }

    async fn state(
        &self,
        key: &Key,
        record: &Record,
        task: Option<Process>,
        flaws: &mut Vec<Flaw>,
    ) -> Result<ContainerState, ReadProblem> {
        let task = match task {
            Some(task) => Some(task),
            None => self.client.task(&key.namespace, &key.id).await?,
        };
        let Some(process) = task else { return Ok(ContainerState::Stopped) };
        let state = match process.status() {
            Status::Created => ContainerState::Created,
            // A process that is frozen may be thawed at any time.
            Status::Running | Status::Paused | Status::Pausing => ContainerState::Running,
            Status::Stopped => return Ok(ContainerState::Stopped),
            Status::Unknown => return Err(ReadProblem::UnknownState),
        };
        match self.tasks.find(&runtime_id(key.clone()), process.pid, record.cgroups_path.as_deref()) {
            Ok(task) => Ok(state(task)),
            // The runtime will say so in a moment.
            Err(TaskProblem::Ended(_)) => Ok(ContainerState::Stopped),
            Err(problem) if problem.may_pass() => Err(ReadProblem::Task(problem)),
            Err(problem) => {
                flaws.push(Flaw::Task(problem));
                Ok(ContainerState::Stopped)
            }
        }
    }

    /// Only where one of the container's labels could be the image's word.
    async fn image_labels(
        &self,
        key: &Key,
        record: &Record,
        known: Option<Arc<Known>>,
        flaws: &mut Vec<Flaw>,
    ) -> Option<Labels> {
        let wishes = record.labels.keys().any(|label| label.starts_with(LABEL_PREFIX));
        if !wishes || key.namespace == WITHOUT_WISHES {
            return None;
        }
        // What it was made from does not change, whatever becomes of the image and its name.
        let before = known.filter(|known| known.created == record.created);
        if let Some(labels) = before.and_then(|known| known.container.image_labels.clone()) {
            return Some(labels);
        }
        match image::labels(&self.client, self.images, key, &record.image, record.created).await {
            Ok(labels) => Some(Labels::clone(&labels)),
            Err(problem) => {
                flaws.push(Flaw::Image(problem));
                None
            }
        }
    }
}
