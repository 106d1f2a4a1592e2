use devgate_abi::DeviceNumber;

use crate::{AppliedNode, CgroupId, ContainerPolicy, DesiredNode, Grant, Incarnation, NodePath};

/// One thing to be done to the world. Doing it twice is the same as doing it once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// To the whole machine, before anything else.
    Global(GlobalAction),
    /// To one container.
    Container(CgroupId, Step),
}

/// What is done for all containers at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum GlobalAction {
    /// Advance the epoch of a number, which voids every rule for it. Ends in [`Done::Epoch`] with the new one.
    AdvanceEpoch {
        /// The number.
        number: DeviceNumber,
    },
}

/// What is done for one container, in the order of the variants: what takes away comes before what gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Delete a rule.
    Revoke(RevokeStep),
    /// Take a node away.
    RemoveNode(RemoveNodeStep),
    /// Write a rule, or replace the one that is there.
    Grant(GrantStep),
    /// Tell the kernel of the container and what holds in it.
    Manage(ManageStep),
    /// Put a node into the container.
    PlaceNode(PlaceNodeStep),
    /// The container is gone or holds no class any more: delete what the kernel knows of its cgroup. The cgroup may
    /// have vanished already.
    Release,
}

/// See [`Step::Revoke`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RevokeStep {
    /// The device.
    pub number: DeviceNumber,
}

/// See [`Step::RemoveNode`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoveNodeStep {
    /// Where it is.
    pub path: NodePath,
    /// What is there: remove the mount with this id, or nothing. The path is only for the empty file underneath.
    pub node: AppliedNode,
}

/// See [`Step::Grant`].
///
/// The order matters: read the epoch of the number, then look at the device ([`GrantStep::check`]), then write the rule
/// with that epoch. If the device goes in between, the rule is void from birth. Ends in [`Done::Epoch`] with that epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrantStep {
    /// The device's number.
    pub number: DeviceNumber,
    /// What is granted.
    pub grant: Grant,
}

/// See [`Step::Manage`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManageStep {
    /// What holds in it.
    pub policy: ContainerPolicy,
}

/// See [`Step::PlaceNode`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlaceNodeStep {
    /// Where.
    pub path: NodePath,
    /// What.
    pub node: DesiredNode,
}

/// Why a grant must not be written: the world has moved on since it was planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StaleGrant {
    /// Nothing has the number now.
    #[error("no device has the number {number} now")]
    Absent {
        /// The number.
        number: DeviceNumber,
    },
    /// Another device, or another stay of the same one, has the number now.
    #[error("{number} was planned for the incarnation {planned} and is that of {present} now")]
    Replaced {
        /// The number.
        number: DeviceNumber,
        /// The incarnation of the plan.
        planned: Incarnation,
        /// The incarnation found.
        present: Incarnation,
    },
}

impl Step {
    /// Whether this step makes no sense if an earlier one of the same container did not succeed. Who carries out the
    /// steps then leaves it out, without an outcome: the next plan has it again.
    pub fn needs(&self, earlier: &Self) -> bool {
        match (self, earlier) {
            // A node that cannot be opened is worse than none, and one that is still there is not placed upon.
            (Self::PlaceNode(place), Self::Grant(grant)) => grant.number == place.node.number,
            (Self::PlaceNode(place), Self::RemoveNode(remove)) => remove.path == place.path,
            // What is known of a container is forgotten only when nothing is left in it.
            (Self::PlaceNode(_), Self::Manage(_)) | (Self::Release, Self::Revoke(_) | Self::RemoveNode(_)) => true,
            _ => false,
        }
    }
}

impl GrantStep {
    /// Compares the plan with the incarnation that has the number now, as read after the epoch.
    pub fn check(&self, present: Option<&Incarnation>) -> Result<(), StaleGrant> {
        match present {
            None => Err(StaleGrant::Absent { number: self.number }),
            Some(present) if *present != self.grant.incarnation => {
                Err(StaleGrant::Replaced { number: self.number, planned: self.grant.incarnation, present: *present })
            }
            Some(_) => Ok(()),
        }
    }
}

/// What became of an action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActionOutcome {
    /// The action.
    pub action: Action,
    /// What became of it.
    pub result: Result<Done, Failure>,
}

/// How an action succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    /// The world is as the action says.
    Done,
    /// A rule was written in this epoch of its number, or the number has this one now.
    Epoch(u64),
    /// A node was placed, or was there already, by our mount with this id.
    Mounted(u64),
    /// A node needs nothing of ours: the container has the host's `/dev`, or already a node of that number at the path.
    /// It is not touched, now or at removal.
    LeftAlone,
}

/// How an action failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// What follows from it.
    pub kind: FailureKind,
    /// What happened, for people: the error with its causes.
    pub message: String,
}

/// What follows from a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FailureKind {
    /// Worth another try, later and later.
    Temporary,
    /// It will fail again until something else changes: the class, the device, the container.
    Permanent,
    /// The world has moved on ([`StaleGrant`]) or a newer plan does not want it any more: nothing was done, and the next
    /// plan knows better.
    Stale,
    /// The container has ended, and with it everything in it.
    ContainerGone,
}
