//! `cargo xtask demo`: shows on this machine what the agent does.

use std::process::ExitCode;

use devgate_tests::{demo, prober, stage};

fn main() -> ExitCode {
    // A process in a container's cgroup that opens nodes is this program too.
    if let Some(code) = prober::dispatch() {
        return code;
    }
    stage::run("demo", demo::require_everything, |name, _| demo::play(name))
}
