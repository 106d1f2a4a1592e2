//! The containers.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use devgate_abi::Access;

use super::{EVERYWHERE, EVERYWHERE_NAME, SENSOR, SENSOR_NAME};
use crate::{
    containerd::Container,
    machine::{Audit, Insider, Machine, WISH},
    prober::Held,
    stopwatch::{Ear, Group, Mounts},
    wait::wait_until,
};

/// Classes beside the two that are measured, so that there are ten.
const OTHER_CLASSES: usize = 8;

/// The running containers, those who look from inside, and who hears of devices.
pub(super) struct Fleet<'a> {
    pub(super) machine: &'a Machine,
    pub(super) kernel: Ear,
    pub(super) udev: Ear,
    pub(super) audit: Audit,
    pub(super) members: Vec<Member<'a>>,
}

/// A container and who looks from inside. The first one of the fleet holds the device.
pub(super) struct Member<'a> {
    pub(super) container: Container<'a>,
    pub(super) inside: Insider,
    pub(super) mounts: Mounts,
}

impl Member<'_> {
    /// A process in it opens the path, and keeps it open.
    pub(super) fn open(&mut self, path: &str) -> Option<(Instant, Held)> {
        let held = self.inside.hold(path, Access::READ_WRITE).ok()?;
        Some((Instant::now(), held))
    }

    /// Waits until a process in it has opened the path.
    pub(super) fn opened(&mut self, path: &str) -> Result<Instant> {
        let Self { inside, mounts, .. } = self;
        let open = || Some((inside.hold(path, Access::READ_WRITE).ok()?, Instant::now()));
        let (held, at) = mounts.wait("the device opens", open)?;
        self.inside.close(held);
        Ok(at)
    }

    /// Waits until there is nothing at the path.
    pub(super) fn gone(&self, path: &str) -> Result<Instant> {
        self.mounts.wait("the node is gone", || self.has_no_device(path).then_some(()))?;
        wait_until("nothing is left of the node", || matches!(self.inside.number(path), Ok(None)));
        Ok(Instant::now())
    }

    /// Whether there is no device at the path any more; an empty file may be there for a moment.
    fn has_no_device(&self, path: &str) -> bool {
        !matches!(self.inside.number(path), Ok(Some(_)))
    }
}

impl<'a> Fleet<'a> {
    /// Without containers.
    pub(super) fn new(machine: &'a Machine) -> Result<Self> {
        let network = machine.udev().network();
        let (kernel, udev) = (Ear::new(network, Group::Kernel)?, Ear::new(network, Group::Udev)?);
        Ok(Self { machine, kernel, udev, audit: machine.audit_from_now()?, members: Vec::new() })
    }

    /// Starts containers until there are so many.
    pub(super) fn grow(&mut self, count: usize) -> Result<()> {
        let ids: Vec<_> = (self.members.len()..count).map(|index| format!("c{index}")).collect();
        let holder = ids.iter().any(|id| id == "c0");
        ensure!(holder == self.members.is_empty(), "the first container holds the device");
        let containerd = self.machine.containerd();
        let mut started = Vec::new();
        if holder {
            started.push(containerd.container("c0").label(WISH, "sensor,everywhere").run()?);
        }
        let others: Vec<_> = ids.iter().filter(|id| *id != "c0").cloned().collect();
        started.extend(containerd.run_all(&others, |container| container.label(WISH, "everywhere"))?);
        let pids = containerd.pids()?;
        for container in started {
            let pid = *pids.get(container.id()).with_context(|| format!("{} does not run", container.id()))?;
            let inside = self.machine.insider_of(&containerd.cgroup().existing(container.id())?, pid)?;
            self.members.push(Member { container, inside, mounts: Mounts::of(pid)? });
        }
        self.members.sort_by_key(|member| member.container.id() != "c0");
        Ok(())
    }

    /// How the figures of this size are called.
    pub(super) fn figure(&self, kind: &str) -> String {
        format!("hotplug.{kind}.{}", self.members.len())
    }
}

/// Ten classes: of the device of one container, of the device of all, and of others that nobody has.
pub(super) fn write_classes(machine: &Machine) -> Result<()> {
    let class = |name: &str, serial: &str, path: &str| {
        format!(
            "apiVersion: devgate.dev/v1alpha1\nkind: DeviceClass\nmetadata: {{ name: {name} }}\nspec:\n  match: [ {{ \
             subsystem: macvtap, properties: {{ ID_VENDOR_ID: \"0403\", ID_SERIAL_SHORT: {serial} }} }} ]\n  \
             allocation: {{ kind: All }}\n  path: {path}\n"
        )
    };
    machine.write_class("sensor.yaml", &class("sensor", &format!("mvt{SENSOR_NAME}"), SENSOR))?;
    machine.write_class("everywhere.yaml", &class("everywhere", &format!("mvt{EVERYWHERE_NAME}"), EVERYWHERE))?;
    for index in 0..OTHER_CLASSES {
        let name = format!("other{index}");
        machine.write_class(
            &format!("{name}.yaml"),
            &class(&name, &format!("\"mvt1{index}?\""), &format!("/dev/{name}")),
        )?;
    }
    Ok(())
}
