//! The Devgate agent.

pub mod audit;
pub mod cli;
pub mod config;
pub mod executors;
pub mod object;
mod readiness;
pub mod reconciler;
pub mod sources;
pub mod yaml;
