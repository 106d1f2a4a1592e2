//! What is asked of the executor, and what became of it.

use std::fmt;

use devgate_abi::DeviceNumber;
use serde::{Deserialize, Serialize};

use super::number;
use super::refusal::Refusal;

/// One step in a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// Make a node appear. Asking for what is already there changes nothing.
    Place(Place),
    /// Make a node of ours vanish. Asking for what is already gone changes nothing.
    Remove {
        /// Where it was placed; the empty file under the mount is deleted there.
        path: DevPath,
        /// Its mount, as [`Outcome`] or [`PlacedNode`] told. A mount that is not ours is never touched.
        mount_id: u64,
    },
}

/// A node to place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// Where the container sees it. Missing directories are made, and stay after the removal.
    pub path: DevPath,
    /// The device it opens.
    #[serde(with = "number")]
    pub number: DeviceNumber,
    /// Permission bits, set exactly.
    pub mode: u32,
    /// Owner, as the container numbers users.
    pub uid: u32,
    /// Group, as the container numbers groups.
    pub gid: u32,
    /// Whose node this is. A node with another tag is replaced even if all else is equal, so a device that was plugged again
    /// under the same number gets a fresh inode: the old one may lead to the dead device.
    pub tag: NodeTag,
    /// `SELinux` label of the node, for example `system_u:object_r:container_file_t:s0:c1,c2`.
    pub label: Option<String>,
}

/// What became of one [`Change`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// The node is there now.
    Placed {
        /// Names the mount until it is unmounted; the kernel uses the number again later.
        mount_id: u64,
    },
    /// The very node had been placed before.
    AlreadyThere {
        /// As in `Placed`.
        mount_id: u64,
    },
    /// Another node of ours stood at the path and has been replaced.
    Replaced {
        /// As in `Placed`.
        mount_id: u64,
    },
    /// The runtime, the container itself, or the host whose `/dev` it has, has made a node of that number at the path. It
    /// is not ours and stays.
    NotOurs,
    /// The node is gone and, if its file was still as we made it, the path too.
    Removed,
    /// No mount of ours had that id: the container had unmounted it, or it had been removed before.
    Gone,
    /// The change was not carried out.
    Refused(Refusal),
}

/// A node of ours that was found in a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacedNode {
    /// Where its mount stands now; the container may have moved it, even out of `/dev`.
    pub path: String,
    /// Names the mount in [`Change::Remove`].
    pub mount_id: u64,
    /// As [`Place::tag`].
    pub tag: NodeTag,
    /// The node itself; `None` if the container has mounted something over it.
    pub node: Option<NodeFacts>,
}

/// What `stat` says about a node, in the container's ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeFacts {
    /// The device it opens.
    #[serde(with = "number")]
    pub number: DeviceNumber,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

/// A path or tag that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidName {
    /// The path does not name something below `/dev`.
    #[error("{0:?} is not a plain path below /dev")]
    Path(String),
    /// The tag would not survive as a file name.
    #[error("{0:?} is not a tag: 1 to 200 of A-Z a-z 0-9 . _ - + and not starting with a dot")]
    Tag(String),
}

/// A path below `/dev` without `.`, `..`, empty or overlong components.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct DevPath(String);

impl DevPath {
    /// The whole path.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The directories between `/dev` and the node, outermost first, and the node's name.
    pub fn split(&self) -> (Vec<&str>, &str) {
        let mut components: Vec<&str> = self.0["/dev/".len()..].split('/').collect();
        let name = components.pop().unwrap_or_default();
        (components, name)
    }
}

impl TryFrom<String> for DevPath {
    type Error = InvalidName;

    fn try_from(path: String) -> Result<Self, InvalidName> {
        let plain = |component: &str| {
            !matches!(component, "" | "." | "..") && component.len() <= 255 && !component.contains('\0')
        };
        match path.strip_prefix("/dev/") {
            Some(rest) if path.len() < 4096 && rest.split('/').all(plain) => Ok(Self(path)),
            _ => Err(InvalidName::Path(path)),
        }
    }
}

impl From<DevPath> for String {
    fn from(path: DevPath) -> Self {
        path.0
    }
}

impl fmt::Display for DevPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Says for whom and for which plugging of a device a node was placed. Visible to the container.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NodeTag(String);

impl NodeTag {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for NodeTag {
    type Error = InvalidName;

    fn try_from(tag: String) -> Result<Self, InvalidName> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-+".contains(&byte);
        if (1..=200).contains(&tag.len()) && tag.bytes().all(plain) && !tag.starts_with('.') {
            Ok(Self(tag))
        } else {
            Err(InvalidName::Tag(tag))
        }
    }
}

impl From<NodeTag> for String {
    fn from(tag: NodeTag) -> Self {
        tag.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_stays_below_dev() {
        for bad in
            ["", "/dev", "/dev/", "/dev//x", "/dev/./x", "/dev/../x", "/dev/x/..", "/etc/x", "dev/x", "/dev/a\0b"]
        {
            assert_eq!(DevPath::try_from(bad.to_owned()), Err(InvalidName::Path(bad.to_owned())));
        }
        let path = DevPath::try_from("/dev/bus/usb/004".to_owned()).expect("a plain path");
        assert_eq!(path.split(), (vec!["bus", "usb"], "004"));
    }

    #[test]
    fn a_tag_is_one_plain_file_name() {
        for bad in ["", ".", "..", ".x", "a/b", "a b", "a\n", &"x".repeat(201)] {
            assert!(NodeTag::try_from(bad.to_owned()).is_err(), "{bad:?} was taken");
        }
        assert!(NodeTag::try_from("usb-0c2e-0901-9f3a+2".to_owned()).is_ok());
    }
}
