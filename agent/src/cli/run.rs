//! `devgate run`: the agent.

use std::io;

use tracing_subscriber::EnvFilter;

use crate::{
    agent,
    config::{self, Config, LogFormat},
};

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    config: config::Arguments,
}

impl Arguments {
    pub(super) fn run(self) -> anyhow::Result<()> {
        let config = Config::load(&self.config)?;
        start_log(&config)?;
        // One thread: what takes long happens in other processes, and each thread costs memory.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let result = runtime.block_on(agent::run(config));
        // A blocked reading of a file must not delay the end.
        runtime.shutdown_background();
        Ok(result?)
    }
}

fn start_log(config: &Config) -> anyhow::Result<()> {
    let log = &config.file().log;
    let filter = EnvFilter::try_new(&log.filter).map_err(|error| {
        anyhow::anyhow!("log.filter: {:?}: {error}; write for example info,devgate=debug", log.filter)
    })?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    match log.format {
        LogFormat::Text => builder.with_ansi(io::IsTerminal::is_terminal(&io::stderr())).init(),
        LogFormat::Json => builder.json().init(),
    }
    Ok(())
}
