//! What a test and the first process of its hand-made container say to each other, one JSON document a line.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// What kind of container is made.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Spec {
    /// With a user namespace, of which root is [`MAPPED_ROOT`] on the host.
    pub user_namespace: bool,
    pub dev: Dev,
    /// A directory of the host that the container sees at `/volume`.
    pub volume: Option<PathBuf>,
}

/// First of the 65536 ids of the host that a container with a user namespace has.
pub(crate) const MAPPED_ROOT: u32 = 100_000;

/// What stands at the container's `/dev`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) enum Dev {
    /// A tmpfs of its own, as runtimes make it.
    #[default]
    Own,
    /// The same with so few inodes.
    OwnWithInodes(u32),
    /// A directory of the host; if that is a shared mount, so is this.
    Host(PathBuf),
}

/// What the first process of a container is told to do.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Order {
    /// Open for reading and writing.
    Open(String),
    Stat(String),
    Symlink {
        target: String,
        path: String,
    },
    Mkdir(String),
    Rmdir(String),
    Unlink(String),
    Write {
        path: String,
        text: String,
    },
    BindSocket(String),
    Mknod {
        path: String,
        major: u32,
        minor: u32,
    },
    Unmount(String),
    MoveMount {
        from: String,
        to: String,
    },
    /// A tmpfs named as the agent's, and a plain file of it mounted at the path as if it were a node.
    ImitateNode {
        path: String,
        tag: String,
    },
    MountTmpfs(String),
    RemountReadOnly(String),
    /// Make files in a directory until the file system is full.
    Fill(String),
    /// Leave for a user namespace, and stay in the mount namespace.
    NewUserNamespace,
    /// Leave for a mount namespace that is a copy of the present one.
    NewMountNamespace,
    /// Mount a FUSE file system that never answers. `greet`: answer the first message, so that others are sent.
    MountFuse {
        device: String,
        path: String,
        greet: bool,
    },
    /// Take one message and leave it unanswered.
    TakeFuseMessage,
    /// Close the FUSE device: the kernel fails whatever waits.
    CloseFuse,
    /// Keep so many threads busy with making processes that end at once.
    ForkStorm(u32),
}

/// What became of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Reply {
    Done,
    Stat(Stat),
    /// The system call failed with this error.
    Errno(i32),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stat {
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub major: u32,
    pub minor: u32,
    pub inode: u64,
    pub size: u64,
}

/// One end of the conversation.
pub(crate) struct Line {
    reader: BufReader<UnixStream>,
}

impl Line {
    pub(crate) fn new(socket: UnixStream) -> Self {
        Self { reader: BufReader::new(socket) }
    }

    pub(crate) fn say(&mut self, message: &impl Serialize) -> io::Result<()> {
        let mut text = serde_json::to_vec(message)?;
        text.push(b'\n');
        self.reader.get_mut().write_all(&text)
    }

    /// The next message; an error when the other end has gone.
    pub(crate) fn hear<T: DeserializeOwned>(&mut self) -> io::Result<T> {
        let mut text = String::new();
        if self.reader.read_line(&mut text)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(serde_json::from_str(&text)?)
    }
}
