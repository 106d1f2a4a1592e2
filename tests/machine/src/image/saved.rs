//! Starts a machine from its disk, waits until it is idle, and saves it.

use std::{fs, path::Path};

use anyhow::{Context as _, Result};
use devgate_tests::containerd;

use super::{Kernel, Key};
use crate::{
    accelerator::Accelerator,
    machine::Running,
    qemu::{self, Places, Qemu},
    row::Row,
};

pub(super) const DISK: &str = "disk";
pub(super) const MEMORY: &str = "memory";

/// Where containerd keeps what it is given for the tests.
const ARCHIVE: &str = "/run/image.tar";

pub(super) fn key(row: Row) -> Result<Key> {
    Ok(Key::new(row.name)
        .add(qemu::version()?)
        .add(include_str!("saved.rs"))
        .add(include_str!("../qemu.rs"))
        .add(include_str!("../accelerator.rs")))
}

/// Saves a machine on the disk in `folder`, with containerd up and an image in it.
pub(super) fn build(kernel: &Kernel, accelerator: Accelerator, folder: &Path) -> Result<()> {
    let sockets = tempfile::Builder::new().prefix("devgate-test-boot").tempdir()?;
    let places = Places::new(sockets.path(), sockets.path().join("console.log"));
    let archive = sockets.path().join("image.tar");
    containerd::write_image(&archive, containerd::PLAIN, &[])?;
    let qemu = Qemu::boot(kernel, &folder.join(DISK), accelerator, &places)?;
    let result = settle_and_save(qemu, &places, &archive, &folder.join(MEMORY));
    result.with_context(|| format!("console:\n{}", fs::read_to_string(&places.console).unwrap_or_default()))
}

fn settle_and_save(qemu: Qemu, places: &Places, archive: &Path, memory: &Path) -> Result<()> {
    let mut machine = Running::connect(qemu, places)?;
    // It is degraded where a unit has failed: that is seen by those who need the unit.
    machine.run("systemctl is-system-running --wait || true")?;
    machine.put(ARCHIVE, 0o644, &fs::read(archive)?)?;
    machine.run(&format!(
        "systemctl start containerd
         ctr images import {ARCHIVE}
         rm {ARCHIVE}
         udevadm settle
         sync"
    ))?;
    machine.monitor.save(memory)
}
