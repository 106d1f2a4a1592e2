//! The Devgate agent.

pub mod cli;
pub mod executors;
pub mod object;
mod readiness;
pub mod sources;
pub mod yaml;
