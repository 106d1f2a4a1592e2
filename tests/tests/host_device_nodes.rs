//! Device nodes in running containers, on the real kernel. Needs root and a cgroup v2 hierarchy.

#[path = "host_device_nodes/bench.rs"]
mod bench;
#[path = "host_device_nodes/cases_fuse.rs"]
mod cases_fuse;
#[path = "host_device_nodes/cases_host.rs"]
mod cases_host;
#[path = "host_device_nodes/cases_identity.rs"]
mod cases_identity;
#[path = "host_device_nodes/cases_occupied.rs"]
mod cases_occupied;
#[path = "host_device_nodes/cases_place.rs"]
mod cases_place;
#[path = "host_device_nodes/cases_remove.rs"]
mod cases_remove;
#[path = "host_device_nodes/cases_runc.rs"]
mod cases_runc;
#[path = "host_device_nodes/cases_server.rs"]
mod cases_server;
#[path = "host_device_nodes/container.rs"]
mod container;
#[path = "host_device_nodes/executor.rs"]
mod executor;
#[path = "host_device_nodes/fuse.rs"]
mod fuse;
#[path = "host_device_nodes/inside.rs"]
mod inside;
#[path = "host_device_nodes/left_behind.rs"]
mod left_behind;
#[path = "host_device_nodes/runc.rs"]
mod runc;
#[path = "host_device_nodes/spec.rs"]
mod spec;
#[path = "host_device_nodes/visitor.rs"]
mod visitor;

use std::process::ExitCode;

use libtest_mimic::Arguments;

fn main() -> ExitCode {
    if let Some(code) = inside::dispatch().or_else(visitor::dispatch).or_else(bench::dispatch) {
        return code;
    }
    let before = left_behind::HostState::read();
    let trials = [
        cases_place::trials(),
        cases_remove::trials(),
        cases_occupied::trials(),
        cases_host::trials(),
        cases_identity::trials(),
        cases_fuse::trials(),
        cases_server::trials(),
        cases_runc::trials(),
    ];
    let conclusion = libtest_mimic::run(&Arguments::from_args(), trials.into_iter().flatten().collect());
    let left = before.difference();
    for thing in &left {
        eprintln!("left behind: {thing}");
    }
    if left.is_empty() { conclusion.exit_code() } else { ExitCode::FAILURE }
}
