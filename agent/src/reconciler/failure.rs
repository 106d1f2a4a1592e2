//! What follows from an error.

use std::error::Error;

use devgate_core::{Failure, FailureKind};

use crate::executors::{
    device_nodes::{ContainerError, EntryError, Refusal, VisitError},
    enforcer::{CgroupError, EnforcerError, WithheldReason},
};

/// The text of an error with all its causes.
pub(super) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !text.ends_with(&next) {
            text = format!("{text}: {next}");
        }
        cause = error.source();
    }
    text
}

fn failure(kind: FailureKind, error: &dyn Error) -> Failure {
    Failure { kind, message: chain(error) }
}

/// A step whose plan is out of date.
pub(super) fn stale(error: &dyn Error) -> Failure {
    failure(FailureKind::Stale, error)
}

/// An error of the enforcer.
pub(super) fn enforcer(error: &EnforcerError) -> Failure {
    let kind = match error {
        EnforcerError::Cgroup(error) => return cgroup(error),
        EnforcerError::NotBelowAncestor { .. } | EnforcerError::TooDeep(_) | EnforcerError::Standard(_) => {
            FailureKind::Permanent
        }
        _ => FailureKind::Temporary,
    };
    failure(kind, error)
}

/// A cgroup that cannot be opened has gone with its container.
pub(super) fn cgroup(error: &CgroupError) -> Failure {
    let kind = match error {
        CgroupError::Open(_, source) if source.kind() == std::io::ErrorKind::NotFound => FailureKind::ContainerGone,
        CgroupError::Open(..) => FailureKind::Temporary,
        CgroupError::NotCgroup2(_) | CgroupError::Path(_) => FailureKind::Permanent,
    };
    failure(kind, error)
}

/// A grant that was not made.
pub(super) fn withheld(reason: &WithheldReason) -> Failure {
    let kind = match reason {
        // The foreign program may go.
        WithheldReason::ForeignFilterDenies(_) => FailureKind::Temporary,
        WithheldReason::DeviceRemoved => FailureKind::Stale,
    };
    failure(kind, reason)
}

/// A container whose process cannot be taken hold of.
pub(super) fn container(error: &ContainerError) -> Failure {
    let kind = match error {
        ContainerError::Gone(_) | ContainerError::Stranger { .. } => FailureKind::ContainerGone,
        ContainerError::Open { .. } | ContainerError::Cgroup { .. } => FailureKind::Temporary,
    };
    failure(kind, error)
}

/// A visit that brought no answer.
pub(super) fn visit(error: &VisitError) -> Failure {
    let kind = match error {
        VisitError::NotEntered(EntryError::ProcessGone | EntryError::WrongCgroup { .. }) => FailureKind::ContainerGone,
        VisitError::NotEntered(EntryError::HostNamespace | EntryError::ForeignUserNamespace) => FailureKind::Permanent,
        _ => FailureKind::Temporary,
    };
    failure(kind, error)
}

/// A change that a container's `/dev` did not admit.
pub(super) fn refusal(refusal: &Refusal) -> Failure {
    let kind = match refusal {
        Refusal::HostDev { .. }
        | Refusal::SharedDev { .. }
        | Refusal::DevMissing
        | Refusal::DevIsSymlink
        | Refusal::DevNotTmpfs { .. }
        | Refusal::UnmappedOwner { .. } => FailureKind::Permanent,
        // The container may make room, or stop what it does.
        _ => FailureKind::Temporary,
    };
    failure(kind, refusal)
}
