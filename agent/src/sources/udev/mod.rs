//! What is plugged in, from the kernel's and udev's uevents, sysfs and the udev database.
//!
//! Two groups are heard. From the kernel's own only `remove`, `offline` and `move` are taken: nobody else can send there, and
//! nothing is earlier. From udev's group comes the rest, when udev has finished with a device. Any process with
//! `CAP_NET_ADMIN` in the network namespace can send to that group, so all that it carries is a hint: whoever handles it
//! reads the device again ([`UdevReader::reread`]), and a made-up event finds nothing new.
//!
//! Both are heard before devices are listed, and all are listed again when the kernel says that it lost messages. A device
//! counts only when udev has finished with it, and only if what the database says is of the device that is there
//! (see `stays.rs`).
//!
//! **Classes pass through here.** What is read of devices depends on the classes in force, and a class must not come into
//! force before what it asks for was read: a device without the attribute that a class excludes it by would be granted. So
//! the classes are handed on behind a listing of what they ask for. Likewise the first listing comes when the first classes
//! have, so that nothing looks absent at start that was only not asked for yet.

mod device;
mod filter;
mod message;
mod monitor;
mod reader;
mod socket;
mod stays;

use std::io;
use std::path::PathBuf;

pub use filter::subsystem_hash;
pub use monitor::{UdevCounters, UdevSource};
pub use reader::UdevReader;

/// Where devices are found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UdevConfig {
    /// The network namespace where the kernel and udev send uevents: the host's.
    pub net_namespace: PathBuf,
    /// The mount namespace whose `/sys`, `/dev` and `/run/udev` are read; `None` for the agent's own.
    pub mount_namespace: Option<PathBuf>,
    /// Bytes of messages that may wait in each of the two sockets. The kernel takes twice as much for its own needs.
    pub receive_buffer: usize,
    /// Whether a device must be in the udev database.
    pub database: Database,
}

impl Default for UdevConfig {
    fn default() -> Self {
        Self {
            net_namespace: "/proc/1/ns/net".into(),
            mount_namespace: None,
            receive_buffer: 8 << 20,
            database: Database::default(),
        }
    }
}

/// Whether a device must be in the udev database.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Database {
    /// A device counts when udev has finished with it.
    #[default]
    Required,
    /// There is no udev on the machine: devices have no properties but the kernel's, and count as soon as the kernel tells
    /// of them.
    None,
}

/// Why devices cannot be found.
#[derive(Debug, thiserror::Error)]
pub enum UdevError {
    /// The uevents cannot be heard.
    #[error(
        "cannot hear uevents in the network namespace {}; it must be the host's (in Kubernetes: hostPID, or hostNetwork \
         and /proc/self/ns/net), see `udev.netNamespace`",
        path.display()
    )]
    NetNamespace {
        /// The namespace.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// sysfs, `/dev` and the udev database cannot be got at.
    #[error("cannot enter the mount namespace {}; see `udev.mountNamespace`", path.display())]
    MountNamespace {
        /// The namespace.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Without the database no class that names a property would ever match.
    #[error(
        "there is no udev database: mount the host's /run/udev read-only at the same place, or set `udev.mountNamespace` to \
         /proc/1/ns/mnt, or set `udev.database` to none if the machine has no udev"
    )]
    NoDatabase,
    /// The thread that reads devices cannot be started.
    #[error("cannot start the thread that reads devices")]
    Thread(#[source] io::Error),
    /// The thread that reads devices has ended.
    #[error("the thread that reads devices has ended")]
    Gone,
    /// sysfs cannot be searched.
    #[error("cannot list devices")]
    List(#[source] io::Error),
    /// A socket fails.
    #[error("cannot receive uevents")]
    Receive(#[source] io::Error),
    /// A socket's filter cannot be changed.
    #[error("cannot set the filter of a socket for uevents")]
    Filter(#[source] io::Error),
}

/// Begins to listen. [`UdevSource::run`] then sends what is heard; the reader reads devices again.
pub fn open(config: &UdevConfig) -> Result<(UdevSource, UdevReader), UdevError> {
    let reader = UdevReader::start(config)?;
    Ok((UdevSource::open(config, reader.clone())?, reader))
}
