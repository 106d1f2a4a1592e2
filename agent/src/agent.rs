//! The agent: sources, reconciler and audit log, put together.

use std::{io, path::PathBuf, time::Duration};

use devgate_core::{DevPath, Incarnation, Reread};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::{mpsc, watch},
};

use crate::{
    audit::{AuditLog, Sink, SinkError},
    config::Config,
    executors::{
        device_nodes::HelperProcesses,
        enforcer::{EnforcerError, KernelEnforcer},
    },
    heap, memory,
    reconciler::{DeviceReader, HostPaths, Parts, Published, Reconciler, Wires},
    sources::{
        containerd, device_class,
        udev::{self, UdevError, UdevReader},
    },
};

/// How many events may wait for the reconciler.
const EVENTS: usize = 1024;
/// How long the audit log may take to end.
const LAST_LINES: Duration = Duration::from_millis(500);

/// Why the agent cannot run.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// Nothing can be enforced.
    #[error("cannot enforce")]
    Enforcer(#[from] EnforcerError),
    /// Devices cannot be found.
    #[error("cannot find devices")]
    Udev(#[from] UdevError),
    /// The audit log cannot be written.
    #[error(transparent)]
    Sink(#[from] SinkError),
    /// The classes cannot be watched.
    #[error(transparent)]
    Classes(#[from] device_class::ClassSourceError),
    /// The system does not give what a process may expect.
    #[error("cannot start")]
    System(#[source] io::Error),
}

impl DeviceReader for UdevReader {
    async fn reread(&self, devpaths: Vec<DevPath>) -> Vec<Reread> {
        Self::reread(self, devpaths).await.unwrap_or_else(|error| {
            tracing::error!(%error, "devices cannot be read");
            Vec::new()
        })
    }

    async fn remain(&self, devices: Vec<(DevPath, Incarnation)>) -> Vec<(DevPath, Incarnation)> {
        Self::remain(self, devices).await.unwrap_or_else(|error| {
            tracing::error!(%error, "devices cannot be looked at");
            Vec::new()
        })
    }
}

/// Runs until SIGTERM or SIGINT. What is enforced then stays enforced.
pub async fn run(config: Config) -> Result<(), AgentError> {
    let mut enforcer = KernelEnforcer::open(config.enforcer())?;
    if !enforcer.is_upgrade() {
        enforcer.activate()?;
    }
    heap::give_back();
    let (source, reader) = udev::open(&config.udev())?;
    let cgroups = enforcer.root().try_clone().map_err(AgentError::System)?;
    let sink = match config.audit_file() {
        Some(path) => Sink::file(&path)?,
        None => Sink::stdout(),
    };
    let audit = enforcer.audit_reader()?;

    let (event_sender, events) = mpsc::channel(EVENTS);
    let (class_sender, classes) = mpsc::channel(4);
    let (report_sender, reports) = mpsc::unbounded_channel();
    let (publisher, state) = watch::channel(Published::default());
    let (stopper, stop) = watch::channel(false);

    let parts = Parts {
        nodes: HelperProcesses::new(config.helper(cgroups.path())),
        paths: HostPaths { proc_root: config.file().proc_root.clone(), cgroup_root: cgroups.path().to_owned() },
        enforcer,
        devices: reader,
        cgroups,
        memory: memory::load(&config.state_dir()),
        runtimes: vec![containerd::RUNTIME.to_owned()],
    };
    let wires = Wires { events, reports: report_sender, published: publisher, stop: stop.clone() };
    let reconciler = Reconciler::new(parts, config.timings(), wires)?;
    let audit = tokio::spawn(AuditLog::new(audit, reports, state.clone(), sink).run());
    tokio::spawn(shrink(state.clone()));
    tokio::spawn(remember(config.state_dir(), state));
    let shutdown = {
        let mut stop = stop.clone();
        async move {
            let _ = stop.wait_for(|stop| *stop).await;
        }
    };
    tokio::spawn(containerd::run(config.containerd(), event_sender.clone(), shutdown));
    let devices = tokio::spawn(source.run(classes, event_sender));
    let folder = tokio::spawn(device_class::run(config.classes(), class_sender));
    let mut reconciler = tokio::spawn(reconciler.run());
    tracing::info!("running");

    // Each branch only looks at something that ends; nothing is lost when another is first.
    let result = tokio::select! {
        signal = ended() => signal.map_err(AgentError::System),
        _ = &mut reconciler => Ok(()),
        failed = devices => failed.map_err(|error| AgentError::System(error.into()))?.map_err(AgentError::from),
        failed = folder => failed.map_err(|error| AgentError::System(error.into()))?.map_err(AgentError::from),
    };
    tracing::info!("ending; what is enforced stays enforced");
    let _ = stopper.send(true);
    let _ = reconciler.await;
    // With the reconciler the last sender of reports is gone: the log ends when everything is written.
    match tokio::time::timeout(LAST_LINES, audit).await {
        Ok(Ok(Ok(()))) => {}
        Ok(Ok(Err(error))) => tracing::error!(%error, "the audit log has failed"),
        Ok(Err(error)) => tracing::error!(%error, "the audit log has failed"),
        Err(_) => tracing::error!("the audit log did not end in time"),
    }
    result
}

/// Waits for the signal to end. A second one ends the process at once.
async fn ended() -> io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::error!("a second signal: ending at once");
        std::process::exit(1);
    });
    Ok(())
}

/// Once everything has been listed, what the lists took is not needed again for a long time.
async fn shrink(mut published: watch::Receiver<Published>) {
    // Without a reconciler there is nothing to shrink for.
    if published.wait_for(|published| published.complete).await.is_ok() {
        heap::give_back();
    }
}

/// Keeps what is remembered on the disk.
async fn remember(folder: PathBuf, mut published: watch::Receiver<Published>) {
    let mut stored = published.borrow().memory.clone();
    while published.changed().await.is_ok() {
        let memory = published.borrow_and_update().memory.clone();
        if memory == stored {
            continue;
        }
        let (folder, fresh) = (folder.clone(), memory.clone());
        match tokio::task::spawn_blocking(move || memory::store(&folder, &fresh)).await {
            Ok(Ok(())) => stored = memory,
            Ok(Err(error)) => tracing::error!(error = %error, "what is to be remembered cannot be written"),
            Err(error) => tracing::error!(%error, "what is to be remembered cannot be written"),
        }
    }
}
