//! What is turned into events: runtimes, devices, classes.

pub mod container;
pub mod containerd;
pub mod device_class;
