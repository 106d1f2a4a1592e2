//! What is in force, as anybody with the rights to look sees it; and its removal.

use std::{
    fs, io,
    os::fd::AsFd,
    path::{Path, PathBuf},
};

use devgate_abi::{LAYOUT_VERSION, State, StateFlags, load};
use serde::Serialize;

use super::{
    cgroup::CgroupRoot,
    config::{EnforcerConfig, Unguarded},
    error::EnforcerError,
    guard,
    layout::{device_del_pin, link_pin, lock, maps_folder},
    mapped::MappedArray,
    sys::{self, LinkInfo, MapInfo},
};

/// The state of the enforcement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Status {
    /// Release of the running kernel.
    pub kernel: String,
    /// Version of the map layouts that this program knows.
    pub layout: u32,
    /// The link.
    pub link: LinkState,
    /// The guards.
    pub guards: GuardState,
    /// How many cgroups are managed and how many may be; `None` if the maps are not pinned.
    pub cgroups: Option<Usage>,
    /// How many rules there are and may be.
    pub rules: Option<Usage>,
    /// How many device numbers have an epoch and may have one.
    pub devices: Option<Usage>,
}

/// Whether the device program is in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "camelCase")]
pub enum LinkState {
    /// There is no link: nothing is enforced.
    Absent,
    /// The link is pinned, but its cgroup is gone or it was detached: nothing is enforced.
    Detached {
        /// The program that it holds.
        program: u32,
    },
    /// In force.
    Attached {
        /// The program.
        program: u32,
        /// Id of the ancestor's cgroup.
        cgroup: u64,
        /// Whether that is the cgroup of the configuration.
        configured: bool,
    },
}

/// What sees the removal of devices in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GuardState {
    /// Process id of the guard that holds the socket filter; `None` if none lives.
    pub uevent_process: Option<i32>,
    /// Epochs that the socket filter has advanced since boot.
    pub uevent_advances: u64,
    /// Whether the program at `device_del` is pinned.
    pub device_del: bool,
    /// Epochs that the program at `device_del` has advanced since boot.
    pub device_del_advances: u64,
    /// What holds for devices that can be unplugged while no guard is alive.
    pub unguarded: Unguarded,
}

/// How full a map is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Usage {
    /// Entries.
    pub used: u32,
    /// Entries that there may be.
    pub limit: u32,
}

/// Looks at what is pinned. Changes nothing and needs no lock.
pub fn status(config: &EnforcerConfig) -> Result<Status, EnforcerError> {
    let link = link_state(config)?;
    let folder = maps_folder(&config.pin_root);
    let state = open(&folder.join(devgate_abi::map::STATE))?
        .map(|map| MappedArray::<State>::new(map.as_fd()))
        .transpose()
        .map_err(EnforcerError::call("mapping an array"))?;
    let word =
        |pick: fn(&State) -> &std::sync::atomic::AtomicU64| state.as_ref().map_or(0, |state| load(pick(&state[0])));
    let flags = StateFlags(word(|state| &state.flags));
    let guards = GuardState {
        uevent_process: guard::running(&config.run_dir)
            .map_err(EnforcerError::call("looking for the guard"))?
            .map(|pid| pid.as_raw_nonzero().get()),
        uevent_advances: word(|state| &state.advanced_by_uevent),
        device_del: device_del_pin(&config.pin_root).exists(),
        device_del_advances: word(|state| &state.advanced_by_device_del),
        unguarded: if flags.intersects(StateFlags::REQUIRE_GUARD) { Unguarded::Deny } else { Unguarded::Keep },
    };
    Ok(Status {
        kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
        layout: LAYOUT_VERSION,
        link,
        guards,
        cgroups: usage(&folder, devgate_abi::map::CGROUPS)?,
        rules: usage(&folder, devgate_abi::map::RULES)?,
        devices: usage(&folder, devgate_abi::map::EPOCH_SLOTS)?,
    })
}

fn link_state(config: &EnforcerConfig) -> Result<LinkState, EnforcerError> {
    let Some(link) = open(&link_pin(&config.pin_root))? else { return Ok(LinkState::Absent) };
    let info: LinkInfo = sys::info(link.as_fd()).map_err(EnforcerError::call("BPF_OBJ_GET_INFO_BY_FD"))?;
    if info.cgroup == 0 {
        return Ok(LinkState::Detached { program: info.program });
    }
    let root = match &config.cgroup_root {
        Some(path) => CgroupRoot::open(path),
        None => CgroupRoot::find(),
    };
    let ancestor = root.and_then(|root| root.cgroup(&config.ancestor));
    Ok(LinkState::Attached {
        program: info.program,
        cgroup: info.cgroup,
        configured: ancestor.is_ok_and(|ancestor| ancestor.id() == info.cgroup),
    })
}

fn usage(folder: &Path, name: &str) -> Result<Option<Usage>, EnforcerError> {
    let Some(map) = open(&folder.join(name))? else { return Ok(None) };
    let info: MapInfo = sys::info(map.as_fd()).map_err(EnforcerError::call("BPF_OBJ_GET_INFO_BY_FD"))?;
    let used = sys::count_keys(map.as_fd(), info.key_size).map_err(EnforcerError::call("BPF_MAP_GET_NEXT_KEY"))?;
    Ok(Some(Usage { used, limit: info.max_entries }))
}

fn open(path: &Path) -> Result<Option<std::os::fd::OwnedFd>, EnforcerError> {
    match sys::pinned(path) {
        Ok(fd) => Ok(Some(fd)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(EnforcerError::Call("BPF_OBJ_GET", error)),
    }
}

/// Fails if an agent enforces with these pins.
pub fn refuse_while_running(pin_root: &Path) -> Result<(), EnforcerError> {
    if pin_root.exists() { super::layout::Pins::open(pin_root).map(drop) } else { Ok(()) }
}

/// Ends the enforcement: unpins the link first, so that no denial of ours outlives it, then the maps, and ends the guard
/// process. Returns what was removed. Repeating it does nothing. An agent that runs would put back what is removed, and
/// is an error.
pub fn uninstall(config: &EnforcerConfig) -> Result<Vec<PathBuf>, EnforcerError> {
    let _lock = if config.pin_root.exists() { Some(lock(&config.pin_root)?) } else { None };
    let mut removed = Vec::new();
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |error| EnforcerError::Folder(path, error)
    };
    let link = link_pin(&config.pin_root);
    match fs::remove_file(&link) {
        Ok(()) => removed.push(link),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed(&link)(error)),
    }
    guard::end_running(&config.run_dir).map_err(EnforcerError::Guard)?;
    match fs::remove_dir_all(&config.pin_root) {
        Ok(()) => removed.push(config.pin_root.clone()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed(&config.pin_root)(error)),
    }
    Ok(removed)
}
