//! What has come undone: found and repaired.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
};

use super::{
    super::{
        Drift,
        error::EnforcerError,
        guard::Guard,
        layout::Pins,
        link::PinnedLink,
        load::{self, DeviceDelResult},
        sys::{self, MapInfo, ProgramInfo},
    },
    KernelEnforcer,
};

impl KernelEnforcer {
    pub(super) fn check_link(&mut self, drifts: &mut Vec<Drift>) -> Result<(), EnforcerError> {
        let Ok(present) = self.root.cgroup(&self.config.ancestor) else {
            drifts.push(Drift::AncestorGone(self.config.ancestor.clone()));
            return Ok(());
        };
        let replaced = present.id() != self.ancestor.id();
        let Some(link) = &self.link else { return Ok(()) };
        let info = link.info()?;
        let program = self.programs.device.as_fd();
        if replaced || info.cgroup != present.id() {
            drifts.push(if replaced {
                Drift::AncestorReplaced(self.config.ancestor.clone())
            } else {
                Drift::LinkDetached
            });
            self.link = Some(PinnedLink::create(program, &present, &self.pins.link())?);
            self.ancestor = present;
            self.refresh_state();
            return Ok(());
        }
        if info.program != self.program_id {
            drifts.push(Drift::ProgramReplaced(info.program));
            link.update(program, &present)?;
        }
        if !link.is_pinned()? {
            drifts.push(Drift::PinLost);
            link.pin_again()?;
        }
        Ok(())
    }

    pub(super) fn check_maps(&mut self, drifts: &mut Vec<Drift>) -> Result<(), EnforcerError> {
        self.pins.restore()?;
        let id = |map: BorrowedFd<'_>| sys::info::<MapInfo>(map).map(|info| info.id);
        for (name, map) in self.maps.by_name() {
            let path = self.pins.map(name);
            let pinned = match sys::pinned(&path) {
                Ok(pinned) => id(pinned.as_fd()).map_err(EnforcerError::call("BPF_OBJ_GET_INFO_BY_FD"))?,
                Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
                Err(error) => return Err(EnforcerError::Call("BPF_OBJ_GET", error)),
            };
            if pinned == id(map).map_err(EnforcerError::call("BPF_OBJ_GET_INFO_BY_FD"))? {
                continue;
            }
            drifts.push(Drift::MapPinLost(name));
            if pinned != 0 {
                // The next agent would take it for ours.
                std::fs::remove_file(&path).map_err(|error| EnforcerError::Folder(path.clone(), error))?;
            }
            sys::pin(map, &path).map_err(EnforcerError::call("BPF_OBJ_PIN"))?;
        }
        Ok(())
    }

    pub(super) fn check_guards(&mut self, drifts: &mut Vec<Drift>) -> Result<(), EnforcerError> {
        let device_del_lost = self.device_del_pinned && !self.pins.device_del().exists();
        let guard_died = !self.guard.is_alive();
        if !guard_died && !device_del_lost {
            return Ok(());
        }
        // The program array that the guard held is empty for good. New programs get a new one.
        let mut loaded = load::load(&self.config.limits, Some(&self.pins), self.config.unguarded)?;
        if device_del_lost {
            drifts.push(Drift::DeviceDelGuardLost);
        }
        self.device_del_pinned = pin_device_del(loaded.device_del, &self.pins)?;
        if guard_died {
            drifts.push(Drift::GuardDied);
        }
        let fresh = Guard::start(&self.config, &mut loaded.programs)?;
        let _before = std::mem::replace(&mut self.guard, fresh);
        let info: ProgramInfo =
            sys::info(loaded.programs.device.as_fd()).map_err(EnforcerError::call("BPF_OBJ_GET_INFO_BY_FD"))?;
        // The same maps.
        self.maps = loaded.maps;
        self.programs = loaded.programs;
        self.program_id = info.id;
        self.refresh_state();
        if self.link.is_some() {
            self.activate()?;
        }
        Ok(())
    }
}

/// Pins the link of the program at `device_del` in the place of an older one. Returns whether there is one.
pub(super) fn pin_device_del(link: DeviceDelResult, pins: &Pins) -> Result<bool, EnforcerError> {
    let link = match link {
        Ok(link) => link,
        Err(reason) => {
            tracing::info!(reason, "the kernel takes no program at device_del; the socket filter guards alone");
            return Ok(pins.device_del().exists());
        }
    };
    // A bpf file system takes no names with dots.
    let fresh = pins.device_del().with_file_name("device_del_new");
    let failed = |error| EnforcerError::Folder(fresh.clone(), error);
    match std::fs::remove_file(&fresh) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    link.pin(&fresh).map_err(|error| failed(io::Error::other(error)))?;
    std::fs::rename(&fresh, pins.device_del()).map_err(failed)?;
    Ok(true)
}
