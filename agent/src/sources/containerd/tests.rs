//! The source against a containerd that makes mistakes.

use std::future;
use std::time::Duration;

use containerd_client::events::{ContainerCreate, ContainerDelete, TaskDelete};
use containerd_client::services::v1::Container;
use containerd_client::types::v1::Status as State;
use devgate_core::{Backoff, ContainerEvent, ContainerState, Event, Labels};
use prost::Message;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tonic::Status;

use super::fake::{Fake, FakeTasks, STRANGER, key};
use super::hint::Key;
use super::image::LABEL_PREFIX;
use super::session::{self, runtime_id};
use super::{ContainerdConfig, RUNTIME};

/// What takes longer than this never comes.
const PATIENCE: Duration = Duration::from_secs(20);

/// The source, with what it tells. It ends with this value.
struct Source {
    events: mpsc::Receiver<Event>,
    task: JoinHandle<()>,
}

impl Source {
    /// Starts it, and takes the first list.
    async fn start(fake: &Fake) -> (Self, Vec<String>) {
        Self::start_with(fake, |_| {}).await
    }

    async fn start_with(fake: &Fake, change: impl FnOnce(&mut ContainerdConfig)) -> (Self, Vec<String>) {
        let backoff = Backoff { first: Duration::from_millis(2), cap: Duration::from_millis(50) };
        let mut config = ContainerdConfig { socket: fake.socket(), backoff, ..ContainerdConfig::default() };
        change(&mut config);
        let (sender, events) = mpsc::channel(1);
        let task = tokio::spawn(async move { session::watch(&config, || Ok(FakeTasks), &sender).await });
        let mut source = Self { events, task };
        let list = source.list().await;
        (source, list)
    }

    async fn next(&mut self) -> ContainerEvent {
        match timeout(PATIENCE, self.events.recv()).await {
            Ok(Some(Event::Container(event))) => event,
            other => panic!("no event of a container came, but {other:?}"),
        }
    }

    /// The next event, which is a list.
    async fn list(&mut self) -> Vec<String> {
        match self.next().await {
            ContainerEvent::Listed { runtime, containers } => {
                assert_eq!(runtime, RUNTIME);
                containers
                    .into_iter()
                    .map(|container| format!("{} {}", container.id.id, state(&container.state)))
                    .collect()
            }
            other => panic!("no list came, but {other:?}"),
        }
    }

    /// The next event, which is of a single container.
    async fn one(&mut self) -> String {
        match self.next().await {
            ContainerEvent::Seen(container) => format!("{} {}", container.id.id, state(&container.state)),
            ContainerEvent::Gone { id, pid: None } => format!("{} gone", id.id),
            other => panic!("no container came, but {other:?}"),
        }
    }

    /// The labels of the image of the next container that is told of.
    async fn image_labels(&mut self) -> Option<Labels> {
        match self.next().await {
            ContainerEvent::Seen(container) => container.image_labels,
            other => panic!("no container came, but {other:?}"),
        }
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn state(state: &ContainerState) -> String {
    match state {
        ContainerState::Created(task) => format!("created {}", task.pid),
        ContainerState::Running(task) => format!("running {}", task.pid),
        ContainerState::Stopped => "stopped".to_owned(),
    }
}

#[tokio::test]
async fn a_container_is_told_of_from_its_creation_to_its_end() {
    let fake = Fake::start();
    fake.world().run("early", 1);
    let (mut source, list) = Source::start(&fake).await;
    assert_eq!(list, ["early running 1"]);

    fake.world().create("demo", &[], "");
    fake.world().say_created("demo");
    assert_eq!(source.one().await, "demo stopped");
    fake.world().task("demo", 2, State::Created);
    fake.world().say_started("demo", 2);
    assert_eq!(source.one().await, "demo created 2");
    fake.world().task("demo", 2, State::Running);
    fake.world().say_started("demo", 2);
    assert_eq!(source.one().await, "demo running 2");
    fake.world().task("demo", 2, State::Stopped);
    fake.world().say_ended("demo", "demo", 2);
    assert_eq!(source.one().await, "demo stopped");
    fake.world().containers.remove(&key("demo"));
    fake.world().say("/containers/delete", &ContainerDelete { id: "demo".into() });
    assert_eq!(source.one().await, "demo gone");
}

// Fault: agent/src/sources/containerd/session.rs
// - let is_news = before.is_none_or(|before| before.container != container);
// + let is_news = before.is_none_or(|_| true);
#[tokio::test]
async fn b83_repeated_and_reordered_events_change_nothing() {
    let fake = Fake::start();
    fake.world().run("demo", 2);
    let (mut source, _) = Source::start(&fake).await;
    for _ in 0..3 {
        let mut world = fake.world();
        // Of an earlier life, of the present one and of a process inside, in any order.
        world.say_ended("demo", "demo", 1);
        world.say("/tasks/delete", &TaskDelete { container_id: "demo".into(), ..TaskDelete::default() });
        world.say_ended("demo", "shell", 7);
        world.say_started("demo", 1);
        world.say_started("demo", 2);
        world.say_created("demo");
        world.say("/containers/delete", &ContainerDelete { id: "demo".into() });
        // Of one that there is not.
        world.say_started("other", 9);
    }
    fake.world().run("last", 3);
    assert_eq!(source.one().await, "last running 3");
}

// Fault: agent/src/sources/containerd/session.rs
// - schedule.want_listing();
// - relist_at = Instant::now() + config.relist;
// + relist_at = Instant::now() + config.relist;
#[tokio::test]
async fn b83_what_no_event_told_of_is_found_by_listing_again() {
    let fake = Fake::start();
    let (mut source, list) = Source::start_with(&fake, |config| config.relist = Duration::from_millis(20)).await;
    assert_eq!(list, [""; 0]);
    {
        let mut world = fake.world();
        world.create("demo", &[], "");
        world.task("demo", 2, State::Running);
    }
    while source.list().await != ["demo running 2"] {}
    fake.world().tasks.clear();
    while source.list().await != ["demo stopped"] {}
}

// Fault: agent/src/sources/containerd/session.rs
// - if matches!(lost, Lost::Listener) {
// + if !matches!(lost, Lost::Cgroups(_)) {
#[tokio::test]
async fn b83_after_a_lost_connection_everything_is_listed_again() {
    let mut fake = Fake::start();
    fake.world().run("demo", 2);
    fake.world().run("other", 3);
    let (mut source, list) = Source::start(&fake).await;
    assert_eq!(list, ["demo running 2", "other running 3"]);
    fake.die();
    {
        let mut world = fake.world();
        world.task("demo", 4, State::Running);
        world.containers.remove(&key("other"));
    }
    fake.come_back();
    assert_eq!(source.list().await, ["demo running 4"]);
    for error in [None, Some(&Status::unavailable("restarting"))] {
        fake.world().cut(error);
        assert_eq!(source.list().await, ["demo running 4"]);
        fake.world().run("new", 5);
        assert_eq!(source.one().await, "new running 5");
        fake.world().containers.remove(&key("new"));
    }
}

// Fault: agent/src/sources/containerd/client.rs
// - if let Ok(subscribed) = timeout(patience, &mut subscribing).await {
// + if let Ok(subscribed) = timeout(Duration::MAX, &mut subscribing).await {
#[tokio::test]
async fn b83_the_subscription_is_in_force_before_the_list_is_made() {
    let fake = Fake::start();
    let (_source, _) = Source::start(&fake).await;
    let world = fake.world();
    assert_eq!(world.calls("events.v1.Events/Subscribe"), 1);
    assert!(world.calls("events.v1.Events/Publish") >= 1);
}

// Fault: agent/src/sources/containerd/session.rs
// - Hint::Unknown => schedule.want_listing(),
// + Hint::Unknown => {}
#[tokio::test]
async fn b83_garbage_leads_to_another_list() {
    let fake = Fake::start();
    let (mut source, _) = Source::start(&fake).await;
    {
        let mut world = fake.world();
        world.create("demo", &[], "");
        let spec = prost_types::Any { type_url: "x".into(), value: vec![0xff; 100] };
        world.containers.get_mut(&key("demo")).expect("it was created").spec = Some(spec);
        world.task("demo", 2, State::Running);
        world.say_bytes("/tasks/start", vec![0xff; 9]);
    }
    assert_eq!(source.list().await, ["demo running 2"]);
}

// Fault: agent/src/sources/containerd/session.rs
// - Err(_) => before.remove(&reading.key),
// + Err(_) => None,
#[tokio::test]
async fn b83_a_container_whose_shim_hangs_stays_as_it_was_and_holds_up_no_other() {
    let fake = Fake::start();
    fake.world().run("hung", 2);
    let (mut source, _) = Source::start(&fake).await;
    fake.world().hung.insert(key("hung"));
    fake.world().say_bytes("/tasks/start", vec![0xff]);
    assert_eq!(source.list().await, ["hung running 2"]);
    fake.world().run("other", 3);
    assert_eq!(source.one().await, "other running 3");
    // It is tried again without another event.
    {
        let mut world = fake.world();
        world.task("hung", 2, State::Stopped);
        world.hung.clear();
    }
    assert_eq!(source.one().await, "hung stopped");
}

// Fault: agent/src/sources/containerd/read.rs
// - flaws.push(Flaw::Task(problem));
// - Ok(ContainerState::Stopped)
// + Err(ReadProblem::Task(problem))
#[tokio::test]
async fn b18_a_process_in_another_cgroup_is_nobodys_task() {
    let fake = Fake::start();
    fake.world().run("demo", STRANGER);
    let (_source, list) = Source::start(&fake).await;
    assert_eq!(list, ["demo stopped"]);
}

#[tokio::test]
async fn a_paused_container_runs() {
    let fake = Fake::start();
    fake.world().create("demo", &[], "");
    fake.world().task("demo", 2, State::Paused);
    let (_source, list) = Source::start(&fake).await;
    assert_eq!(list, ["demo running 2"]);
}

// Fault: agent/src/sources/containerd/schedule.rs
// - Some(id) => self.0.retain(|earlier| container(earlier) != Some(&id)),
// + Some(_) => {}
#[tokio::test]
async fn whoever_is_slow_to_take_events_gets_the_last_word_on_each_container() {
    let fake = Fake::start();
    fake.world().create("demo", &[], "");
    let (mut source, _) = Source::start(&fake).await;
    // The channel holds one event: a thousand lives come by while nobody takes any.
    for pid in 1..=1000 {
        let before = fake.world().calls("tasks.v1.Tasks/Get");
        fake.world().task("demo", pid, State::Running);
        fake.world().say_started("demo", pid);
        while fake.world().calls("tasks.v1.Tasks/Get") == before {
            tokio::task::yield_now().await;
        }
    }
    let mut told = 0;
    while source.one().await != "demo running 1000" {
        told += 1;
    }
    assert!(told <= 3, "{told} events were told before the last one");
}

// Fault: agent/src/sources/containerd/session.rs
// - Hint::Container(key) if config.tells_of(&key.namespace) => schedule.hint(key),
// + Hint::Container(key) if !key.namespace.is_empty() => schedule.hint(key),
#[tokio::test]
async fn other_namespaces_are_not_told_of() {
    let fake = Fake::start();
    let elsewhere = Key { namespace: "elsewhere".into(), id: "x".into() };
    fake.world().run("demo", 2);
    let container = Container { id: "x".into(), ..Container::default() };
    fake.world().containers.insert(elsewhere, container);
    let (mut all, list) = Source::start(&fake).await;
    assert_eq!(list, ["demo running 2", "x stopped"]);
    let (mut some, list) = Source::start_with(&fake, |config| config.namespaces = vec!["default".into()]).await;
    assert_eq!(list, ["demo running 2"]);

    let key = Key { namespace: "elsewhere".into(), id: "y".into() };
    fake.world().containers.insert(key, Container { id: "y".into(), ..Container::default() });
    let created = ContainerCreate { id: "y".into(), ..ContainerCreate::default() };
    fake.world().say_in("elsewhere", "/containers/create", created.encode_to_vec());
    assert_eq!(all.one().await, "y stopped");
    fake.world().run("last", 4);
    assert_eq!(some.one().await, "last running 4");
}

#[tokio::test]
async fn it_ends_when_it_is_told_to_or_nobody_listens() {
    let fake = Fake::start();
    let (mut source, _) = Source::start(&fake).await;
    source.events.close();
    timeout(PATIENCE, &mut source.task).await.expect("it ends").expect("it does not panic");

    let (events, _receiver) = mpsc::channel(1);
    let config = ContainerdConfig { socket: "/nonexistent".into(), ..ContainerdConfig::default() };
    timeout(PATIENCE, super::run(config, events, future::ready(()))).await.expect("it ends");
}

const WISH: &str = "devgate.dev/classes";

/// Creates a container with a wish, from an image that leads to these blobs; returns what is known of the image's labels.
async fn labels_from(blobs: &[(&str, &str)]) -> Option<Vec<String>> {
    let fake = Fake::start();
    let (mut source, _) = Source::start(&fake).await;
    {
        let mut world = fake.world();
        for (digest, text) in blobs {
            world.blob(digest, text);
        }
        world.tag("image", "target");
        world.create("demo", &[(WISH, "scanner")], "image");
        world.say_created("demo");
    }
    source.image_labels().await.map(|labels| labels.into_keys().collect())
}

const MANIFEST: (&str, &str) = ("target", r#"{"config": {"digest": "config"}}"#);
const LABELLED: (&str, &str) = ("config", r#"{"config": {"Labels": {"devgate.dev/classes": "scanner", "x": "y"}}}"#);
const PLAIN: (&str, &str) = ("config", r#"{"config": {}}"#);

#[tokio::test]
async fn the_labels_of_an_image_are_read_from_its_configuration() {
    assert_eq!(labels_from(&[MANIFEST, LABELLED]).await, Some(vec![WISH.to_owned()]));
    assert_eq!(labels_from(&[MANIFEST, PLAIN]).await, Some(vec![]));
}

#[tokio::test]
async fn an_index_may_lack_what_was_not_asked_for() {
    let index = r#"{"manifests": [{"digest": "absent"}, {"digest": "manifest"}]}"#;
    let manifest = ("manifest", MANIFEST.1);
    assert_eq!(labels_from(&[("target", index), manifest, LABELLED]).await, Some(vec![WISH.to_owned()]));
    assert_eq!(labels_from(&[("target", index), manifest, PLAIN]).await, Some(vec![]));
    assert_eq!(labels_from(&[("target", index)]).await, None);
    let inline = r#"{"manifests": [{"digest": "absent", "data": "e30="}, {"digest": "manifest"}]}"#;
    assert_eq!(labels_from(&[("target", inline), manifest, PLAIN]).await, None);
}

#[tokio::test]
async fn an_image_that_cannot_be_read_has_unknown_labels() {
    let large = format!(r#"{{"config": {{}}, "x": "{}"}}"#, "x".repeat(1 << 20));
    let circle = ("target", r#"{"manifests": [{"digest": "target"}]}"#);
    let many: Vec<_> = (0..100).map(|i| format!(r#"{{"digest": "{i}"}}"#)).collect();
    let many = format!(r#"{{"manifests": [{}]}}"#, many.join(","));
    for blobs in [
        &[][..],
        &[MANIFEST],
        &[("target", "nonsense")],
        &[MANIFEST, ("config", "nonsense")],
        &[MANIFEST, ("config", &large)],
        &[circle],
        &[("target", &many)],
    ] {
        assert_eq!(labels_from(blobs).await, None);
    }
}

// Fault: agent/src/sources/containerd/image.rs
// - if record.updated > created {
// + if record.updated < created {
#[tokio::test]
async fn the_name_of_an_image_that_was_written_later_says_nothing() {
    let fake = Fake::start();
    let (mut source, _) = Source::start(&fake).await;
    {
        let mut world = fake.world();
        world.create("demo", &[(WISH, "scanner")], "image");
        world.blob(MANIFEST.0, MANIFEST.1);
        world.blob(PLAIN.0, PLAIN.1);
        world.tag("image", "target");
        world.say_created("demo");
    }
    assert_eq!(source.image_labels().await, None);
}

#[tokio::test]
async fn what_is_known_of_an_image_stays_known() {
    let fake = Fake::start();
    let (mut source, _) = Source::start(&fake).await;
    {
        let mut world = fake.world();
        world.blob(MANIFEST.0, MANIFEST.1);
        world.blob(LABELLED.0, LABELLED.1);
        world.tag("image", "target");
        world.create("demo", &[(WISH, "scanner")], "image");
        world.say_created("demo");
    }
    let labels = source.image_labels().await;
    assert!(labels.as_ref().is_some_and(|labels| labels.contains_key(WISH)), "{labels:?}");
    {
        let mut world = fake.world();
        world.images.clear();
        world.blobs.clear();
        world.task("demo", 2, State::Running);
        world.say_started("demo", 2);
    }
    assert_eq!(source.image_labels().await, labels);
    // Another container of the same name is another matter.
    {
        let mut world = fake.world();
        world.create("demo", &[(WISH, "scanner")], "image");
        world.say_created("demo");
    }
    assert_eq!(source.image_labels().await, None);
}

#[tokio::test]
async fn an_image_matters_only_where_there_is_a_wish() {
    let fake = Fake::start();
    let (mut source, _) = Source::start(&fake).await;
    {
        let mut world = fake.world();
        world.create("demo", &[("other", "label")], "image");
        world.say_created("demo");
    }
    assert_eq!(source.image_labels().await, None);
    {
        let mut world = fake.world();
        world.create("imageless", &[(&format!("{LABEL_PREFIX}x"), "")], "");
        world.say_created("imageless");
    }
    assert_eq!(source.image_labels().await, Some(Labels::new()));
    assert_eq!(fake.world().calls("images.v1.Images/Get"), 0);
    assert_eq!(runtime_id(key("demo")).to_string(), "containerd/default/demo");
}
