//! The thread that reads devices.
//!
//! libudev knows no other places than `/sys`, `/dev` and `/run/udev`, and its objects must stay on one thread. So one
//! thread does all the reading, in the mount namespace where those places are the host's.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;

use devgate_core::{Asked, DevPath, Device, Incarnation, Reread};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};
use tokio::sync::oneshot;

use super::device::{self, Look};
use super::stays::Stays;
use super::{Database, UdevConfig, UdevError};

/// Reads devices as they are now. Clones share one thread, which ends with the last of them.
#[derive(Clone, Debug)]
pub struct UdevReader {
    requests: mpsc::Sender<Request>,
    shared: Arc<Shared>,
}

/// What the reader and the sockets know together.
#[derive(Debug, Default)]
struct Shared {
    stays: Mutex<Stays>,
    asked: Mutex<Arc<Asked>>,
}

enum Request {
    List(oneshot::Sender<io::Result<Vec<Device>>>),
    Read(Vec<DevPath>, oneshot::Sender<Vec<Reread>>),
    Remain(Vec<(DevPath, Incarnation)>, oneshot::Sender<Vec<(DevPath, Incarnation)>>),
}

impl UdevReader {
    /// Starts the thread. It sleeps until it is asked for something.
    pub(super) fn start(config: &UdevConfig) -> Result<Self, UdevError> {
        let (requests, received) = mpsc::channel();
        let (said, started) = mpsc::channel();
        let shared = Arc::new(Shared::default());
        let (config, for_thread) = (config.clone(), shared.clone());
        let serve = move || {
            let ready = prepare(&config);
            let usable = ready.is_ok();
            if said.send(ready).is_ok() && usable {
                serve(&received, &for_thread, config.database);
            }
        };
        thread::Builder::new().name("udev".to_owned()).spawn(serve).map_err(UdevError::Thread)?;
        started.recv().map_err(|_| UdevError::Gone)??;
        Ok(Self { requests, shared })
    }

    /// Reads devices again, for [`Batch::reread`](devgate_core::Batch::reread). A path that is missing in the answer could
    /// not be read.
    pub async fn reread(&self, devpaths: Vec<DevPath>) -> Result<Vec<Reread>, UdevError> {
        let (reply, answer) = oneshot::channel();
        self.requests.send(Request::Read(devpaths, reply)).map_err(|_| UdevError::Gone)?;
        answer.await.map_err(|_| UdevError::Gone)
    }

    /// Those of the devices that are still there, each the stay that it was.
    pub async fn remain(&self, devices: Vec<(DevPath, Incarnation)>) -> Result<Vec<(DevPath, Incarnation)>, UdevError> {
        let (reply, answer) = oneshot::channel();
        self.requests.send(Request::Remain(devices, reply)).map_err(|_| UdevError::Gone)?;
        answer.await.map_err(|_| UdevError::Gone)
    }

    /// Lists all devices that are asked for.
    pub(super) async fn list(&self) -> Result<Vec<Device>, UdevError> {
        let (reply, answer) = oneshot::channel();
        self.requests.send(Request::List(reply)).map_err(|_| UdevError::Gone)?;
        answer.await.map_err(|_| UdevError::Gone)?.map_err(UdevError::List)
    }

    /// From now on this is read.
    pub(super) fn ask(&self, asked: Asked) {
        *lock(&self.shared.asked) = Arc::new(asked);
    }

    pub(super) fn asked(&self) -> Arc<Asked> {
        lock(&self.shared.asked).clone()
    }

    pub(super) fn stays(&self) -> MutexGuard<'_, Stays> {
        lock(&self.shared.stays)
    }
}

/// Nothing is left half done under these locks.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn prepare(config: &UdevConfig) -> Result<(), UdevError> {
    if let Some(namespace) = &config.mount_namespace {
        enter(namespace).map_err(|source| UdevError::MountNamespace { path: namespace.clone(), source })?;
    }
    // Either is there once udev runs; the second stays when it is restarted.
    let present = ["/run/udev/control", "/run/udev/data"].iter().any(|path| Path::new(path).exists());
    if config.database == Database::Required && !present {
        return Err(UdevError::NoDatabase);
    }
    Ok(())
}

/// Takes the present thread, and no other, into a mount namespace.
fn enter(namespace: &Path) -> io::Result<()> {
    let namespace = File::open(namespace)?;
    // SAFETY: no file descriptors are unshared. The thread gets a root and a working folder of its own, without which it
    // may not change its mount namespace (setns(2)).
    unsafe { unshare_unsafe(UnshareFlags::FS) }?;
    Ok(move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Mount))?)
}

fn serve(requests: &mpsc::Receiver<Request>, shared: &Shared, database: Database) {
    let current = |look: &Look<'_>| look.ask(&mut lock(&shared.stays));
    for request in requests {
        let asked = lock(&shared.asked).clone();
        // Whoever asked may have gone; then nobody misses the answer.
        match request {
            Request::List(reply) => _ = reply.send(device::list(&asked, database, current)),
            Request::Read(devpaths, reply) => {
                let read = |devpath: DevPath| match device::read(&devpath, &asked, database, current) {
                    Ok(device) => Some(Reread { devpath, device }),
                    Err(error) => {
                        tracing::warn!(%devpath, %error, "a device cannot be read");
                        None
                    }
                };
                _ = reply.send(devpaths.into_iter().filter_map(read).collect());
            }
            Request::Remain(mut devices, reply) => {
                devices.retain(|(devpath, stay)| {
                    device::remains(devpath, stay, || device::read(devpath, &asked, database, current))
                        .inspect_err(|error| tracing::warn!(%devpath, %error, "a device cannot be looked at"))
                        .unwrap_or(false)
                });
                _ = reply.send(devices);
            }
        }
    }
}
