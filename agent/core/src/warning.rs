use devgate_abi::DeviceNumber;

use crate::{CgroupProblem, ClassName, DeviceId, NodePath, RuntimeId};

/// Something that a user should know of. None of them stops anything else.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum Warning {
    /// The author of an image cannot give devices to its containers.
    #[error("{container}: the label {label} is ignored, since the image carries it too")]
    LabelFromImage {
        /// The container.
        container: RuntimeId,
        /// The label's key.
        label: String,
    },
    /// Whether the image carries the label cannot be told.
    #[error("{container}: the label {label} is ignored, since the labels of the image could not be read")]
    ImageUnknown {
        /// The container.
        container: RuntimeId,
        /// The label's key.
        label: String,
    },
    /// In Kubernetes' namespace labels come from the image as well as from the pod.
    #[error("{container}: the label {label} is ignored, since labels are not read in this namespace")]
    LabelNotRead {
        /// The container.
        container: RuntimeId,
        /// The label's key.
        label: String,
    },
    /// A word in a label that cannot name a class.
    #[error("{container}: {text:?} is no name of a class")]
    BadClassName {
        /// The container.
        container: RuntimeId,
        /// The word.
        text: String,
    },
    /// The class may come later; the wish is kept.
    #[error("{container}: there is no usable class {class}")]
    UnknownClass {
        /// The container.
        container: RuntimeId,
        /// The class.
        class: ClassName,
    },
    /// The container is not served.
    #[error("{container}: not served: {problem}")]
    CgroupRefused {
        /// The container.
        container: RuntimeId,
        /// Why.
        problem: String,
    },
    /// Two devices want one path in a container; the second is there under its kernel name alone.
    #[error("{container}: {path} is taken, so {device} of class {class} has no stable path")]
    PathTaken {
        /// The container.
        container: RuntimeId,
        /// The path.
        path: NodePath,
        /// The device that went without.
        device: DeviceId,
        /// Its class.
        class: ClassName,
    },
    /// A class matched a device that every container has anyway.
    #[error("{class}: {number} is a standard device, which needs no grant")]
    StandardDevice {
        /// The class.
        class: ClassName,
        /// The device.
        number: DeviceNumber,
    },
}

impl Warning {
    pub(crate) fn cgroup_refused(container: &RuntimeId, problem: &CgroupProblem) -> Self {
        Self::CgroupRefused { container: container.clone(), problem: problem.to_string() }
    }
}
