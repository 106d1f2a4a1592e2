//! Classes of devices: as users write it ([`DeviceClass`]), checked ([`compile()`]) and applied to devices ([`CompiledClass`]).

mod compile;
mod matcher;
mod name;
mod path;
mod problem;
mod spec;

pub use compile::{CompiledClass, compile};
pub use matcher::{Asked, MatchVerdict, Mismatch};
pub use name::ClassName;
pub use path::PathTemplate;
pub use problem::Problem;
pub use spec::{
    Allocation, AllocationKind, DeviceClass, Enforcement, Metadata, OtherDevices, Owner, ParentSelector, Selector, Spec,
};

pub(crate) use path::is_standard_path;
