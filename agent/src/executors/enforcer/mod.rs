//! Carries verdicts into the kernel: the only part that knows BPF.
//!
//! [`KernelEnforcer`] holds one program, attached by one pinned link to an ancestor of all containers, and the maps that
//! it reads. [`RecordingEnforcer`] stands in for it in tests of other parts.

mod audit_ring;
mod btf;
mod cgroup;
mod config;
mod drift_watch;
mod error;
mod fake;
mod filters;
mod guard;
mod index;
mod kernel;
mod layout;
mod link;
mod load;
mod mapped;
mod places;
mod probe;
mod rules;
mod scratch;
mod self_test;
mod slots;
mod status;
#[doc(hidden)]
pub mod sys;
mod table;
mod tested;

use devgate_abi::{Access, DeviceNumber, Policy, Rule, RuleKey};

pub use audit_ring::{AuditReader, Losses};
pub use cgroup::{Cgroup, CgroupError, CgroupRoot};
pub use config::{EnforcerConfig, ForeignFilters, Limits, RecordRate, Unguarded};
pub use drift_watch::DriftWatch;
pub use error::EnforcerError;
pub use fake::{Call, RecordingEnforcer};
pub use filters::Filter;
pub use guard::guard_main;
pub use kernel::KernelEnforcer;
pub use probe::{Question, ask};
pub use self_test::{SelfTestError, self_test};
pub use status::{GuardState, LinkState, Status, refuse_while_running, status, uninstall};

/// What an enforcer can do on this kernel.
#[expect(clippy::struct_excessive_bools, reason = "each is a capability of its own")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Capabilities {
    /// It can allow what a runtime's program denied.
    pub override_denials: bool,
    /// It voids the grants of a device in the kernel while the device is being removed.
    pub void_on_removal: bool,
    /// It can deny every device that is not named.
    pub deny_others: bool,
    /// It records decisions.
    pub audit: bool,
}

/// The epoch of a device number at one moment. A grant that is made with it is void if the number's device was removed
/// since then: read the epoch first, then look at the device, then grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epoch {
    pub(crate) slot: u32,
    pub(crate) value: u64,
}

impl Epoch {
    /// The counter; it only rises.
    pub fn value(self) -> u64 {
        self.value
    }
}

/// Where a grant holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// In the container's own cgroup.
    #[default]
    Exact,
    /// In the cgroups below too, over the denials of runtimes that run inside the container.
    Subtree,
}

/// One device for one container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// What the container may do.
    pub access: Access,
    /// Where.
    pub scope: Scope,
    /// Whether the device can be unplugged.
    pub hotplug: bool,
    /// When the grant ends, in nanoseconds of `CLOCK_BOOTTIME`.
    pub expires_at: Option<u64>,
    /// The rule's name in audit records.
    pub rule_id: u64,
    /// The rule's generation in audit records.
    pub generation: u32,
}

/// What became of a grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GrantOutcome {
    /// The kernel has it.
    Granted,
    /// It was not made, and nothing was changed.
    Withheld(WithheldReason),
}

/// Why a grant was not made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WithheldReason {
    /// A program that is neither a runtime's nor systemd's runs before ours, and the grant would override what it denies.
    #[error("ForeignFilterDenies: {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))]
    ForeignFilterDenies(Vec<Filter>),
    /// The device was removed after its epoch was read.
    #[error("the device was removed meanwhile")]
    DeviceRemoved,
}

/// How a container's access to a device is taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Revocation {
    /// The rule goes, and the runtime's verdict stands again.
    Forget,
    /// The container is denied the device, whatever the runtime says.
    Deny,
}

/// What the kernel counted for one container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Counters {
    /// Denied by the runtime, allowed by a rule.
    pub granted: u64,
    /// Denied by a rule or policy, whatever the runtime says.
    pub denied: u64,
    /// Denied by the runtime or another program, to whom it was left: all of it where some policy records denials, else what was asked about
    /// devices whose kind and major number some rule names.
    pub runtime_denied: u64,
    /// Records that were written.
    pub recorded: u64,
    /// Records that the rate limit kept back.
    pub limited: u64,
    /// Records for which there was no room.
    pub lost: u64,
}

/// One managed cgroup, read back from the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ManagedCgroup {
    /// Its id.
    pub id: u64,
    /// What holds in it.
    pub policy: Policy,
    /// What was counted.
    pub counters: Counters,
}

/// One rule, read back from the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AppliedRule {
    /// The cgroup and the device.
    pub key: RuleKey,
    /// The rule.
    pub rule: Rule,
    /// Whether its epoch is still that of the number: else it denies.
    pub current: bool,
}

/// All that an enforcer holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AppliedRules {
    /// The managed cgroups, by id.
    pub cgroups: Vec<ManagedCgroup>,
    /// The rules, by cgroup and device.
    pub rules: Vec<AppliedRule>,
    /// The epoch of each number that has one, by number.
    pub epochs: Vec<(DeviceNumber, u64)>,
}

/// Something that was not as the enforcer left it, and has been repaired unless it says otherwise.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Drift {
    /// The link's pin was removed; it has been pinned again.
    #[error("the pin of the link was removed")]
    PinLost,
    /// The link was detached; there was no enforcement since then. A new one has been made.
    #[error("the link was detached: grants and revocations did not hold")]
    LinkDetached,
    /// Another program was put into the link; ours is back.
    #[error("program {0} was put into the link: grants and revocations did not hold")]
    ProgramReplaced(u32),
    /// The ancestor does not exist. Nothing is enforced until it does.
    #[error("the cgroup {0} is gone: grants and revocations do not hold")]
    AncestorGone(std::path::PathBuf),
    /// The ancestor was removed and made again; the program is linked to the new one.
    #[error("the cgroup {0} was removed and made again: grants and revocations did not hold")]
    AncestorReplaced(std::path::PathBuf),
    /// The pin of a map was removed; it has been pinned again.
    #[error("the pin of the map {0} was removed")]
    MapPinLost(&'static str),
    /// The guard process ended; there is a new one.
    #[error("the guard process ended: removed devices were seen by the agent alone")]
    GuardDied,
    /// The pin of the program at `device_del` was removed; there is a new one.
    #[error("the pin of the program at device_del was removed")]
    DeviceDelGuardLost,
}

/// Carries decisions into effect. Calls take microseconds and do not wait.
///
/// Each call is complete when it returns, and repeating one changes nothing more. Nothing that was granted needs room to
/// be revoked.
pub trait Enforcer: Send {
    /// What it can do here.
    fn capabilities(&self) -> Capabilities;

    /// Takes a cgroup under management or changes its policy. Its rules stay.
    fn manage(&mut self, cgroup: &Cgroup, policy: Policy) -> Result<(), EnforcerError>;

    /// Gives a cgroup up, with its rules. What was counted for it is returned; zeros for one that was not managed.
    fn forget(&mut self, cgroup: u64) -> Result<Counters, EnforcerError>;

    /// Reads the epoch of a number, before its device is looked at.
    fn epoch(&mut self, device: DeviceNumber) -> Result<Epoch, EnforcerError>;

    /// Grants a device to a cgroup, in place of what was granted before. A rule works once its cgroup is managed, so that
    /// the rules of a container can be complete before its policy denies what they do not name.
    fn grant(
        &mut self,
        cgroup: &Cgroup,
        device: DeviceNumber,
        epoch: Epoch,
        grant: &Grant,
    ) -> Result<GrantOutcome, EnforcerError>;

    /// Takes a device from a cgroup.
    fn revoke(&mut self, cgroup: u64, device: DeviceNumber, how: Revocation) -> Result<(), EnforcerError>;

    /// Makes every rule for a number void, in all containers at once: they are denied the number until granted anew.
    fn void(&mut self, device: DeviceNumber) -> Result<(), EnforcerError>;

    /// Reads everything back.
    fn read_back(&self) -> Result<AppliedRules, EnforcerError>;

    /// Looks whether the enforcement is as it was left, and repairs it.
    fn check(&mut self) -> Result<Vec<Drift>, EnforcerError>;

    /// Says that all that is known has been carried out: what was held back until then takes over.
    fn settle(&mut self) -> Result<(), EnforcerError>;

    /// Tells when a check is due; `None` where nothing can be taken away.
    fn watch(&self) -> Result<Option<DriftWatch>, EnforcerError>;
}
