//! What the Devgate kernel programs and the agent share: keys, values, the audit record and the decision function,
//! written once.
//!
//! Every type that lies in a kernel map is `repr(C)`, has no padding and a fixed size, which the tests at the end of
//! its module state. A change of any of them raises [`LAYOUT_VERSION`].
//!
//! The crate is `no_std` and has no dependency, so that it can be compiled into the kernel programs and tested on the
//! host.
#![cfg_attr(not(test), no_std)]

mod audit;
mod container;
mod decide;
mod number;
mod place;
mod plain;
mod rule;
mod state;
mod word;

pub use audit::{Action, COMM_LEN, Reason, Record, RecordFlags};
pub use container::{CgroupEntry, ContainerSlot, Policy};
pub use decide::{
    Decision, Guard, Layer, RuleView, Stand, Tally, conclude, judge, judge_other, judge_unmanaged,
    judge_unmanaged_other,
};
pub use number::{Access, DeviceKind, DeviceNumber, Request};
pub use place::{PlaceAnswer, RulePlace};
pub use plain::Plain;
pub use rule::{EPOCH_SLOT_NONE, Rule, RuleFlags, RuleKey, RuleWords};
#[cfg(target_has_atomic = "64")]
pub use state::pack_levels;
pub use state::{MAX_LEVEL, MAX_LEVELS, MAX_SLOT, State, StateFlags, learned};
pub use word::load;

/// Version of every layout in this crate. It names the folder under which the maps are pinned (`v1`), so that an agent
/// never reads maps that another version wrote.
pub const LAYOUT_VERSION: u32 = 1;

/// `-EPERM`, the verdict of a cgroup program that denies (`include/uapi/asm-generic/errno-base.h`).
pub const DENIED: i32 = -1;

/// The names of the maps in the object, which are the names of their pins.
pub mod map {
    /// `ARRAY[1]` of [`State`](crate::State), mapped into the agent.
    pub const STATE: &str = "STATE";
    /// `HASH` of cgroup id (`u64`) to [`CgroupEntry`](crate::CgroupEntry): the cgroups that the agent manages.
    pub const CGROUPS: &str = "CGROUPS";
    /// `ARRAY` of [`ContainerSlot`](crate::ContainerSlot), mapped into the agent: counters and the token bucket.
    pub const CONTAINERS: &str = "CONTAINERS";
    /// `HASH` of [`RuleKey`](crate::RuleKey) to [`Rule`](crate::Rule).
    pub const RULES: &str = "RULES";
    /// `ARRAY` of [`RulePlace`](crate::RulePlace), mapped into the agent: where rules are looked for first.
    pub const RULE_PLACES: &str = "RULE_PLACES";
    /// `HASH` of [`DeviceNumber`](crate::DeviceNumber) to the index (`u32`) of its epoch in [`EPOCHS`].
    pub const EPOCH_SLOTS: &str = "EPOCH_SLOTS";
    /// `ARRAY` of `u64`, mapped into the agent: the epoch of each number that was ever granted.
    pub const EPOCHS: &str = "EPOCHS";
    /// `RINGBUF` of [`Record`](crate::Record).
    pub const AUDIT: &str = "AUDIT";
    /// `PROG_ARRAY[1]` that the guard process holds and that is never pinned: see `Reason::Unguarded`.
    pub const GUARDED: &str = "GUARDED";
}

/// The names of the programs in the object.
pub mod program {
    /// The `cgroup_device` program that is linked to the ancestor.
    pub const DEVICE: &str = "devgate";
    /// What [`DEVICE`] tail-calls while a guard process lives.
    pub const DEVICE_GUARDED: &str = "devgate_alive";
    /// The socket filter that reads kernel uevents.
    pub const UEVENT_GUARD: &str = "devgate_uevent";
    /// `fentry/device_del`.
    pub const DEVICE_DEL_GUARD: &str = "devgate_devdel";
}
