//! The Devgate agent.

pub mod audit;
pub mod cli;
pub mod executors;
pub mod object;
pub mod readable;
pub mod reconciler;
mod readiness;
pub mod sources;
pub mod yaml;
