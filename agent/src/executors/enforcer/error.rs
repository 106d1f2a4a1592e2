//! Errors of the enforcer.

use std::{io, path::PathBuf};

use devgate_abi::DeviceNumber;

use super::{cgroup::CgroupError, self_test::SelfTestError};

/// What can go wrong when verdicts are carried into the kernel.
#[derive(Debug, thiserror::Error)]
pub enum EnforcerError {
    /// The program was built without the eBPF object.
    #[error("this devgate was built without its eBPF object; build it with `cargo xtask build`")]
    NoObject,
    /// A cgroup cannot be used.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// The container's cgroup is not below the one that the program is linked to.
    #[error("the cgroup {cgroup} is not below {ancestor}; set `enforcer.ancestor` to a cgroup above all containers")]
    NotBelowAncestor {
        /// The container's cgroup.
        cgroup: PathBuf,
        /// What the program is linked to.
        ancestor: PathBuf,
    },
    /// The cgroup lies deeper than the kernel program looks.
    #[error("the cgroup {0} lies more than {max} levels below the root", max = devgate_abi::MAX_LEVEL)]
    TooDeep(PathBuf),
    /// Managed cgroups lie at as many levels as the kernel program looks at, and this one at another.
    #[error("managed cgroups lie at {max} different levels already, and {0} at another", max = devgate_abi::MAX_LEVELS)]
    TooManyLevels(PathBuf),
    /// There cannot be so many.
    #[error("`enforcer.limits.{field}` is {value}; it must be {max} or less")]
    Limit {
        /// The field of the configuration.
        field: &'static str,
        /// What it says.
        value: u32,
        /// What it may say.
        max: u32,
    },
    /// A folder for pins or locks cannot be made or is not safe.
    #[error("cannot use the folder {0}")]
    Folder(PathBuf, #[source] io::Error),
    /// The pins would not be on a bpf file system.
    #[error("{0} is not on a bpf file system; run `mount -t bpf bpf /sys/fs/bpf` or set `enforcer.pinRoot`")]
    NotBpfFs(PathBuf),
    /// Another agent holds the pins.
    #[error("another devgate enforces with the pins in {0}; stop it first")]
    AlreadyRunning(PathBuf),
    /// What is pinned is not the map that we would make.
    #[error(
        "the map pinned at {path} has {field} {found}, expected {expected}; if no other program owns it, \
         `devgate enforcer uninstall` removes it"
    )]
    WrongMap {
        /// Where.
        path: PathBuf,
        /// What differs.
        field: &'static str,
        /// What it is.
        found: u32,
        /// What it should be.
        expected: u32,
    },
    /// The eBPF object cannot be loaded.
    #[error("cannot load the eBPF object")]
    Load(#[from] aya::EbpfError),
    /// The kernel refuses a program.
    #[error("the kernel refuses the program {0}")]
    Program(&'static str, #[source] aya::programs::ProgramError),
    /// A map of the object is missing or of another type.
    #[error("the map {0} of the eBPF object cannot be used")]
    Map(&'static str, #[source] aya::maps::MapError),
    /// A call failed.
    #[error("{0} failed")]
    Call(&'static str, #[source] io::Error),
    /// Something at the path of a pin is not what belongs there.
    #[error("{0} is pinned at the path of our link but is not a cgroup device link; remove it if nobody needs it")]
    NotOurLink(PathBuf),
    /// The kernel cannot do what enforcement needs.
    #[error(transparent)]
    SelfTest(#[from] SelfTestError),
    /// A standard device was named.
    #[error("{0} is a standard device, which every container has; it cannot be granted or denied")]
    Standard(DeviceNumber),
    /// A map is full.
    #[error("there is no room for more {what} than {limit}; raise `enforcer.limits.{field}`")]
    Full {
        /// Of what there are too many.
        what: &'static str,
        /// The limit.
        limit: u32,
        /// The field of the configuration.
        field: &'static str,
    },
    /// The guard process did not start.
    #[error("the guard process did not start")]
    Guard(#[source] io::Error),
}

impl EnforcerError {
    /// For `map_err`: names the call that failed.
    pub(super) fn call(name: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::Call(name, error)
    }
}
