//! How machines are started: QEMU's command line, and its process.

use std::{
    fs::File,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use anyhow::{Context as _, Result};
use devgate_endpoint::PORT;

use crate::{
    accelerator::Accelerator,
    image::{Image, Kernel},
    program,
};

pub(crate) const PROGRAM: &str = "qemu-system-x86_64";

/// A board with nothing on it.
pub(crate) const BARE: &[&str] = &["-M", "q35", "-nodefaults", "-no-user-config", "-display", "none"];

/// The controller that devices are plugged into, and how many ports of each kind it has: USB 2 first, then USB 3.
pub(crate) const USB: &str = "xhci";
const USB_CONTROLLER: &str = "qemu-xhci,id=xhci,p2=8,p3=8";

/// Mebibytes.
const MEMORY: &str = "1024";

/// What slows an emulated machine down and is of no use in it.
const KERNEL_OPTIONS: &str = "console=ttyS0 panic=-1 mitigations=off audit=0 init_on_alloc=0 nokaslr loglevel=4";

/// A process of QEMU. It is killed with this value.
#[derive(Debug)]
pub(crate) struct Qemu(Child);

/// Where a machine's sockets are, and its console is written to.
#[derive(Clone, Debug)]
pub(crate) struct Places {
    pub(crate) endpoint: PathBuf,
    pub(crate) monitor: PathBuf,
    pub(crate) console: PathBuf,
}

impl Places {
    /// Sockets in `folder`, whose path must be short.
    pub(crate) fn new(folder: &Path, console: PathBuf) -> Self {
        Self { endpoint: folder.join("endpoint"), monitor: folder.join("monitor"), console }
    }
}

impl Qemu {
    pub(crate) fn spawn(command: &mut Command) -> Result<Self> {
        command.spawn().map(Self).with_context(|| format!("cannot run {PROGRAM}"))
    }

    /// Whether the process lives.
    pub(crate) fn runs(&mut self) -> Result<bool> {
        Ok(self.0.try_wait()?.is_none())
    }

    /// Boots from a disk, which is written to.
    pub(crate) fn boot(kernel: &Kernel, disk: &Path, accelerator: Accelerator, places: &Places) -> Result<Self> {
        let mut command = machine(kernel, disk, accelerator, places)?;
        Self::spawn(&mut command)
    }

    /// Goes on where an image was saved, on a disk of which only a copy is written to.
    pub(crate) fn restore(image: &Image, places: &Places) -> Result<Self> {
        let mut command = machine(&image.kernel, &image.disk, image.accelerator, places)?;
        command
            .arg("-snapshot")
            .args(["-incoming", "exec:cat \"$DEVGATE_MEMORY\""])
            .env("DEVGATE_MEMORY", &image.memory);
        Self::spawn(&mut command)
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        // Both fail only if it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The version of the program. What one version has saved, another need not understand.
pub(crate) fn version() -> Result<String> {
    let text = program::text(Command::new(PROGRAM).arg("-version"))?;
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

/// The arguments that say what is booted.
pub(crate) fn boot(kernel: &Kernel, options: &str) -> [std::ffi::OsString; 6] {
    let options = format!("{KERNEL_OPTIONS} {options}");
    [
        "-kernel".into(),
        (&kernel.elf).into(),
        "-initrd".into(),
        (&kernel.initrd).into(),
        "-append".into(),
        options.into(),
    ]
}

/// The same machine whether it is booted or restored: QEMU insists on it.
fn machine(kernel: &Kernel, disk: &Path, accelerator: Accelerator, places: &Places) -> Result<Command> {
    let log = File::create(places.console.with_extension("qemu.log"))?;
    let mut command = Command::new(PROGRAM);
    command
        .args(BARE)
        .args(accelerator.arguments())
        .args(["-smp", "2", "-m", MEMORY])
        .args(boot(kernel, ""))
        .args(["-drive", &format!("if=none,id=disk,format=raw,file={}", escaped(disk))])
        .args(["-device", "virtio-blk-pci,drive=disk"])
        .args(["-device", "virtio-rng-pci", "-device", USB_CONTROLLER, "-device", "virtio-serial-pci"])
        // Goes on only when the test is at the other end.
        .args(["-chardev", &format!("socket,id=endpoint,server=on,wait=off,path={}", escaped(&places.endpoint))])
        .args(["-device", &format!("virtserialport,chardev=endpoint,name={PORT}")])
        .args(["-qmp", &format!("unix:{},server=on,wait=off", escaped(&places.monitor))])
        .args(["-serial", &format!("file:{}", escaped(&places.console))])
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log);
    Ok(command)
}

/// A path as a value among QEMU's options.
pub(crate) fn escaped(path: &Path) -> String {
    path.to_string_lossy().replace(',', ",,")
}
