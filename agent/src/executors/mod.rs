//! What changes the world: kernel, containers, plugins. Nothing else in this crate does.

pub mod device_nodes;
pub mod enforcer;
