//! `devgate uninstall`: takes everything back.

use std::io::{self, Write};

use crate::{
    config::{self, Config},
    uninstall,
};

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    config: config::Arguments,
}

impl Arguments {
    pub(super) fn run(self) -> anyhow::Result<()> {
        let config = Config::load(&self.config)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let removed = runtime.block_on(uninstall::uninstall(&config))?;
        let mut out = io::stdout().lock();
        for text in &removed {
            writeln!(out, "removed {text}")?;
        }
        if removed.is_empty() {
            writeln!(out, "nothing was installed")?;
        }
        Ok(())
    }
}
