//! `devgate guard`: the process that holds the guard's descriptors. The agent starts it.

use std::path::PathBuf;

use crate::executors::enforcer::guard_main;

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// The file whose lock names the present guard.
    lock: PathBuf,
}

impl Arguments {
    pub(super) fn run(self) -> anyhow::Result<()> {
        match guard_main(&self.lock)? {}
    }
}
