//! Virtual machines with real USB devices.

mod accelerator;
mod agent;
pub mod classes;
mod container;
mod harness;
mod image;
mod logs;
mod machine;
mod program;
mod qemu;
mod qmp;
mod row;
mod usb;

pub use container::{Container, Verdict};
pub use devgate_tests::{TestResult, skip};
pub use harness::{Case, Session, main};
pub use image::Store;
pub use machine::{Machine, Output};
pub use row::{ALL, DEBIAN_12, DEBIAN_12_LINUX_6_12, DEBIAN_13, Row};
pub use usb::{Plugged, Usb};
