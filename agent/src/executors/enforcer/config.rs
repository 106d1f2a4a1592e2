//! What can be configured of the enforcer.

use std::path::PathBuf;

use devgate_abi::{MAX_SLOT, Policy};

use super::error::EnforcerError;

/// A map is smaller than 4 GiB, and there are two places of 64 bytes for each rule.
const MAX_RULES: u32 = 1 << 24;

/// Configuration of the enforcer.
#[derive(Clone, Debug)]
pub struct EnforcerConfig {
    /// Where the cgroup v2 hierarchy is mounted; `None` to look at `/sys/fs/cgroup` and `/sys/fs/cgroup/unified`.
    pub cgroup_root: Option<PathBuf>,
    /// The cgroup that the program is linked to, as a path from the hierarchy's root. All containers must be below it.
    pub ancestor: PathBuf,
    /// Folder on a bpf file system for the pins; made with mode 0700.
    pub pin_root: PathBuf,
    /// Folder for the lock of the guard process; made with mode 0700.
    pub run_dir: PathBuf,
    /// The network namespace whose uevents the guard hears: the host's.
    pub net_namespace: PathBuf,
    /// The executable that is started as guard process: this program.
    pub executable: PathBuf,
    /// What holds for devices that can be unplugged while no guard is alive.
    pub unguarded: Unguarded,
    /// What becomes of grants to a container below whose cgroup, or in it, unknown device programs run.
    pub foreign_filters: ForeignFilters,
    /// Names of further device programs whose denials may be overridden.
    pub known_filters: Vec<String>,
    /// What holds in cgroups below the ancestor that are not managed.
    pub unclassified: Policy,
    /// Whether every decision is recorded, also outside of managed cgroups.
    pub audit_everything: bool,
    /// How many records a container may cause.
    pub record_rate: RecordRate,
    /// Sizes of the maps.
    pub limits: Limits,
}

impl Default for EnforcerConfig {
    fn default() -> Self {
        Self {
            cgroup_root: None,
            ancestor: "/".into(),
            pin_root: "/sys/fs/bpf/devgate".into(),
            run_dir: "/run/devgate".into(),
            net_namespace: "/proc/1/ns/net".into(),
            executable: "/proc/self/exe".into(),
            unguarded: Unguarded::default(),
            foreign_filters: ForeignFilters::default(),
            known_filters: Vec::new(),
            unclassified: Policy::default(),
            audit_everything: false,
            record_rate: RecordRate::default(),
            limits: Limits::default(),
        }
    }
}

/// What holds for devices that can be unplugged while no guard is alive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Unguarded {
    /// What was granted stays granted.
    #[default]
    Keep,
    /// They are denied.
    Deny,
}

/// What becomes of grants where unknown device programs run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum ForeignFilters {
    /// They are not made.
    #[default]
    Withhold,
    /// They are made, and override what those programs deny.
    Override,
}

/// A token bucket for the audit records of each container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordRate {
    /// Records per second in the long run; 0 for no limit.
    pub per_second: u32,
    /// Records at once after a quiet time.
    pub burst: u32,
}

impl Default for RecordRate {
    fn default() -> Self {
        Self { per_second: 100, burst: 1000 }
    }
}

/// Sizes of the maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How many cgroups can be managed.
    pub cgroups: u32,
    /// How many rules there can be: containers times their devices.
    pub rules: u32,
    /// How many device numbers can be granted at once.
    pub devices: u32,
    /// Bytes of the ring buffer for audit records: a power of two, at least a page.
    pub audit_bytes: u32,
}

impl Limits {
    /// What the kernel can do: tell slots of cgroups apart by 16 bits, make a map of the places of rules.
    pub(super) fn check(&self) -> Result<(), EnforcerError> {
        let limits = [("cgroups", self.cgroups, MAX_SLOT), ("rules", self.rules, MAX_RULES)];
        match limits.into_iter().find(|(_, value, max)| value > max) {
            Some((field, value, max)) => Err(EnforcerError::Limit { field, value, max }),
            None => Ok(()),
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self { cgroups: 4096, rules: 65536, devices: 16384, audit_bytes: 1 << 20 }
    }
}
