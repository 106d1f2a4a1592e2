//! Why a visit or a single change was refused. Sent by the helper to the agent, so all of it can be serialised.

use serde::{Deserialize, Serialize};

/// Why one change was not carried out. Unless said otherwise nothing has been changed in the container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Refusal {
    /// `/dev`, or the directory in question, is the host's own. The node is there already as the host has it.
    #[error("{path} in the container is on a file system of the host")]
    HostDev {
        /// The directory.
        path: String,
    },
    /// A mount made there would appear on the host.
    #[error("{path} in the container shares its mounts with the host")]
    SharedDev {
        /// The directory.
        path: String,
    },
    /// The container has no directory `/dev`.
    #[error("the container has no /dev")]
    DevMissing,
    /// `/dev` is a symbolic link, which a container can point anywhere.
    #[error("/dev in the container is a symbolic link")]
    DevIsSymlink,
    /// Only a tmpfs at `/dev` is known to be the container's own, and never to block.
    #[error("/dev in the container is a {fstype} and not a tmpfs")]
    DevNotTmpfs {
        /// The type of the file system.
        fstype: String,
    },
    /// Something else stands at the path or at one of its directories.
    #[error("{path} in the container is a {kind}")]
    Occupied {
        /// What stands in the way.
        path: String,
        /// Its kind.
        kind: FileKind,
    },
    /// The container has mounted something over the node, or moved the mount to where it cannot be reached.
    #[error("the node at {path} is covered by another mount")]
    Covered {
        /// Where the node is.
        path: String,
    },
    /// The node was mounted but the path leads to something else: the container changed it meanwhile. It has been unmounted again.
    #[error("{path} does not lead to the node that was placed there")]
    NotVisible {
        /// Where the node should be.
        path: String,
    },
    /// `/dev` is mounted read-only.
    #[error("{path} cannot be made: the file system is read-only")]
    ReadOnly {
        /// What was to be made.
        path: String,
    },
    /// The tmpfs at `/dev` is full.
    #[error("{path} cannot be made: no space or inode is left")]
    NoSpace {
        /// What was to be made.
        path: String,
    },
    /// The owner does not exist in the container's user namespace.
    #[error("{kind} {id} is not mapped in the container's user namespace")]
    UnmappedOwner {
        /// `uid` or `gid`.
        kind: String,
        /// As the container would number it.
        id: u32,
    },
    /// A system call failed.
    #[error("{operation} {path}: {}", std::io::Error::from_raw_os_error(*errno))]
    System {
        /// The system call.
        operation: String,
        /// Its object.
        path: String,
        /// Error number.
        errno: i32,
    },
}

/// What stands at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileKind {
    /// A symbolic link.
    Symlink,
    /// A directory.
    Directory,
    /// A regular file.
    File,
    /// A socket.
    Socket,
    /// A named pipe.
    Fifo,
    /// A device node of another number.
    Device,
    /// The root of a mount that is not ours.
    Mount,
}

impl std::fmt::Display for FileKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Symlink => "symbolic link",
            Self::Directory => "directory",
            Self::File => "file",
            Self::Socket => "socket",
            Self::Fifo => "named pipe",
            Self::Device => "node of another device",
            Self::Mount => "mount",
        })
    }
}

/// Why the container was not entered; nothing has been changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum EntryError {
    /// The container's process has exited. Its number may already belong to another process, which was left alone.
    #[error("the container's process has exited")]
    ProcessGone,
    /// The process is not in the container's cgroup or below it.
    #[error("the process is in cgroup {path} and not in the container's, {expected}")]
    WrongCgroup {
        /// Id of the cgroup where it should be.
        expected: u64,
        /// Where it is.
        path: String,
    },
    /// The cgroup of the process cannot be determined.
    #[error("cgroup of the process: {0}")]
    Cgroup(String),
    /// The process has no mount namespace of its own; everything done there would be done to the host.
    #[error("the process is in the host's mount namespace")]
    HostNamespace,
    /// The process has left the user namespace that owns its mount namespace, so its owners cannot be mapped.
    #[error("the user namespace of the process does not own its mount namespace")]
    ForeignUserNamespace,
    /// A system call failed.
    #[error("{operation} {path}: {}", std::io::Error::from_raw_os_error(*errno))]
    System {
        /// The system call.
        operation: String,
        /// Its object.
        path: String,
        /// Error number.
        errno: i32,
    },
}
