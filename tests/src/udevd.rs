//! A machine of its own as far as udev goes: a network namespace for the uevents, and a mount namespace with its own `/run`,
//! `/dev` and `/sys`, with udevd in it and devices to plug.
//!
//! Uevents of devices that belong to no network namespace are heard in it too: those of the host's disks and terminals.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail};
use devgate::sources::udev::{Database, UdevConfig};
use devgate_abi::DeviceNumber;
use devgate_core::DevPath;
use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

use crate::network::{Network, Taps};
use crate::wait::wait_until;

/// Gives macvtap devices what udev finds out of a USB device, a link and an owner. The serial number is the name of the
/// network interface, so it tells which device it is.
pub const USB_LIKE: &str = r#"SUBSYSTEM=="macvtap", ENV{ID_BUS}="usb", ENV{ID_VENDOR_ID}="0403", ENV{ID_MODEL_ID}="6001", ENV{ID_MODEL}="Sensor", IMPORT{program}="/bin/sh -c 'd=$${DEVPATH%%/macvtap/*}; echo ID_SERIAL_SHORT=$${d##*/}; echo ID_SERIAL=ACME_Sensor_$${d##*/}'", SYMLINK+="serial/by-id/usb-$env{ID_SERIAL}", GROUP="20", MODE="0660"
"#;

/// What makes the mount namespace, run by `sh` in it. `$1` is the program that stays.
const SET_UP: &str = r#"set -e
mount --make-rprivate /
mount -t tmpfs -o mode=755 run /run
mkdir -p /run/udev/rules.d /run/dev/upper /run/dev/work /run/dev/mnt
mount -t overlay -o lowerdir=/dev,upperdir=/run/dev/upper,workdir=/run/dev/work dev /run/dev/mnt
mount --move /run/dev/mnt /dev
mount -t sysfs sys /sys
printf %s "$RULES" > /run/udev/rules.d/70-devgate-test.rules
: > /run/ready
exec "$@"
"#;

/// A machine of its own as far as udev goes. It is gone with the value.
#[derive(Debug)]
pub struct UdevHost {
    process: Child,
    taps: Taps,
    database: Database,
}

impl UdevHost {
    /// With udevd, and [`USB_LIKE`] as its one rule beside the system's own.
    pub fn new() -> Result<Self> {
        let host = Self::start(&[udevd()?.as_os_str().as_bytes()], Database::Required)?;
        let control = host.root().join("run/udev/control");
        wait_until("udevd is ready", || control.exists());
        Ok(host)
    }

    /// Without udevd.
    pub fn without_udev() -> Result<Self> {
        Self::start(&[b"sleep", b"infinity"], Database::None)
    }

    fn start(program: &[&[u8]], database: Database) -> Result<Self> {
        let taps = Taps::new()?;
        let namespace = fs::File::open(taps.network().path()).context("the namespace of the devices")?;
        let parent = rustix::process::getpid();
        let enter = move || {
            // It must not outlive whoever started it, however that ends.
            set_parent_process_death_signal(Some(Signal::KILL))?;
            if rustix::process::getppid() != Some(parent) {
                return Err(rustix::io::Errno::SRCH.into());
            }
            move_into_link_name_space(std::os::fd::AsFd::as_fd(&namespace), Some(LinkNameSpaceType::Network))?;
            // SAFETY: the child has one thread, and descriptors of its own.
            unsafe { unshare_unsafe(UnshareFlags::NEWNS) }?;
            Ok(())
        };
        let mut command = Command::new("sh");
        command.args(["-c", SET_UP, "sh"]);
        command.args(program.iter().map(|word| std::ffi::OsStr::from_bytes(word)));
        command.env("RULES", USB_LIKE).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        // SAFETY: only system calls are made between fork and exec.
        unsafe { command.pre_exec(enter) };
        let process = command.spawn().context("cannot start a machine for udev")?;
        let mut host = Self { process, taps, database };
        let ready = host.root().join("run/ready");
        wait_until("the namespaces of udev are set up", || {
            ready.exists() || !matches!(host.process.try_wait(), Ok(None))
        });
        if let Some(status) = host.process.try_wait()? {
            let mut said = String::new();
            if let Some(mut stderr) = host.process.stderr.take() {
                std::io::Read::read_to_string(&mut stderr, &mut said)?;
            }
            bail!("the machine for udev ended with {status}: {}", said.trim());
        }
        Ok(host)
    }

    /// The devices to plug, and the network namespace.
    pub fn taps(&self) -> &Taps {
        &self.taps
    }

    /// The network namespace.
    pub fn network(&self) -> &Network {
        self.taps.network()
    }

    /// A path by which the mount namespace can be entered.
    pub fn mount_namespace(&self) -> PathBuf {
        format!("/proc/{}/ns/mnt", self.process.id()).into()
    }

    /// Where all that is mounted in it can be seen.
    pub fn root(&self) -> PathBuf {
        format!("/proc/{}/root", self.process.id()).into()
    }

    /// How the agent finds the devices in it.
    pub fn config(&self) -> UdevConfig {
        UdevConfig {
            net_namespace: self.network().path(),
            mount_namespace: Some(self.mount_namespace()),
            database: self.database,
            ..UdevConfig::default()
        }
    }

    /// Where the device that was plugged with a name and a number is in sysfs.
    pub fn devpath(&self, name: u8, number: DeviceNumber) -> Result<DevPath> {
        let link = self.root().join(format!("sys/dev/char/{}:{}", number.major(), number.minor()));
        let target = fs::read_link(&link).with_context(|| format!("device {name} is not there"))?;
        let path = target.to_str().context("its path is no text")?.trim_start_matches("../");
        Ok(DevPath::from(format!("/{path}").as_str()))
    }

    /// Lets the kernel send a uevent of a device, such as `change`.
    pub fn trigger(&self, devpath: &DevPath, action: &str) -> Result<()> {
        let file = self.root().join(format!("sys{devpath}/uevent"));
        fs::write(&file, action).with_context(|| format!("cannot write {action} to {}", file.display()))
    }

    /// Waits until udevd has handled everything that the kernel has sent.
    pub fn settle(&self) -> Result<()> {
        self.run("udevadm", &["settle", "--timeout=30"])
    }

    /// Lets udevd do nothing until [`resume`](Self::resume).
    pub fn pause(&self) -> Result<()> {
        self.signal(Signal::STOP)?;
        let stat = format!("/proc/{}/stat", self.process.id());
        wait_until("udevd stands still", || fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") T ")));
        Ok(())
    }

    /// Lets udevd go on.
    pub fn resume(&self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    /// Runs a program in it.
    pub fn run(&self, program: &str, arguments: &[&str]) -> Result<()> {
        let mut command = Command::new("nsenter");
        command.arg(format!("--mount={}", self.mount_namespace().display()));
        command.arg(format!("--net={}", self.network().path().display()));
        let output = command.arg(program).args(arguments).output()?;
        if !output.status.success() {
            bail!("{program}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(())
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let pid = Pid::from_raw(self.process.id().cast_signed()).context("it has a number")?;
        Ok(kill_process(pid, signal)?)
    }
}

impl Drop for UdevHost {
    fn drop(&mut self) {
        // It fails only if the process has ended and been waited for. Its workers end when it does.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn udevd() -> Result<PathBuf> {
    let places = ["/lib/systemd/systemd-udevd", "/usr/lib/systemd/systemd-udevd", "/sbin/udevd"];
    let found = places.iter().map(Path::new).find(|path| path.exists());
    found.map(Path::to_owned).context("there is no systemd-udevd here: install the package udev")
}
