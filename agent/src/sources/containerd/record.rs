//! What containerd keeps of a container and of an image, as far as it matters.

use containerd_client::services::v1::{Container, Image};
use devgate_core::Labels;

use super::json::Json;

/// A point in time on containerd's clock: seconds since 1970 and nanoseconds.
pub(super) type Moment = (i64, i32);

/// A container, without its process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) id: String,
    pub(super) labels: Labels,
    /// The name of its image; empty if it was made without one.
    pub(super) image: String,
    pub(super) created: Moment,
    /// `linux.cgroupsPath` of its OCI configuration, if there is one and it can be read.
    pub(super) cgroups_path: Option<String>,
}

/// What an image's name points at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ImageRecord {
    pub(super) digest: String,
    /// When it was pointed there.
    pub(super) updated: Moment,
}

impl From<Container> for Record {
    fn from(container: Container) -> Self {
        let cgroups_path = container.spec.and_then(|spec| cgroups_path(&spec.value));
        Self {
            id: container.id,
            labels: container.labels.into_iter().collect(),
            image: container.image,
            created: moment(container.created_at),
            cgroups_path,
        }
    }
}

impl From<Image> for ImageRecord {
    fn from(image: Image) -> Self {
        Self {
            digest: image.target.map(|target| target.digest).unwrap_or_default(),
            // An image of which this is not said is never older than a container.
            updated: image.updated_at.map_or((i64::MAX, 0), |time| (time.seconds, time.nanos)),
        }
    }
}

fn moment(time: Option<prost_types::Timestamp>) -> Moment {
    time.map_or((i64::MIN, 0), |time| (time.seconds, time.nanos))
}

fn cgroups_path(spec: &[u8]) -> Option<String> {
    let json = Json::parse(spec).ok()?;
    let path = json.all("linux").flat_map(|linux| linux.all("cgroupspath")).last()?.text()?.to_owned();
    Some(path).filter(|path| !path.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_is_read_if_it_is_there() {
        assert_eq!(cgroups_path(br#"{"linux": {"cgroupsPath": "/a/b"}}"#).as_deref(), Some("/a/b"));
        for spec in ["", "{", "[]", "{}", r#"{"linux": []}"#, r#"{"linux": {"cgroupsPath": 7}}"#] {
            assert_eq!(cgroups_path(spec.as_bytes()), None, "{spec}");
        }
    }
}
