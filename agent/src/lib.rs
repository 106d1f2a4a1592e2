//! Placeholder.

pub mod object;
