//! Loads the eBPF object: maps, pinned or not, and programs.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
    sync::atomic::AtomicU64,
};

use aya::{
    Btf, Ebpf, EbpfLoader,
    maps::{Map, ProgramArray},
    programs::{CgroupDevice, FEntry, ProgramError, SocketFilter, links::FdLink},
};
use devgate_abi::{CgroupEntry, ContainerSlot, DeviceNumber, State, map, program};

use super::{
    btf::KernelTypes,
    config::{Limits, Unguarded},
    error::EnforcerError,
    layout::{Pins, map_specs},
    mapped::MappedArray,
    rules::RuleTable,
    table::Table,
};
use crate::object::OBJECT;

const KERNEL_TYPES: &str = "/sys/kernel/btf/vmlinux";

/// The maps.
pub(super) struct Maps {
    pub(super) state: MappedArray<State>,
    pub(super) cgroups: Table<u64, CgroupEntry>,
    pub(super) containers: MappedArray<ContainerSlot>,
    pub(super) rules: RuleTable,
    pub(super) epoch_slots: Table<DeviceNumber, u32>,
    pub(super) epochs: MappedArray<AtomicU64>,
    pub(super) audit: OwnedFd,
}

impl Maps {
    /// The one element of the state array.
    pub(super) fn state(&self) -> &State {
        &self.state[0]
    }

    /// The descriptor of each pinned map, by name.
    pub(super) fn by_name(&self) -> [(&'static str, BorrowedFd<'_>); 8] {
        [
            (map::STATE, self.state.as_fd()),
            (map::CGROUPS, self.cgroups.as_fd()),
            (map::CONTAINERS, self.containers.as_fd()),
            (map::RULES, self.rules.map_fd()),
            (map::RULE_PLACES, self.rules.places_fd()),
            (map::EPOCH_SLOTS, self.epoch_slots.as_fd()),
            (map::EPOCHS, self.epochs.as_fd()),
            (map::AUDIT, self.audit.as_fd()),
        ]
    }
}

/// The programs, loaded and not yet attached.
pub(super) struct Programs {
    /// The device program.
    pub(super) device: OwnedFd,
    /// The socket filter.
    pub(super) uevent: OwnedFd,
    /// The program array that leads from the device program to its twin. It empties when its last holder ends, so it is
    /// given to the guard and kept by nobody else. There is none where grants hold without a guard: nothing leads there,
    /// and to have the twin verified takes long.
    pub(super) guarded: Option<OwnedFd>,
}

/// Why the program at `device_del` is not in place.
pub(super) type DeviceDelResult = Result<FdLink, String>;

/// An object that has been loaded.
pub(super) struct Loaded {
    pub(super) maps: Maps,
    pub(super) programs: Programs,
    /// The program at `device_del`, attached, or why the kernel does not take it.
    pub(super) device_del: DeviceDelResult,
}

/// Loads the object. With pins the maps that are pinned already are used, after a comparison, and the others are pinned;
/// without, all are new and private, and what needs a guard process and the program at `device_del` are left out: to have
/// a program verified takes long.
pub(super) fn load(limits: &Limits, pins: Option<&Pins>, unguarded: Unguarded) -> Result<Loaded, EnforcerError> {
    if OBJECT.is_empty() {
        return Err(EnforcerError::NoObject);
    }
    let specs = map_specs(limits);
    let mut loader = EbpfLoader::new();
    for spec in &specs {
        loader.map_max_entries(spec.name, spec.max_entries);
    }
    let offsets = match pins {
        Some(pins) => {
            pins.compare(&specs)?;
            for spec in &specs {
                loader.map_pin_path(spec.name, pins.map(spec.name));
            }
            DeviceOffsets::read()
        }
        None => Err("not asked for".to_owned()),
    };
    if let Ok(offsets) = &offsets {
        loader
            .override_global("DEVICE_DEVT", &offsets.devt, true)
            .override_global("DEVICE_CLASS", &offsets.class, true)
            .override_global("CLASS_NAME", &offsets.class_name, true);
    }
    let mut ebpf = loader.load(OBJECT)?;
    let programs = load_programs(&mut ebpf, pins.is_some() && unguarded == Unguarded::Deny)?;
    let device_del = offsets.and_then(|_| attach_device_del(&mut ebpf));
    Ok(Loaded { maps: take_maps(&mut ebpf)?, programs, device_del })
}

/// Offsets in the running kernel's structures.
struct DeviceOffsets {
    devt: u32,
    class: u32,
    class_name: u32,
}

impl DeviceOffsets {
    fn read() -> Result<Self, String> {
        let types = KernelTypes::read(Path::new(KERNEL_TYPES)).map_err(|error| format!("{KERNEL_TYPES}: {error}"))?;
        let find = |structure, field| {
            types.offset_of(structure, field).ok_or_else(|| format!("{KERNEL_TYPES} has no {structure}.{field}"))
        };
        Ok(Self { devt: find("device", "devt")?, class: find("device", "class")?, class_name: find("class", "name")? })
    }
}

fn load_programs(ebpf: &mut Ebpf, with_guarded: bool) -> Result<Programs, EnforcerError> {
    let device = load_device_program(ebpf, program::DEVICE)?;
    let uevent: &mut SocketFilter = typed(ebpf, program::UEVENT_GUARD)?;
    uevent.load().map_err(refused(program::UEVENT_GUARD))?;
    let uevent = duplicate(uevent.fd().map_err(refused(program::UEVENT_GUARD))?.as_fd())?;
    let guarded = if with_guarded { Some(load_guarded(ebpf)?) } else { None };
    Ok(Programs { device, uevent, guarded })
}

/// Loads the twin of the device program, and makes the array that leads to it.
fn load_guarded(ebpf: &mut Ebpf) -> Result<OwnedFd, EnforcerError> {
    load_device_program(ebpf, program::DEVICE_GUARDED)?;
    let alive: &CgroupDevice = ebpf
        .program(program::DEVICE_GUARDED)
        .ok_or(EnforcerError::NoObject)?
        .try_into()
        .map_err(refused(program::DEVICE_GUARDED))?;
    let alive =
        alive.fd().map_err(refused(program::DEVICE_GUARDED))?.try_clone().map_err(EnforcerError::call("dup"))?;
    let map = ebpf.take_map(map::GUARDED).ok_or(EnforcerError::NoObject)?;
    let guarded = descriptor(&map)?;
    let mut array = ProgramArray::try_from(map).map_err(|error| EnforcerError::Map(map::GUARDED, error))?;
    array.set(0, &alive, 0).map_err(|error| EnforcerError::Map(map::GUARDED, error))?;
    Ok(guarded)
}

fn load_device_program(ebpf: &mut Ebpf, name: &'static str) -> Result<OwnedFd, EnforcerError> {
    let program: &mut CgroupDevice = typed(ebpf, name)?;
    program.load().map_err(refused(name))?;
    duplicate(program.fd().map_err(refused(name))?.as_fd())
}

/// Attaches the program at `device_del`. Kernels without a function tracer refuse it.
fn attach_device_del(ebpf: &mut Ebpf) -> DeviceDelResult {
    let text = |error: &dyn std::error::Error| {
        let mut text = error.to_string();
        let mut source = error.source();
        while let Some(error) = source {
            text = format!("{text}: {error}");
            source = error.source();
        }
        text
    };
    let types = Btf::from_sys_fs().map_err(|error| text(&error))?;
    let program: &mut FEntry = typed(ebpf, program::DEVICE_DEL_GUARD).map_err(|error| text(&error))?;
    program.load("device_del", &types).map_err(|error| text(&error))?;
    let id = program.attach().map_err(|error| text(&error))?;
    program.take_link(id).map(FdLink::from).map_err(|error| text(&error))
}

fn take_maps(ebpf: &mut Ebpf) -> Result<Maps, EnforcerError> {
    let mut take = |name| ebpf.take_map(name).ok_or(EnforcerError::NoObject);
    Ok(Maps {
        state: mapped(&take(map::STATE)?)?,
        cgroups: Table::new(map::CGROUPS, take(map::CGROUPS)?)?,
        containers: mapped(&take(map::CONTAINERS)?)?,
        rules: RuleTable::new(Table::new(map::RULES, take(map::RULES)?)?, descriptor(&take(map::RULE_PLACES)?)?)?,
        epoch_slots: Table::new(map::EPOCH_SLOTS, take(map::EPOCH_SLOTS)?)?,
        epochs: mapped(&take(map::EPOCHS)?)?,
        audit: descriptor(&take(map::AUDIT)?)?,
    })
}

fn descriptor(map: &Map) -> Result<OwnedFd, EnforcerError> {
    duplicate(map_fd(map).map_err(EnforcerError::call("dup"))?)
}

fn mapped<T: devgate_abi::Plain>(map: &Map) -> Result<MappedArray<T>, EnforcerError> {
    map_fd(map).and_then(MappedArray::new).map_err(EnforcerError::call("mapping an array"))
}

/// The descriptor of a map of a type that we use.
pub(super) fn map_fd(map: &Map) -> io::Result<BorrowedFd<'_>> {
    match map {
        Map::Array(data) | Map::HashMap(data) | Map::RingBuf(data) | Map::ProgramArray(data) => Ok(data.fd().as_fd()),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "a map of an unexpected type")),
    }
}

fn typed<'a, P>(ebpf: &'a mut Ebpf, name: &'static str) -> Result<&'a mut P, EnforcerError>
where
    &'a mut P: TryFrom<&'a mut aya::programs::Program, Error = ProgramError>,
{
    ebpf.program_mut(name).ok_or(EnforcerError::NoObject)?.try_into().map_err(refused(name))
}

fn refused(name: &'static str) -> impl FnOnce(ProgramError) -> EnforcerError {
    move |error| EnforcerError::Program(name, error)
}

fn duplicate(fd: BorrowedFd<'_>) -> Result<OwnedFd, EnforcerError> {
    fd.try_clone_to_owned().map_err(EnforcerError::call("dup"))
}
