//! Where the workspace is and what its folders are called.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

/// A checkout of this workspace: the one that xtask was built from, or a copy of it.
#[derive(Clone, Debug)]
pub(crate) struct Workspace {
    root: PathBuf,
    /// Cargo's target folder, if it is not cargo's own choice.
    cargo_target: Option<PathBuf>,
}

impl Workspace {
    /// The checkout that this xtask was built from.
    pub(crate) fn current() -> Result<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("xtask lies in no workspace")?;
        Ok(Self::at(root))
    }

    /// A checkout at `root`.
    pub(crate) fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into(), cargo_target: None }
    }

    /// The same checkout, built by cargo into `folder`.
    pub(crate) fn with_cargo_target(self, folder: impl Into<PathBuf>) -> Self {
        Self { cargo_target: Some(folder.into()), ..self }
    }

    /// The folder of the root `Cargo.toml`.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Where xtask keeps what it makes. Always below the root, whatever `CARGO_TARGET_DIR` says: the agent's build script looks here.
    pub(crate) fn target(&self) -> PathBuf {
        self.root.join("target")
    }

    /// The eBPF object and the files it is made with.
    pub(crate) fn ebpf_target(&self) -> PathBuf {
        self.target().join("ebpf")
    }

    /// The toolchain's cargo, run in the root.
    pub(crate) fn cargo(&self) -> Command {
        let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.current_dir(&self.root).envs(self.cargo_target.iter().map(|folder| ("CARGO_TARGET_DIR", folder)));
        command
    }

    /// `path` without the root, for messages.
    pub(crate) fn relative<'a>(&self, path: &'a Path) -> &'a Path {
        path.strip_prefix(&self.root).unwrap_or(path)
    }
}

/// Where slow things are kept between runs and checkouts: `$DEVGATE_CACHE`, else the user's cache folder.
pub(crate) fn cache() -> Result<PathBuf> {
    let non_empty = |name| env::var_os(name).filter(|value| !value.is_empty());
    let base = non_empty("DEVGATE_CACHE")
        .or_else(|| non_empty("XDG_CACHE_HOME"))
        .map(PathBuf::from)
        .or_else(|| non_empty("HOME").map(|home| Path::new(&home).join(".cache")))
        .context("none of DEVGATE_CACHE, XDG_CACHE_HOME and HOME is set: there is no place for the cache")?;
    Ok(base.join("devgate"))
}
