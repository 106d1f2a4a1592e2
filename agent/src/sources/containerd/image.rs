//! The labels that an image carries in its own configuration.
//!
//! containerd's clients copy these into the labels of the container. They are the word of the image's author, who must
//! not be able to ask for devices, so they are read from the image itself to be told from those that whoever started the
//! container gave it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use devgate_core::Labels;

use super::client::{CallError, Client};
use super::hint::Key;
use super::json::Json;
use super::record::Moment;

/// How all labels begin that mean something to us. Of others it does not matter where they come from.
pub(super) const LABEL_PREFIX: &str = "devgate.dev/";

/// More than any manifest or configuration has in practice, in bytes.
const BLOB_LIMIT: usize = 1 << 20;

/// How many manifests and indexes are read for one image at most.
const DOCUMENT_LIMIT: usize = 64;

/// How many of our labels an image may carry.
const LABEL_LIMIT: usize = 64;

/// How many images are remembered.
const CACHE_LIMIT: usize = 256;

/// Why the labels of an image are not known. The labels of its containers then do not count.
#[derive(Debug, thiserror::Error)]
pub(super) enum ImageProblem {
    #[error("the image {0:?} is not there any more")]
    Gone(String),
    /// The name may have meant another image when the container was created.
    #[error("the image {0:?} was replaced after the container was created from it; create the container anew")]
    Replaced(String),
    #[error("cannot ask for the image {image:?}")]
    Call { image: String, source: CallError },
    #[error("cannot read {digest} of the image {image:?}")]
    Blob { image: String, digest: String, source: BlobProblem },
    #[error("the image {0:?} has more than {DOCUMENT_LIMIT} manifests")]
    TooMany(String),
    #[error("the image {0:?} has no configuration that can be read")]
    Empty(String),
}

/// What is wrong with a part of an image.
#[derive(Debug, thiserror::Error)]
pub(super) enum BlobProblem {
    #[error("it is not there")]
    Missing,
    #[error("it is larger than {BLOB_LIMIT} bytes")]
    TooLarge,
    #[error("it is no JSON")]
    Json(#[from] serde_json::Error),
    #[error("it is not as it should be: {0}")]
    Shape(&'static str),
    #[error("it was not answered")]
    Call(#[from] CallError),
}

impl ImageProblem {
    /// Whether it may be gone at the next try, while nothing has happened to the container.
    pub(super) fn may_pass(&self) -> bool {
        matches!(self, Self::Call { .. } | Self::Blob { source: BlobProblem::Call(_), .. })
    }
}

/// Images that have been read, by the digest of what their names point at: what a digest names never changes.
#[derive(Debug, Default)]
pub(super) struct ImageCache(Mutex<BTreeMap<String, Arc<Labels>>>);

impl ImageCache {
    fn get(&self, digest: &str) -> Option<Arc<Labels>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(digest).cloned()
    }

    fn insert(&self, digest: String, labels: Arc<Labels>) {
        let mut images = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if images.len() >= CACHE_LIMIT {
            images.clear();
        }
        images.insert(digest, labels);
    }
}

/// Those of our labels that the image carries from which `container` was made at the time `created`.
///
/// A name is all that containerd keeps of the image, and names can be pointed elsewhere. So one that was written after
/// the container was created says nothing of it.
pub(super) async fn labels(
    client: &Client,
    cache: &ImageCache,
    container: &Key,
    image: &str,
    created: Moment,
) -> Result<Arc<Labels>, ImageProblem> {
    // Made from a directory: there is no image whose labels could be among the container's.
    if image.is_empty() {
        return Ok(Arc::default());
    }
    let name = || image.to_owned();
    let record = client
        .image(&container.namespace, image)
        .await
        .map_err(|source| ImageProblem::Call { image: name(), source })?
        .ok_or_else(|| ImageProblem::Gone(name()))?;
    if record.updated > created {
        return Err(ImageProblem::Replaced(name()));
    }
    if let Some(labels) = cache.get(&record.digest) {
        return Ok(labels);
    }
    let labels = Arc::new(read(client, &container.namespace, image, &record.digest).await?);
    cache.insert(record.digest, Arc::clone(&labels));
    Ok(labels)
}

/// Reads all configurations that the digest leads to and that are on this machine: which of them a container was made
/// from depends on the platform that was asked for, so a label of any counts.
async fn read(client: &Client, namespace: &str, image: &str, target: &str) -> Result<Labels, ImageProblem> {
    let mut labels = Labels::new();
    let mut configurations = 0;
    let mut seen = BTreeSet::from([target.to_owned()]);
    let mut open = vec![Descriptor { digest: target.to_owned(), optional: false }];
    while let Some(Descriptor { digest, optional }) = open.pop() {
        let problem = |source| ImageProblem::Blob { image: image.to_owned(), digest: digest.clone(), source };
        let Some(bytes) = blob(client, namespace, &digest).await.map_err(problem)? else {
            // Of an index for many platforms only what was asked for has been fetched.
            if optional {
                continue;
            }
            return Err(problem(BlobProblem::Missing));
        };
        let document = Document::parse(&bytes).map_err(problem)?;
        open.extend(document.manifests.into_iter().filter(|manifest| seen.insert(manifest.digest.clone())));
        if seen.len() > DOCUMENT_LIMIT {
            return Err(ImageProblem::TooMany(image.to_owned()));
        }
        for digest in document.configurations {
            let problem = |source| ImageProblem::Blob { image: image.to_owned(), digest: digest.clone(), source };
            let bytes = blob(client, namespace, &digest).await.map_err(problem)?;
            let bytes = bytes.ok_or(BlobProblem::Missing).map_err(problem)?;
            labels.extend(labels_of(&bytes).map_err(problem)?);
            configurations += 1;
        }
    }
    if configurations == 0 { Err(ImageProblem::Empty(image.to_owned())) } else { Ok(labels) }
}

async fn blob(client: &Client, namespace: &str, digest: &str) -> Result<Option<Vec<u8>>, BlobProblem> {
    match client.blob(namespace, digest, BLOB_LIMIT).await? {
        Some(bytes) if bytes.len() > BLOB_LIMIT => Err(BlobProblem::TooLarge),
        bytes => Ok(bytes),
    }
}

/// An index or a manifest. One that could be both is taken as both, so that it hides nothing.
#[derive(Debug, PartialEq, Eq)]
struct Document {
    manifests: Vec<Descriptor>,
    configurations: Vec<String>,
}

#[derive(Debug, PartialEq, Eq)]
struct Descriptor {
    digest: String,
    /// Whether it may be absent: not if its content stands in the descriptor itself, where newer clients read it.
    optional: bool,
}

impl Document {
    fn parse(bytes: &[u8]) -> Result<Self, BlobProblem> {
        let json = Json::parse(bytes)?;
        let mut manifests = Vec::new();
        for list in json.all("manifests") {
            let Json::List(list) = list else { return Err(BlobProblem::Shape("`manifests` is no list")) };
            for descriptor in list {
                let inline = descriptor.all("data").next().is_some();
                manifests.extend(digests(descriptor)?.map(|digest| Descriptor { digest, optional: !inline }));
            }
        }
        let mut configurations = Vec::new();
        for descriptor in json.all("config") {
            configurations.extend(digests(descriptor)?);
        }
        Ok(Self { manifests, configurations })
    }
}

fn digests(descriptor: &Json) -> Result<impl Iterator<Item = String>, BlobProblem> {
    let texts: Option<Vec<String>> = descriptor.all("digest").map(|digest| Some(digest.text()?.to_owned())).collect();
    match texts {
        Some(texts) if !texts.is_empty() => Ok(texts.into_iter()),
        _ => Err(BlobProblem::Shape("a descriptor has no digest")),
    }
}

/// Our labels in an image's configuration.
fn labels_of(configuration: &[u8]) -> Result<Labels, BlobProblem> {
    let json = Json::parse(configuration)?;
    let mut labels = Labels::new();
    for object in json.all("config").flat_map(|config| config.all("labels")) {
        let Json::Object(members) = object else { return Err(BlobProblem::Shape("`Labels` is no object")) };
        for (key, value) in members.iter().filter(|(key, _)| key.starts_with(LABEL_PREFIX)) {
            labels.insert(key.clone(), value.text().unwrap_or_default().to_owned());
        }
    }
    if labels.len() > LABEL_LIMIT {
        return Err(BlobProblem::Shape("it has too many labels"));
    }
    Ok(labels)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(configuration: &str) -> Vec<String> {
        labels_of(configuration.as_bytes()).expect("it can be read").into_keys().collect()
    }

    #[test]
    fn labels_are_found_however_they_are_written() {
        assert_eq!(keys(r#"{"config": {"Labels": {"devgate.dev/classes": "a", "x": "y"}}}"#), ["devgate.dev/classes"]);
        assert_eq!(keys(r#"{"CONFIG": {"label\u017f": {"devgate.dev\/classes": "a"}}}"#), ["devgate.dev/classes"]);
        let twice = r#"{"config": {"Labels": {"devgate.dev/a": ""}}, "Config": {"Labels": {"devgate.dev/b": ""}}}"#;
        assert_eq!(keys(twice), ["devgate.dev/a", "devgate.dev/b"]);
        for none in
            [r"{}", r#"{"config": null}"#, r#"{"config": {"Labels": null}}"#, r#"{"Labels": {"devgate.dev/a": ""}}"#]
        {
            assert_eq!(keys(none), [""; 0], "{none}");
        }
    }

    #[test]
    fn a_document_that_could_be_both_hides_nothing() {
        let both = br#"{"manifests": [{"digest": "sha256:1"}, {"digest": "sha256:2", "data": "e30="}],
            "Config": {"digest": "sha256:3", "Digest": "sha256:4"}}"#;
        let document = Document::parse(both).expect("it can be read");
        assert_eq!(document.configurations, ["sha256:3", "sha256:4"]);
        let manifests: Vec<_> = document.manifests.iter().map(|it| (it.digest.as_str(), it.optional)).collect();
        assert_eq!(manifests, [("sha256:1", true), ("sha256:2", false)]);
    }

    #[test]
    fn what_is_not_as_it_should_be_is_refused() {
        for text in [r#"{"manifests": {}}"#, r#"{"config": {}}"#, r#"{"manifests": [{"digest": 1}]}"#, "nonsense"] {
            Document::parse(text.as_bytes()).expect_err(text);
        }
        labels_of(br#"{"config": {"Labels": []}}"#).expect_err("no labels");
        let many: Vec<_> = (0..=LABEL_LIMIT).map(|i| format!("\"devgate.dev/{i}\": \"\"")).collect();
        let many = format!(r#"{{"config": {{"Labels": {{{}}}}}}}"#, many.join(","));
        labels_of(many.as_bytes()).expect_err("too many");
    }
}
