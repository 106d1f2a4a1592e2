//! Where things are pinned, and what must be pinned there.
//!
//! ```text
//! PIN_ROOT/             0700, locked by the agent that enforces
//!   link                the cgroup link; its program may be of an older layout until the new agent has taken over
//!   v1/                 0700, the maps of one layout version
//!     STATE CGROUPS CONTAINERS RULES RULE_PLACES EPOCH_SLOTS EPOCHS AUDIT
//!     device_del        the link of the program at device_del, where the kernel has such
//! ```

use std::{
    fs, io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt},
    },
    path::{Path, PathBuf},
};

use devgate_abi::{CgroupEntry, ContainerSlot, DeviceNumber, LAYOUT_VERSION, Rule, RuleKey, RulePlace, State, map};
use rustix::fs::{FlockOperation, Mode, OFlags, flock, openat};

use super::{
    config::Limits,
    error::EnforcerError,
    sys::{self, MapInfo},
};

/// `BPF_FS_MAGIC` in `include/uapi/linux/magic.h`
const BPF_FS_MAGIC: u64 = 0xcafe_4a11;
const HASH: u32 = 1;
const ARRAY: u32 = 2;
const RING: u32 = 27;
const MMAPABLE: u32 = 1 << 10;

/// One map, as it must be.
#[derive(Clone, Copy, Debug)]
pub(super) struct MapSpec {
    pub(super) name: &'static str,
    kind: u32,
    key_size: usize,
    value_size: usize,
    pub(super) max_entries: u32,
    flags: u32,
}

/// All pinned maps.
pub(super) fn map_specs(limits: &Limits) -> [MapSpec; 8] {
    let hash = |name, key_size, value_size, max_entries| MapSpec {
        name,
        kind: HASH,
        key_size,
        value_size,
        max_entries,
        flags: 0,
    };
    let array = |name, value_size, max_entries| MapSpec {
        name,
        kind: ARRAY,
        key_size: 4,
        value_size,
        max_entries,
        flags: MMAPABLE,
    };
    [
        array(map::STATE, size_of::<State>(), 1),
        hash(map::CGROUPS, size_of::<u64>(), size_of::<CgroupEntry>(), limits.cgroups),
        // Slot 0 of both arrays belongs to nobody.
        array(map::CONTAINERS, size_of::<ContainerSlot>(), limits.cgroups + 1),
        hash(map::RULES, size_of::<RuleKey>(), size_of::<Rule>(), limits.rules),
        // Two for each rule, and few nodes have as many rules as there may be: rarely do two keys have one place.
        array(map::RULE_PLACES, size_of::<RulePlace>(), 2 * limits.rules.next_power_of_two()),
        hash(map::EPOCH_SLOTS, size_of::<DeviceNumber>(), size_of::<u32>(), limits.devices),
        array(map::EPOCHS, size_of::<u64>(), limits.devices + 1),
        MapSpec { name: map::AUDIT, kind: RING, key_size: 0, value_size: 0, max_entries: limits.audit_bytes, flags: 0 },
    ]
}

impl MapSpec {
    /// Compares what is pinned with what it should be, field by field: nothing else does.
    fn compare(&self, path: &Path, found: &MapInfo) -> Result<(), EnforcerError> {
        let fields = [
            ("type", found.kind, self.kind),
            ("key size", found.key_size, self.key_size as u32),
            ("value size", found.value_size, self.value_size as u32),
            ("number of entries", found.max_entries, self.max_entries),
            ("flags", found.flags, self.flags),
        ];
        for (field, found, expected) in fields {
            if found != expected {
                return Err(EnforcerError::WrongMap { path: path.to_owned(), field, found, expected });
            }
        }
        Ok(())
    }
}

/// The folder of the pins.
#[derive(Debug)]
pub(super) struct Pins {
    root: PathBuf,
    lock: OwnedFd,
}

impl Pins {
    /// Makes the folders and takes the lock, which is held until the value is dropped or the process ends.
    pub(super) fn open(root: &Path) -> Result<Self, EnforcerError> {
        check_file_system(root)?;
        private_folder(root)?;
        let pins = Self { root: root.to_owned(), lock: lock(root)? };
        private_folder(&pins.maps())?;
        Ok(pins)
    }

    /// Makes the folders anew if somebody has removed them, and takes the lock on the new ones.
    pub(super) fn restore(&mut self) -> Result<(), EnforcerError> {
        let failed = |error| EnforcerError::Folder(self.root.clone(), error);
        check_file_system(&self.root)?;
        private_folder(&self.root)?;
        let held = rustix::fs::fstat(&self.lock).map_err(|error| failed(error.into()))?;
        let present = fs::metadata(&self.root).map_err(failed)?;
        if (held.st_dev, held.st_ino) != (present.dev(), present.ino()) {
            self.lock = lock(&self.root)?;
        }
        private_folder(&self.maps())
    }

    /// The folder above all.
    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// The pin of the link.
    pub(super) fn link(&self) -> PathBuf {
        link_pin(&self.root)
    }

    /// The folder of this version's maps.
    pub(super) fn maps(&self) -> PathBuf {
        maps_folder(&self.root)
    }

    /// The pin of a map.
    pub(super) fn map(&self, name: &str) -> PathBuf {
        self.maps().join(name)
    }

    /// The pin of the program at `device_del`.
    pub(super) fn device_del(&self) -> PathBuf {
        device_del_pin(&self.root)
    }

    /// Compares every map that is pinned already.
    pub(super) fn compare(&self, specs: &[MapSpec]) -> Result<(), EnforcerError> {
        for spec in specs {
            let path = self.map(spec.name);
            let pinned = match sys::pinned(&path) {
                Ok(pinned) => pinned,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(EnforcerError::Call("BPF_OBJ_GET", error)),
            };
            let info = sys::info(pinned.as_fd()).map_err(EnforcerError::call("BPF_OBJ_GET_INFO_BY_FD"))?;
            spec.compare(&path, &info)?;
        }
        Ok(())
    }

    /// Whether maps of another layout version are pinned.
    pub(super) fn has_others(&self) -> bool {
        let entries = fs::read_dir(&self.root).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).any(|path| path.is_dir() && path != self.maps())
    }

    /// Removes the pins of other layout versions, once nothing uses them any more.
    pub(super) fn remove_others(&self) -> Result<(), EnforcerError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |error| EnforcerError::Folder(path, error)
        };
        for entry in fs::read_dir(&self.root).map_err(failed(&self.root))?.flatten() {
            let path = entry.path();
            if path.is_dir() && path != self.maps() {
                fs::remove_dir_all(&path).map_err(failed(&path))?;
            }
        }
        Ok(())
    }
}

/// Whether a folder is on a bpf file system, or will be when it is made: elsewhere nothing is made.
fn check_file_system(root: &Path) -> Result<(), EnforcerError> {
    let present = root.ancestors().find(|folder| folder.exists()).unwrap_or(root);
    match rustix::fs::statfs(present) {
        Ok(status) if status.f_type.cast_unsigned() == BPF_FS_MAGIC => Ok(()),
        Ok(_) => Err(EnforcerError::NotBpfFs(root.to_owned())),
        Err(error) => Err(EnforcerError::Folder(present.to_owned(), error.into())),
    }
}

/// Takes the lock on a root folder, which only one agent has.
pub(super) fn lock(root: &Path) -> Result<OwnedFd, EnforcerError> {
    let failed = |error: rustix::io::Errno| EnforcerError::Folder(root.to_owned(), error.into());
    let folder = openat(rustix::fs::CWD, root, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).map_err(failed)?;
    match flock(&folder, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(folder),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(EnforcerError::AlreadyRunning(root.to_owned())),
        Err(error) => Err(failed(error)),
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        // Closing is not enough: a process that was started just now may hold the descriptor until it runs its program.
        let _ = flock(&self.lock, FlockOperation::Unlock);
    }
}

/// The pin of the link below a root folder.
pub(super) fn link_pin(root: &Path) -> PathBuf {
    root.join("link")
}

/// The folder of this version's maps below a root folder.
pub(super) fn maps_folder(root: &Path) -> PathBuf {
    root.join(format!("v{LAYOUT_VERSION}"))
}

/// The pin of the program at `device_del` below a root folder.
pub(super) fn device_del_pin(root: &Path) -> PathBuf {
    maps_folder(root).join("device_del")
}

/// Makes a folder that only its owner can use, or checks that the one that is there is such.
pub(super) fn private_folder(path: &Path) -> Result<(), EnforcerError> {
    let failed = |error| EnforcerError::Folder(path.to_owned(), error);
    match fs::DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            if let Some(parent) = path.parent().filter(|parent| !parent.exists()) {
                private_folder(parent)?;
                return private_folder(path);
            }
            return Err(failed(error));
        }
        Err(error) => return Err(failed(error)),
    }
    let status = fs::symlink_metadata(path).map_err(failed)?;
    let user = rustix::process::geteuid().as_raw();
    if !status.is_dir() || status.uid() != user {
        return Err(failed(io::Error::other("it is not a folder of this user")));
    }
    if status.permissions().mode() & 0o077 != 0 {
        fs::set_permissions(path, fs::Permissions::from_mode(0o700)).map_err(failed)?;
    }
    Ok(())
}
