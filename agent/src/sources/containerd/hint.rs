//! What an event of containerd points at.

use containerd_client::events::{
    ContainerCreate, ContainerDelete, ContainerUpdate, TaskCreate, TaskDelete, TaskExit, TaskStart,
};
use containerd_client::types::Envelope;
use prost::Message;

/// The topic of the events by which the source finds out that it is heard.
pub(super) const GREETING: &str = "/devgate/listening";

/// The topics that are listened to. An exec'd process has others for its start, and shares those for its end.
const TOPICS: [&str; 8] = [
    GREETING,
    "/tasks/create",
    "/tasks/start",
    "/tasks/exit",
    "/tasks/delete",
    "/containers/create",
    "/containers/update",
    "/containers/delete",
];

/// A container, by namespace and id.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) namespace: String,
    pub(super) id: String,
}

/// What follows from an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Hint {
    /// This container is to be read again.
    Container(Key),
    /// The same; it has a first process now, of this number.
    Created(Key, u32),
    /// Something has happened, and nobody knows where: everything is to be read again.
    Unknown,
    /// Nothing.
    Nothing,
}

/// The filters of the subscription: an event passes if one of them holds.
pub(super) fn filters() -> Vec<String> {
    TOPICS.iter().map(|topic| format!("topic==\"{topic}\"")).collect()
}

/// Takes an event apart. What it says of the container is not looked at, only which one it is, and where a first process
/// is to be looked for: while it is being started, containerd answers no question about it for ten milliseconds.
pub(super) fn read(event: &Envelope) -> Hint {
    let bytes = event.event.as_ref().map(|event| event.value.as_slice()).unwrap_or_default();
    let mut created = None;
    let id = match event.topic.as_str() {
        "/tasks/create" => TaskCreate::decode(bytes).map(|it| {
            created = (it.pid != 0).then_some(it.pid);
            it.container_id
        }),
        "/tasks/start" => TaskStart::decode(bytes).map(|it| it.container_id),
        "/tasks/exit" => match TaskExit::decode(bytes) {
            Ok(exit) if exit.id != exit.container_id => return Hint::Nothing,
            exit => exit.map(|it| it.container_id),
        },
        "/tasks/delete" => match TaskDelete::decode(bytes) {
            // Of the first process containerd leaves the id out, or says the container's, depending on its version.
            Ok(delete) if !delete.id.is_empty() && delete.id != delete.container_id => return Hint::Nothing,
            delete => delete.map(|it| it.container_id),
        },
        "/containers/create" => ContainerCreate::decode(bytes).map(|it| it.id),
        "/containers/update" => ContainerUpdate::decode(bytes).map(|it| it.id),
        "/containers/delete" => ContainerDelete::decode(bytes).map(|it| it.id),
        _ => return Hint::Nothing,
    };
    match id {
        Ok(id) if !id.is_empty() && !event.namespace.is_empty() => {
            let key = Key { namespace: event.namespace.clone(), id };
            created.map_or_else(|| Hint::Container(key.clone()), |pid| Hint::Created(key.clone(), pid))
        }
        _ => Hint::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(topic: &str, value: Vec<u8>) -> Envelope {
        let event = Some(prost_types::Any { type_url: String::new(), value });
        Envelope { timestamp: None, namespace: "default".into(), topic: topic.into(), event }
    }

    fn exit(container: &str, id: &str) -> Envelope {
        let exit = TaskExit { container_id: container.into(), id: id.into(), pid: 7, ..TaskExit::default() };
        event("/tasks/exit", exit.encode_to_vec())
    }

    fn demo() -> Hint {
        Hint::Container(Key { namespace: "default".into(), id: "demo".into() })
    }

    #[test]
    fn an_event_points_at_its_container() {
        assert_eq!(read(&exit("demo", "demo")), demo());
        let delete = TaskDelete { container_id: "demo".into(), ..TaskDelete::default() };
        assert_eq!(read(&event("/tasks/delete", delete.encode_to_vec())), demo());
        let create = TaskCreate { container_id: "demo".into(), pid: 7, ..TaskCreate::default() };
        let Hint::Container(key) = demo() else { unreachable!("it points at a container") };
        assert_eq!(read(&event("/tasks/create", create.encode_to_vec())), Hint::Created(key, 7));
        let update = ContainerUpdate { id: "demo".into(), ..ContainerUpdate::default() };
        assert_eq!(read(&event("/containers/update", update.encode_to_vec())), demo());
    }

    // Fault: agent/src/sources/containerd/hint.rs
    // - Ok(exit) if exit.id != exit.container_id => return Hint::Nothing,
    // + Ok(exit) if exit.id.is_empty() => return Hint::Nothing,
    #[test]
    fn the_end_of_an_execd_process_changes_nothing() {
        assert_eq!(read(&exit("demo", "shell")), Hint::Nothing);
    }

    #[test]
    fn garbage_may_mean_anything() {
        assert_eq!(read(&event("/tasks/start", vec![0xff, 0xff])), Hint::Unknown);
        assert_eq!(read(&event("/tasks/start", Vec::new())), Hint::Unknown);
        assert_eq!(read(&event("/images/update", vec![0xff])), Hint::Nothing);
    }
}
