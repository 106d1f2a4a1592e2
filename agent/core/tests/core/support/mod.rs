//! What the tests share: devices, containers and classes in few words, recorded devices, and a world to act upon.

mod build;
mod dump;
mod world;

pub(crate) use build::{
    batch, class, classes, container, container_id, device, devices_listed, listed, millis, runtimes, state, usb_serial,
};
pub(crate) use dump::{recorded, recorded_monitor};
pub(crate) use world::{Verdict, World};
