//! What turns the world into the [`Event`](devgate_core::Event)s of the core: each source listens first, then lists, and
//! lists again after a loss.

pub mod container;
pub mod containerd;
pub mod device_class;
pub mod udev;
