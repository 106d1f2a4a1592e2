//! The Devgate agent.

pub mod agent;
pub mod audit;
pub mod cli;
pub mod config;
pub mod executors;
pub mod heap;
pub mod memory;
pub mod object;
mod readiness;
pub mod reconciler;
pub mod sources;
pub mod uninstall;
pub mod yaml;
