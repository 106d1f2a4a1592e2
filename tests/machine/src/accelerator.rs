//! Whether the processor can help to run machines.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::Result;

use crate::{
    image::Kernel,
    qemu::{self, Qemu},
};

/// What runs the code of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Accelerator {
    /// The processor itself.
    Kvm,
    /// QEMU, which translates it.
    Tcg,
}

/// A machine that does not start within this time never does. It takes less than a second where the processor helps.
const PATIENCE: Duration = Duration::from_secs(15);

impl Accelerator {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Kvm => "kvm",
            Self::Tcg => "tcg",
        }
    }

    /// The arguments of QEMU.
    pub(crate) fn arguments(self) -> [&'static str; 4] {
        match self {
            Self::Kvm => ["-accel", "kvm", "-cpu", "host"],
            Self::Tcg => ["-accel", "tcg,thread=multi,tb-size=512", "-cpu", "max"],
        }
    }

    /// The one that is called so.
    pub(crate) fn named(name: &str) -> Option<Self> {
        [Self::Kvm, Self::Tcg].into_iter().find(|accelerator| accelerator.name() == name)
    }

    /// Finds out what there is. That there is a `/dev/kvm` says nothing: on some hosts machines hang with it.
    pub(crate) fn probe(kernel: &Kernel) -> Result<Self> {
        let kvm = Path::new("/dev/kvm").exists() && Self::starts_with_kvm(kernel)?;
        Ok(if kvm { Self::Kvm } else { Self::Tcg })
    }

    fn starts_with_kvm(kernel: &Kernel) -> Result<bool> {
        let folder = tempfile::Builder::new().prefix("devgate-test-kvm").tempdir()?;
        let console = folder.path().join("console.log");
        let mut command = Command::new(qemu::PROGRAM);
        command
            .args(qemu::BARE)
            .args(Self::Kvm.arguments())
            .args(["-m", "256", "-no-reboot"])
            .args(qemu::boot(kernel, "devgate.probe"))
            .arg("-serial")
            .arg(format!("file:{}", console.display()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let mut qemu = Qemu::spawn(&mut command)?;
        let deadline = Instant::now() + PATIENCE;
        let mut alive = false;
        while !alive && qemu.runs()? && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(50));
            alive = fs::read_to_string(&console).is_ok_and(|text| text.contains("devgate: alive"));
        }
        Ok(alive)
    }
}
