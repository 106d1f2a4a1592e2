//! Benchmarks: what the kernel programs cost, and how long devices take.
//!
//! Of [`verdict`] each column has a worker process in a cgroup of its own that asks for device nodes in random order. What is compared
//! is the time that the kernel itself accounts to one program per run, over that of an empty program in the same round.

pub mod figures;
pub mod hotplug;
mod lab;
mod random;
mod runc;
mod scratch;
pub mod verdict;
pub mod worker;
