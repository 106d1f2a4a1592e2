//! Reads devices from sysfs and the udev database, through libudev.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use devgate_core::{
    Asked, Attributes, DevPath, Device, DeviceKind, DeviceNumber, Incarnation, NodeOwner, Parent, Properties,
};
use udev::{Enumerator, Udev};

use super::Database;
use super::stays::Stays;

/// libudev knows no other places.
const SYSFS: &str = "/sys";
const DATABASE: &str = "/run/udev/data";
/// Who replugs a device more often while it is read gets read after the next event.
const TRIES: usize = 3;

/// All devices with a node, of the subsystems asked for.
pub(super) fn list(
    asked: &Asked,
    database: Database,
    mut current: impl FnMut(&Look<'_>) -> bool,
) -> io::Result<Vec<Device>> {
    let mut enumerator = Enumerator::new()?;
    match &asked.subsystems {
        // libudev would take no subsystem for all.
        Some(subsystems) if subsystems.is_empty() => return Ok(Vec::new()),
        Some(subsystems) => subsystems.iter().try_for_each(|subsystem| enumerator.match_subsystem(subsystem))?,
        None => {}
    }
    let mut devices = Vec::new();
    for found in enumerator.scan_devices()? {
        let Some(devpath) = text(found.devpath()).filter(|_| found.devnum().is_some()) else { continue };
        // One that cannot be read is missing for now; it does not hide the others.
        match read(&DevPath::from(devpath), asked, database, &mut current) {
            Ok(device) => devices.extend(device),
            Err(error) => tracing::warn!(devpath, %error, "a device cannot be read"),
        }
    }
    Ok(devices)
}

/// What is looked at to tell whether the database speaks of the device that is there.
pub(super) struct Look<'a> {
    pub(super) number: DeviceNumber,
    pub(super) devpath: &'a DevPath,
    pub(super) inode: u64,
    pub(super) initialized_usec: Option<u64>,
    /// The database's entry was written before the node was made.
    pub(super) outdated: bool,
}

impl Look<'_> {
    pub(super) fn ask(&self, stays: &mut Stays) -> bool {
        stays.is_current(self.number, self.devpath, self.inode, self.initialized_usec, self.outdated)
    }
}

/// The device at a path, or `None` if there is none with a node that udev has finished with.
pub(super) fn read(
    devpath: &DevPath,
    asked: &Asked,
    database: Database,
    mut current: impl FnMut(&Look<'_>) -> bool,
) -> io::Result<Option<Device>> {
    let folder = PathBuf::from(format!("{SYSFS}{devpath}"));
    for _ in 0..TRIES {
        // The folder's inode number tells at the end whether all was read of one device.
        let Some(inode) = inode(&folder)? else { return Ok(None) };
        let device = match udev::Device::from_syspath_with_context(Udev::new()?, &folder) {
            Ok(device) => device,
            Err(error) if is_absence(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        let read = assemble(&device, devpath, inode, asked, database);
        if self::inode(&folder)? != Some(inode) {
            continue;
        }
        return Ok(read.filter(|device| {
            let initialized_usec = device.incarnation.initialized_usec;
            let outdated = database == Database::Required && is_outdated(device);
            let is_current = current(&Look { number: device.number, devpath, inode, initialized_usec, outdated });
            if !is_current {
                let node = &device.devnode;
                tracing::info!(
                    node,
                    "what udev knows is of another device; `udevadm trigger` lets it look if it does not"
                );
            }
            is_current
        }));
    }
    Ok(None)
}

/// Whether the device that was read at a path is there, the same stay of it. Its folder in sysfs tells, at a tenth of the
/// cost of reading all again; where a medium can change in a device that stays, it is read again.
pub(super) fn remains(
    devpath: &DevPath,
    stay: &Incarnation,
    read: impl FnOnce() -> io::Result<Option<Device>>,
) -> io::Result<bool> {
    if stay.disk_sequence.is_some() {
        return Ok(read()?.is_some_and(|device| device.incarnation == *stay));
    }
    Ok(inode(Path::new(&format!("{SYSFS}{devpath}")))? == Some(stay.plug))
}

/// The inode number of a device's folder in sysfs. The kernel makes it of a counter and gives it to no other folder until
/// the next boot (`kernfs_node.id`, Linux 5.5, 64-bit machines); a folder that is moved keeps it.
fn inode(folder: &Path) -> io::Result<Option<u64>> {
    match fs::symlink_metadata(folder) {
        Ok(found) if found.is_dir() => Ok(Some(found.ino())),
        Ok(_) => Ok(None),
        Err(error) if is_absence(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

fn assemble(device: &udev::Device, devpath: &DevPath, inode: u64, asked: &Asked, database: Database) -> Option<Device> {
    let known = text(device.devpath()).is_some_and(|path| path == devpath.as_str());
    // A device that udev has not finished with lacks properties, and a class might exclude it by one of those.
    if !known || (database == Database::Required && !device.is_initialized()) {
        return None;
    }
    let subsystem = text(device.subsystem()?)?.to_owned();
    let kind = if subsystem == "block" { DeviceKind::Block } else { DeviceKind::Char };
    let devnum = device.devnum()?;
    let number = DeviceNumber::new(kind, rustix::fs::major(devnum), rustix::fs::minor(devnum))?;
    let properties = properties(device);
    let token = |name: &str| properties.get(name).and_then(|value| value.parse().ok());
    Some(Device {
        incarnation: Incarnation {
            initialized_usec: token("USEC_INITIALIZED"),
            disk_sequence: token("DISKSEQ"),
            plug: inode,
        },
        devnode: device.devnode()?.to_str()?.to_owned(),
        owner: owner(device.devnode()?, kind, devnum, &properties),
        attributes: attributes(device, &asked.attributes),
        parents: parents(device, &asked.parent_attributes),
        devpath: devpath.clone(),
        subsystem,
        number,
        properties,
    })
}

/// Mode and owner of the host's node. Where the host's `/dev` is not to be seen, nobody but root has the device.
fn owner(node: &Path, kind: DeviceKind, devnum: libc::dev_t, properties: &Properties) -> NodeOwner {
    let is_it = |found: &fs::Metadata| {
        let file_type = found.file_type();
        let of_kind = if kind == DeviceKind::Block { file_type.is_block_device() } else { file_type.is_char_device() };
        of_kind && found.rdev() == devnum
    };
    match fs::symlink_metadata(node) {
        Ok(found) if is_it(&found) => NodeOwner { mode: found.mode() & 0o777, uid: found.uid(), gid: found.gid() },
        _ => {
            let mode = properties.get("DEVMODE").and_then(|mode| u32::from_str_radix(mode, 8).ok());
            NodeOwner { mode: mode.unwrap_or(0o600) & 0o777, uid: 0, gid: 0 }
        }
    }
}

/// Whether the database's entry was written before the kernel made the device's node. Of what cannot be seen nothing is
/// said.
fn is_outdated(device: &Device) -> bool {
    let kind = if device.number.is_block() { 'b' } else { 'c' };
    let entry = format!("{DATABASE}/{kind}{}:{}", device.number.major(), device.number.minor());
    let (Ok(entry), Ok(node)) = (fs::metadata(entry), fs::symlink_metadata(&device.devnode)) else { return false };
    let number = rustix::fs::makedev(device.number.major(), device.number.minor());
    // Without a time of birth: the others are set at birth too, but use may move either on.
    let born = node.created().or_else(|_| Ok::<_, io::Error>(node.modified()?.min(changed(&node))));
    match (entry.modified(), born) {
        (Ok(written), Ok(born)) => node.rdev() == number && written < born,
        _ => false,
    }
}

/// When a file's owner, mode or name was changed last.
fn changed(file: &fs::Metadata) -> SystemTime {
    let seconds = Duration::from_secs(file.ctime().max(0).cast_unsigned());
    SystemTime::UNIX_EPOCH + seconds + Duration::from_nanos(file.ctime_nsec().max(0).cast_unsigned())
}

fn parents(device: &udev::Device, asked: &BTreeSet<String>) -> Vec<Parent> {
    let above = std::iter::successors(device.parent(), udev::Device::parent);
    above
        .filter_map(|parent| {
            Some(Parent {
                devpath: DevPath::from(text(parent.devpath())?),
                subsystem: parent.subsystem().and_then(text).map(str::to_owned),
                properties: properties(&parent),
                attributes: attributes(&parent, asked),
            })
        })
        .collect()
}

fn properties(device: &udev::Device) -> Properties {
    let pairs = device.properties();
    pairs.map(|pair| (lossy(pair.name()), lossy(pair.value()))).collect()
}

fn attributes(device: &udev::Device, asked: &BTreeSet<String>) -> Attributes {
    let value = |name: &String| {
        let value = device.attribute_value(name)?;
        Some((name.clone(), lossy(value).trim_end_matches('\n').to_owned()))
    };
    asked.iter().filter_map(value).collect()
}

/// What a device says of itself need not be text; what it is compared with is.
fn lossy(value: &OsStr) -> String {
    value.to_string_lossy().into_owned()
}

fn text(value: &OsStr) -> Option<&str> {
    value.to_str()
}

/// A device that leaves while it is looked at is absent, whatever the call says.
fn is_absence(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENODEV | libc::ENXIO | libc::ENOTDIR))
}
