//! A containerd that tests can make do what the real one does rarely: lose, repeat and reorder events, break connections,
//! give no answer, hand out nonsense. It serves on a socket of its own, from a thread that can be ended like a process.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::future::{self, Future};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use containerd_client::events::{ContainerCreate, TaskExit, TaskStart};
use containerd_client::services::v1::*;
use containerd_client::types::v1::{Process, Status as State};
use containerd_client::types::{Descriptor, Envelope};
use devgate_core::{Cgroup, CgroupId, CgroupProblem, RuntimeId, Task};
use futures_util::{FutureExt, Stream, StreamExt, stream};
use prost::Message;
use tokio::net::UnixListener;
use tokio::sync::{mpsc, oneshot};
use tonic::codegen::http;
use tonic::server::{Grpc, UnaryService};
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

use super::hint::Key;
use crate::sources::container::{FindTask, TaskProblem};

/// The pid of processes that are found in somebody else's cgroup.
pub(super) const STRANGER: u32 = 666;

/// The namespace of all containers that are not said to be in another one.
pub(super) const NAMESPACE: &str = "default";

/// What the fake knows, and what it does wrong.
#[derive(Debug, Default)]
pub(super) struct World {
    pub(super) containers: BTreeMap<Key, Container>,
    pub(super) tasks: BTreeMap<Key, Process>,
    pub(super) images: BTreeMap<String, Image>,
    pub(super) blobs: BTreeMap<String, Vec<u8>>,
    /// Containers whose shims give no answer: left out of lists, and an error if asked for.
    pub(super) hung: BTreeSet<Key>,
    /// How often each call was made.
    pub(super) calls: BTreeMap<String, usize>,
    subscribers: Vec<mpsc::UnboundedSender<Result<Envelope, Status>>>,
    clock: i64,
}

/// The fake. It ends with this value.
#[derive(Debug)]
pub(super) struct Fake {
    folder: tempfile::TempDir,
    world: Arc<Mutex<World>>,
    running: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
}

impl Fake {
    pub(super) fn start() -> Self {
        let folder = tempfile::Builder::new().prefix("devgate-test-fake").tempdir().expect("a folder can be made");
        let mut fake = Self { folder, world: Arc::default(), running: None };
        fake.come_back();
        fake
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.folder.path().join("containerd.sock")
    }

    pub(super) fn world(&self) -> MutexGuard<'_, World> {
        lock(&self.world)
    }

    /// Ends as if killed: connections break, what it knows stays.
    pub(super) fn die(&mut self) {
        if let Some((stop, thread)) = self.running.take() {
            drop(stop);
            thread.join().expect("the fake ends in order");
            std::fs::remove_file(self.socket()).expect("the socket is there");
        }
        self.world().subscribers.clear();
    }

    pub(super) fn come_back(&mut self) {
        let (stop, stopped) = oneshot::channel();
        let (socket, world) = (self.socket(), Arc::clone(&self.world));
        let listening = std::os::unix::net::UnixListener::bind(socket).expect("the socket is free");
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                tokio::select! {
                    () = serve(listening, world) => {}
                    _ = stopped => {}
                }
            });
        });
        self.running = Some((stop, thread));
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.die();
    }
}

/// The key of a container.
pub(super) fn key(id: &str) -> Key {
    Key { namespace: NAMESPACE.to_owned(), id: id.to_owned() }
}

impl World {
    /// Creates a container, and says nothing.
    pub(super) fn create(&mut self, id: &str, labels: &[(&str, &str)], image: &str) {
        let created_at = Some(self.tick());
        let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let container =
            Container { id: id.to_owned(), labels, image: image.to_owned(), created_at, ..Container::default() };
        self.containers.insert(key(id), container);
    }

    /// Sets a container's task, and says nothing.
    pub(super) fn task(&mut self, id: &str, pid: u32, state: State) {
        let process = Process { id: id.to_owned(), pid, status: state.into(), ..Process::default() };
        self.tasks.insert(key(id), process);
    }

    /// Creates and starts a container, and says so.
    pub(super) fn run(&mut self, id: &str, pid: u32) {
        self.create(id, &[], "");
        self.say_created(id);
        self.task(id, pid, State::Running);
        self.say_started(id, pid);
    }

    /// Points an image's name at a blob.
    pub(super) fn tag(&mut self, name: &str, digest: &str) {
        let target = Some(Descriptor { digest: digest.to_owned(), ..Descriptor::default() });
        let updated_at = Some(self.tick());
        self.images.insert(name.to_owned(), Image { name: name.to_owned(), target, updated_at, ..Image::default() });
    }

    pub(super) fn blob(&mut self, digest: &str, text: &str) {
        self.blobs.insert(digest.to_owned(), text.into());
    }

    pub(super) fn say_created(&mut self, id: &str) {
        self.say("/containers/create", &ContainerCreate { id: id.into(), ..ContainerCreate::default() });
    }

    pub(super) fn say_started(&mut self, id: &str, pid: u32) {
        self.say("/tasks/start", &TaskStart { container_id: id.into(), pid });
    }

    pub(super) fn say_ended(&mut self, id: &str, process: &str, pid: u32) {
        let exit = TaskExit { container_id: id.into(), id: process.into(), pid, ..TaskExit::default() };
        self.say("/tasks/exit", &exit);
    }

    pub(super) fn say(&mut self, topic: &str, event: &impl Message) {
        self.say_bytes(topic, event.encode_to_vec());
    }

    pub(super) fn say_bytes(&mut self, topic: &str, value: Vec<u8>) {
        self.say_in(NAMESPACE, topic, value);
    }

    pub(super) fn say_in(&mut self, namespace: &str, topic: &str, value: Vec<u8>) {
        let event = Some(prost_types::Any { type_url: String::new(), value });
        self.pass_on(&Envelope { timestamp: None, namespace: namespace.into(), topic: topic.into(), event });
    }

    /// Ends all subscriptions, with an error or in order.
    pub(super) fn cut(&mut self, error: Option<&Status>) {
        for subscriber in self.subscribers.drain(..) {
            // It may have gone by itself.
            error.map(|error| subscriber.send(Err(error.clone())).ok());
        }
    }

    pub(super) fn calls(&self, call: &str) -> usize {
        self.calls.get(call).copied().unwrap_or_default()
    }

    fn pass_on(&mut self, event: &Envelope) {
        self.subscribers.retain(|subscriber| subscriber.send(Ok(event.clone())).is_ok());
    }

    fn tick(&mut self) -> prost_types::Timestamp {
        self.clock += 1;
        prost_types::Timestamp { seconds: self.clock, nanos: 0 }
    }
}

/// Finds every process in the cgroup with its number, except for [`STRANGER`].
#[derive(Debug)]
pub(super) struct FakeTasks;

impl FindTask for FakeTasks {
    fn find(&self, container: &RuntimeId, pid: u32, _told: Option<&str>) -> Result<Task, TaskProblem> {
        if pid == STRANGER {
            return Err(TaskProblem::Refused { pid, source: CgroupProblem::Root });
        }
        let path = format!("/{}/{}", container.namespace, container.id);
        Ok(Task { pid, cgroup: Cgroup { id: CgroupId(pid.into()), path } })
    }
}

fn lock(world: &Mutex<World>) -> MutexGuard<'_, World> {
    world.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn serve(listening: std::os::unix::net::UnixListener, world: Arc<Mutex<World>>) {
    listening.set_nonblocking(true).expect("a socket can be made nonblocking");
    let listener = UnixListener::from_std(listening).expect("a runtime runs");
    let connections = stream::unfold(listener, |listener| async {
        let connection = listener.accept().await.map(|(connection, _)| connection);
        Some((connection, listener))
    });
    let service = tower::service_fn(move |request| answer(Arc::clone(&world), request).map(Ok::<_, Infallible>));
    let router = tonic::service::Routes::default().into_axum_router().fallback_service(service);
    tonic::transport::Server::builder()
        .add_routes(router.into())
        .serve_with_incoming(connections)
        .await
        .expect("connections can be served");
}

type Body = tonic::body::Body;

async fn answer<B>(world: Arc<Mutex<World>>, request: http::Request<B>) -> http::Response<Body>
where
    B: tonic::codegen::Body + Send + 'static,
    B::Error: Into<tonic::codegen::StdError> + Send,
{
    let path = request.uri().path().trim_start_matches("/containerd.services.").to_owned();
    *lock(&world).calls.entry(path.clone()).or_default() += 1;
    let namespace = request.headers().get("containerd-namespace").and_then(|it| it.to_str().ok()).map(str::to_owned);
    let key = |id: String| Key { namespace: namespace.clone().unwrap_or_default(), id };
    match path.as_str() {
        "events.v1.Events/Subscribe" => subscribe(world, request).await,
        "events.v1.Events/Publish" => {
            let event = |it: PublishRequest| Envelope { topic: it.topic, event: it.event, ..Envelope::default() };
            let publish = |it| {
                lock(&world).pass_on(&event(it));
                Ok(())
            };
            unary(request, publish).await
        }
        "namespaces.v1.Namespaces/List" => {
            let names: BTreeSet<_> = lock(&world).containers.keys().map(|key| key.namespace.clone()).collect();
            let namespaces = names.into_iter().map(|name| Namespace { name, ..Namespace::default() }).collect();
            unary(request, |_: ListNamespacesRequest| Ok(ListNamespacesResponse { namespaces })).await
        }
        "containers.v1.Containers/Get" => {
            let get = |it: GetContainerRequest| {
                let container = lock(&world).containers.get(&key(it.id)).cloned();
                Ok(GetContainerResponse { container: Some(container.ok_or_else(not_found)?) })
            };
            unary(request, get).await
        }
        "containers.v1.Containers/ListStream" => {
            let world = lock(&world).containers.clone();
            let containers: Vec<_> =
                world.into_iter().filter(|(it, _)| *it == key(it.id.clone())).map(|it| it.1).collect();
            let messages = containers.into_iter().map(|it| Ok(ListContainerMessage { container: Some(it) }));
            streaming(request, move |_: ListContainersRequest| future::ready(Ok(stream::iter(messages.clone())))).await
        }
        "tasks.v1.Tasks/Get" => {
            let get = |it: GetRequest| {
                let (world, key) = (lock(&world), key(it.container_id));
                if world.hung.contains(&key) {
                    return Err(Status::unknown("the shim does not answer"));
                }
                Ok(GetResponse { process: Some(world.tasks.get(&key).cloned().ok_or_else(not_found)?) })
            };
            unary(request, get).await
        }
        "tasks.v1.Tasks/List" => {
            let list = |_: ListTasksRequest| {
                let world = lock(&world);
                let answers = |it: &&Key| **it == key(it.id.clone()) && !world.hung.contains(*it);
                let tasks = world.tasks.keys().filter(answers).map(|it| world.tasks[it].clone()).collect();
                Ok(ListTasksResponse { tasks })
            };
            unary(request, list).await
        }
        "images.v1.Images/Get" => {
            let get = |it: GetImageRequest| {
                Ok(GetImageResponse { image: Some(lock(&world).images.get(&it.name).cloned().ok_or_else(not_found)?) })
            };
            unary(request, get).await
        }
        "content.v1.Content/Read" => {
            let read = move |it: ReadContentRequest| {
                let blob = lock(&world).blobs.get(&it.digest).cloned();
                let parts = blob.map(|it| it.chunks(1000).map(<[u8]>::to_vec).collect::<Vec<_>>());
                let message = |data| Ok(ReadContentResponse { offset: 0, data });
                future::ready(parts.map(|it| stream::iter(it.into_iter().map(message))).ok_or_else(not_found))
            };
            streaming(request, read).await
        }
        other => Status::unimplemented(other.to_owned()).into_http(),
    }
}

fn not_found() -> Status {
    Status::not_found("it is not there")
}

/// As containerd does it: nothing is answered before the first event.
async fn subscribe<B>(world: Arc<Mutex<World>>, request: http::Request<B>) -> http::Response<Body>
where
    B: tonic::codegen::Body + Send + 'static,
    B::Error: Into<tonic::codegen::StdError> + Send,
{
    let answer = move |_: SubscribeRequest| {
        let (sender, mut events) = mpsc::unbounded_channel();
        lock(&world).subscribers.push(sender);
        async move {
            let first = events.recv().await.ok_or_else(|| Status::unavailable("cut"))?;
            let rest = stream::unfold(events, |mut events| async { Some((events.recv().await?, events)) });
            Ok(stream::iter([first]).chain(rest).boxed())
        }
    };
    streaming(request, answer).await
}

async fn unary<B, Q, A>(request: http::Request<B>, answer: impl FnOnce(Q) -> Result<A, Status>) -> http::Response<Body>
where
    B: tonic::codegen::Body + Send + 'static,
    B::Error: Into<tonic::codegen::StdError> + Send,
    Q: Message + Default + Send + 'static,
    A: Message + Send + 'static,
{
    struct Once<F>(Option<F>);
    impl<Q, A: Message + Send + 'static, F: FnOnce(Q) -> Result<A, Status>> UnaryService<Q> for Once<F> {
        type Response = A;
        type Future = future::Ready<Result<Response<A>, Status>>;

        fn call(&mut self, request: Request<Q>) -> Self::Future {
            let answer = self.0.take().expect("it is called once");
            future::ready(answer(request.into_inner()).map(Response::new))
        }
    }
    Grpc::new(ProstCodec::<A, Q>::default()).unary(Once(Some(answer)), request).await
}

async fn streaming<B, Q, A, S, F>(
    request: http::Request<B>,
    answer: impl Fn(Q) -> F + Send + 'static,
) -> http::Response<Body>
where
    B: tonic::codegen::Body + Send + 'static,
    B::Error: Into<tonic::codegen::StdError> + Send,
    Q: Message + Default + Send + 'static,
    A: Message + Send + 'static,
    S: Stream<Item = Result<A, Status>> + Send + 'static,
    F: Future<Output = Result<S, Status>> + Send,
{
    let service = tower::service_fn(|request: Request<Q>| {
        let answer = answer(request.into_inner());
        async { Ok::<_, Status>(Response::new(answer.await?)) }
    });
    Grpc::new(ProstCodec::<A, Q>::default()).server_streaming(service, request).await
}
