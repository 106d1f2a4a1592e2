//! The Devgate agent.

pub mod cli;
pub mod executors;
pub mod object;
pub mod yaml;
