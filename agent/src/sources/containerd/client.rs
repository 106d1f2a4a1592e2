//! Questions to containerd, each with a deadline.

use std::path::Path;
use std::pin::pin;
use std::time::Duration;

use containerd_client::services::v1::{
    GetContainerRequest, GetImageRequest, GetRequest, ListContainersRequest, ListNamespacesRequest, ListTasksRequest,
    PublishRequest, ReadContentRequest, SubscribeRequest, containers_client::ContainersClient,
    content_client::ContentClient, events_client::EventsClient, images_client::ImagesClient,
    namespaces_client::NamespacesClient, tasks_client::TasksClient,
};
use containerd_client::types::Envelope;
use containerd_client::types::v1::Process;
use tokio::time::timeout;
use tonic::metadata::AsciiMetadataValue;
use tonic::transport::{self, Channel};
use tonic::{Code, Request, Status, Streaming};

use super::hint::{self, GREETING};
use super::record::{ImageRecord, Record};

/// The namespace of the greeting, where no container is.
const GREETING_NAMESPACE: &str = "devgate";

/// In bytes. A container's record holds its whole OCI configuration.
const MESSAGE_LIMIT: usize = 16 << 20;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum CallError {
    #[error("cannot connect")]
    Connect(#[source] transport::Error),
    #[error("{0}: no answer within {1:?}")]
    Deadline(&'static str, Duration),
    #[error("{0}")]
    Refused(&'static str, #[source] Box<Status>),
    #[error("{0:?} cannot be a namespace")]
    Namespace(String),
}

/// A connection to containerd.
#[derive(Clone, Debug)]
pub(super) struct Client {
    channel: Channel,
    deadline: Duration,
}

impl Client {
    pub(super) async fn connect(socket: &Path, deadline: Duration) -> Result<Self, CallError> {
        let connecting = timeout(deadline, containerd_client::connect(socket)).await;
        let channel = connecting.map_err(|_| CallError::Deadline("connect", deadline))?.map_err(CallError::Connect)?;
        Ok(Self { channel, deadline })
    }

    /// Subscribes to what is listened to, and comes back when that is in force.
    ///
    /// containerd says nothing before the first event that passes the filters. So one is published for ourselves, again
    /// and again until one comes: then whatever happens from now on is heard.
    pub(super) async fn subscribe(&self) -> Result<Streaming<Envelope>, CallError> {
        let mut subscriber = EventsClient::new(self.channel.clone());
        let mut subscribing = pin!(subscriber.subscribe(SubscribeRequest { filters: hint::filters() }));
        let mut publisher = EventsClient::new(self.channel.clone());
        let greeting = PublishRequest {
            topic: GREETING.to_owned(),
            event: Some(prost_types::Any { type_url: "google.protobuf.Empty".to_owned(), value: Vec::new() }),
        };
        let greet = async {
            let mut patience = Duration::from_millis(1);
            loop {
                if let Ok(subscribed) = timeout(patience, &mut subscribing).await {
                    return subscribed.map_err(refused("subscribe to events"));
                }
                let request = in_namespace(GREETING_NAMESPACE, greeting.clone())?;
                publisher.publish(request).await.map_err(refused("publish an event"))?;
                patience = (patience * 2).min(Duration::from_secs(1));
            }
        };
        Ok(self.within("subscribe to events", greet).await?.into_inner())
    }

    /// The namespaces that there are.
    pub(super) async fn namespaces(&self) -> Result<Vec<String>, CallError> {
        const CALL: &str = "list namespaces";
        let mut client = NamespacesClient::new(self.channel.clone());
        let ask = async { client.list(ListNamespacesRequest::default()).await.map_err(refused(CALL)) };
        let answer = self.within(CALL, ask).await?.into_inner();
        Ok(answer.namespaces.into_iter().map(|namespace| namespace.name).collect())
    }

    /// The containers of a namespace. They come one by one, since a record may be large.
    pub(super) async fn containers(&self, namespace: &str) -> Result<Vec<Record>, CallError> {
        const CALL: &str = "list containers";
        let mut client = ContainersClient::new(self.channel.clone()).max_decoding_message_size(MESSAGE_LIMIT);
        let ask = async {
            let request = in_namespace(namespace, ListContainersRequest::default())?;
            let mut stream = client.list_stream(request).await.map_err(refused(CALL))?.into_inner();
            let mut records = Vec::new();
            while let Some(message) = stream.message().await.map_err(refused(CALL))? {
                records.extend(message.container.map(Record::from));
            }
            Ok(records)
        };
        self.within(CALL, ask).await
    }

    /// One container; `None` if it is not there.
    pub(super) async fn container(&self, namespace: &str, id: &str) -> Result<Option<Record>, CallError> {
        const CALL: &str = "get a container";
        let mut client = ContainersClient::new(self.channel.clone()).max_decoding_message_size(MESSAGE_LIMIT);
        let ask = async {
            let request = in_namespace(namespace, GetContainerRequest { id: id.to_owned() })?;
            found(CALL, client.get(request).await)
        };
        Ok(self.within(CALL, ask).await?.and_then(|answer| answer.container).map(Record::from))
    }

    /// The tasks of a namespace. One whose shim does not answer is left out by containerd.
    pub(super) async fn tasks(&self, namespace: &str) -> Result<Vec<Process>, CallError> {
        const CALL: &str = "list tasks";
        let mut client = TasksClient::new(self.channel.clone()).max_decoding_message_size(MESSAGE_LIMIT);
        let ask = async {
            let request = in_namespace(namespace, ListTasksRequest::default())?;
            client.list(request).await.map_err(refused(CALL))
        };
        Ok(self.within(CALL, ask).await?.into_inner().tasks)
    }

    /// The task of a container; `None` if it has none.
    pub(super) async fn task(&self, namespace: &str, container: &str) -> Result<Option<Process>, CallError> {
        const CALL: &str = "get a task";
        let mut client = TasksClient::new(self.channel.clone());
        let ask = async {
            let request = GetRequest { container_id: container.to_owned(), exec_id: String::new() };
            found(CALL, client.get(in_namespace(namespace, request)?).await)
        };
        Ok(self.within(CALL, ask).await?.and_then(|answer| answer.process))
    }

    /// What the name of an image points at; `None` if there is no such name.
    pub(super) async fn image(&self, namespace: &str, name: &str) -> Result<Option<ImageRecord>, CallError> {
        const CALL: &str = "get an image";
        let mut client = ImagesClient::new(self.channel.clone());
        let ask = async {
            let request = in_namespace(namespace, GetImageRequest { name: name.to_owned() })?;
            found(CALL, client.get(request).await)
        };
        Ok(self.within(CALL, ask).await?.and_then(|answer| answer.image).map(ImageRecord::from))
    }

    /// Content by its digest; `None` if it is not there. Of content that is larger than `limit` bytes only the beginning
    /// comes, and more than `limit` of it.
    pub(super) async fn blob(&self, namespace: &str, digest: &str, limit: usize) -> Result<Option<Vec<u8>>, CallError> {
        const CALL: &str = "read content";
        let mut client = ContentClient::new(self.channel.clone());
        let ask = async {
            let request = ReadContentRequest { digest: digest.to_owned(), offset: 0, size: 0 };
            let Some(mut stream) = found(CALL, client.read(in_namespace(namespace, request)?).await)? else {
                return Ok(None);
            };
            let mut bytes = Vec::new();
            while bytes.len() <= limit {
                match stream.message().await {
                    Ok(Some(part)) => bytes.extend(part.data),
                    Ok(None) => break,
                    // That there is no such content is said either at once or in place of the first part.
                    Err(status) if status.code() == Code::NotFound => return Ok(None),
                    Err(status) => return Err(refused(CALL)(status)),
                }
            }
            Ok(Some(bytes))
        };
        self.within(CALL, ask).await
    }

    async fn within<T>(
        &self,
        call: &'static str,
        ask: impl Future<Output = Result<T, CallError>>,
    ) -> Result<T, CallError> {
        timeout(self.deadline, ask).await.map_err(|_| CallError::Deadline(call, self.deadline))?
    }
}

fn in_namespace<T>(namespace: &str, message: T) -> Result<Request<T>, CallError> {
    let value = AsciiMetadataValue::try_from(namespace).map_err(|_| CallError::Namespace(namespace.to_owned()))?;
    let mut request = Request::new(message);
    request.metadata_mut().insert("containerd-namespace", value);
    Ok(request)
}

fn refused(call: &'static str) -> impl Fn(Status) -> CallError {
    move |status| CallError::Refused(call, Box::new(status))
}

fn found<T>(call: &'static str, answer: Result<tonic::Response<T>, Status>) -> Result<Option<T>, CallError> {
    match answer {
        Ok(answer) => Ok(Some(answer.into_inner())),
        Err(status) if status.code() == Code::NotFound => Ok(None),
        Err(status) => Err(refused(call)(status)),
    }
}
