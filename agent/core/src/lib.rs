//! The pure part of Devgate: what is plugged in, who runs, who may what, and the steps that carry it out.
//!
//! ```text
//! Event → Batch → Inventory → DesiredState ┐
//!                          AppliedState ───┴→ Plan → (executors) → ActionOutcome → AppliedState
//! ```
//!
//! Nothing here reads a clock, a file or a socket, waits or locks: times and random numbers are passed in, what was
//! observed comes as [`Event`]s, what is to be done leaves as [`Action`]s, and what became of them comes back as
//! [`ActionOutcome`]s. [`State`] ties the parts together for the one task that owns them.
//!
//! Times are [`Moment`]s of one monotonic clock of the caller's choice.

mod action;
mod applied;
mod backoff;
mod batch;
mod class;
mod container;
mod desired;
mod device;
mod digest;
mod event;
mod identity;
mod incarnation;
mod inventory;
mod plan;
mod retry;
mod state;
mod status;
mod warning;

pub use action::{
    Action, ActionOutcome, Done, Failure, FailureKind, GlobalAction, GrantStep, ManageStep, PlaceNodeStep,
    RemoveNodeStep, RevokeStep, StaleGrant, Step,
};
pub use applied::{AppliedContainer, AppliedNode, AppliedRule, AppliedState};
pub use backoff::Backoff;
pub use batch::{Batch, BatchTiming, Batcher, RemovedDevice};
pub use class::{
    Allocation, AllocationKind, Asked, ClassName, CompiledClass, DeviceClass, Enforcement, MatchVerdict, Metadata,
    Mismatch, OtherDevices, Owner, ParentSelector, PathTemplate, Problem, Selector, Spec, compile,
};
pub use container::{
    Cgroup, CgroupId, CgroupProblem, Claim, ClaimSource, Container, ContainerState, Labels, RuntimeId, Task,
};
pub use desired::{ContainerPolicy, DesiredContainer, DesiredNode, DesiredState, Grant, IndexBook, NodePath, RuleId};
pub use device::{Attributes, DevPath, Device, NodeOwner, Parent, Properties};
pub use event::{ContainerEvent, DeviceEvent, Event, Reread};
pub use identity::{DeviceId, Memory, MemoryProblem};
pub use incarnation::{Generation, Incarnation};
pub use inventory::{Changes, Inventory, KnownDevice};
pub use plan::{ContainerPlan, Plan};
pub use retry::Retries;
pub use state::State;
pub use status::{ContainerStatus, DeviceStatus, Explanation, GrantState, GrantStatus, Status, explain};
pub use warning::Warning;

/// The crate of numbers and accesses, for those who build on this one.
pub use devgate_abi::{Access, DeviceKind, DeviceNumber};

/// A point on the caller's monotonic clock, as the time since an origin that never changes while the agent runs.
pub type Moment = std::time::Duration;
