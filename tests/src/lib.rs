//! Harness.

pub mod bench;
