//! Test tiers: which test belongs to which, and what a tier needs of the machine.

use std::env;
use std::fs;
use std::path::Path;

use clap::ValueEnum;

use crate::artifact::Artifact;
use crate::deps::Need;
use crate::mounts;

/// Tests that need the same of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Tier {
    /// Logic, properties, recorded fixtures, fakes: runs anywhere
    Unit,
    /// This host's kernel: the real program on real cgroups
    Host,
    /// A virtual machine
    Vm,
    /// A Kubernetes node in a virtual machine
    Cluster,
}

impl Tier {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Unit => "unit",
            Self::Host => "host",
            Self::Vm => "vm",
            Self::Cluster => "cluster",
        }
    }

    /// The tier of a test executable: a file `tests/tests/<tier>_*.rs` names it, all else runs anywhere.
    pub(crate) fn of(artifact: &Artifact) -> Self {
        let named = |tier: &Self| {
            artifact.kind == "test"
                && artifact.target.strip_prefix(tier.name()).is_some_and(|rest| rest.starts_with('_'))
        };
        [Self::Host, Self::Vm, Self::Cluster].into_iter().find(named).unwrap_or(Self::Unit)
    }

    /// The packages that its tests use.
    pub(crate) fn need(self) -> Option<Need> {
        match self {
            Self::Host => Some(Need::Host),
            Self::Vm => Some(Need::Vm),
            Self::Unit | Self::Cluster => None,
        }
    }

    /// Why the tier cannot run here, if it cannot.
    pub(crate) fn obstacle(self) -> Option<String> {
        match self {
            Self::Unit => None,
            Self::Host => host_obstacle(),
            Self::Vm => vm_obstacle(),
            Self::Cluster => missing_program(&["qemu-system-x86_64", "mmdebstrap", "go"]),
        }
    }
}

fn vm_obstacle() -> Option<String> {
    if env::consts::ARCH != "x86_64" {
        return Some("its machines have processors of x86_64".to_owned());
    }
    if !rustix::process::geteuid().is_root() {
        return Some("it needs root, to make the disks of machines".to_owned());
    }
    missing_program(&["apt-get", "dpkg-deb"]).map(|obstacle| format!("{obstacle}: its machines are made on Debian"))
}

fn host_obstacle() -> Option<String> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    if effective_user(&status) != Some(0) {
        return Some("it needs root".to_owned());
    }
    if let Some(missing) = missing_capability(&status) {
        return Some(format!("it needs the capability {missing}"));
    }
    let mounts = mounts::list();
    if !mounts.iter().any(|mount| mount.kind == "cgroup2" && mount.writable) {
        return Some("it needs a writable mount of cgroup2".to_owned());
    }
    if !mounts.iter().any(|mount| mount.kind == "bpf" && mount.writable) {
        return Some("it needs a writable mount of bpffs: mount -t bpf bpf /sys/fs/bpf".to_owned());
    }
    None
}

/// The effective user in `/proc/self/status`.
fn effective_user(status: &str) -> Option<u32> {
    field(status, "Uid:")?.split_whitespace().nth(1)?.parse().ok()
}

/// The first capability that loading and attaching programs, mounting and making namespaces take and that `/proc/self/status` does not show.
fn missing_capability(status: &str) -> Option<&'static str> {
    // Numbers of linux/capability.h.
    const NEEDED: &[(u32, &str)] = &[(12, "CAP_NET_ADMIN"), (21, "CAP_SYS_ADMIN"), (27, "CAP_MKNOD"), (39, "CAP_BPF")];
    let effective = field(status, "CapEff:").and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).unwrap_or(0);
    NEEDED.iter().find(|(number, _)| effective & (1 << number) == 0).map(|(_, name)| *name)
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name))
}

fn missing_program(names: &[&str]) -> Option<String> {
    let path = env::var_os("PATH").unwrap_or_default();
    let exists = |name: &str| env::split_paths(&path).any(|folder| Path::new(&folder).join(name).is_file());
    names.iter().find(|name| !exists(name)).map(|name| format!("it needs the program {name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(kind: &str, name: &str) -> Artifact {
        Artifact {
            package: "devgate-tests".into(),
            target: name.into(),
            kind: kind.into(),
            test: true,
            folder: "/w/tests".into(),
            executable: "/w/x".into(),
        }
    }

    #[test]
    fn tier_is_named_by_the_file() {
        assert_eq!(Tier::of(&target("test", "host_verdict")), Tier::Host);
        assert_eq!(Tier::of(&target("test", "vm_usb")), Tier::Vm);
        assert_eq!(Tier::of(&target("test", "cluster_pods")), Tier::Cluster);
        assert_eq!(Tier::of(&target("test", "hostile")), Tier::Unit);
        assert_eq!(Tier::of(&target("lib", "host_names")), Tier::Unit);
    }

    #[test]
    fn status_of_root_has_what_is_needed_and_a_container_s_has_not() {
        let root = "Name:\tx\nUid:\t0\t0\t0\t0\nCapEff:\t000001ffffffffff\n";
        assert_eq!(effective_user(root), Some(0));
        assert_eq!(missing_capability(root), None);
        let container = "Uid:\t1000\t1000\t1000\t1000\nCapEff:\t00000000a80425fb\n";
        assert_eq!(effective_user(container), Some(1000));
        assert_eq!(missing_capability(container), Some("CAP_NET_ADMIN"));
    }
}
