//! The vocabulary: `use devgate_tests::prelude::*`.

pub use devgate::executors::enforcer::{
    Enforcer, EnforcerConfig, EnforcerError, Grant, GrantOutcome, KernelEnforcer, Revocation, Scope,
};
pub use devgate_abi::{Access, DeviceKind, DeviceNumber, Policy};

pub use crate::{
    agent::{Agent, Attempted},
    cgroup::TestCgroup,
    containerd::Containerd,
    devices::{ABSENT, FUSE, LOOP, absent},
    give::{Give, granting},
    harness::{Case, TestResult, complete, main, skip},
    hindrance::Hindrance,
    machine::{Audit, Insider, Machine, WISH, class},
    nodes::Nodes,
    observe::{boot_time, counters, drain},
    prober::{ALLOWED, Answer, DENIED, NO_DEVICE, Prober},
    running_agent::RunningAgent,
    runtime::{Runtime, RuntimeRule, allow_all, attach, deny_all, fail_all, runc_program},
    scratch::Scratch,
    tests,
    udevd::UdevHost,
    wait::{is_readable, wait_readable, wait_until},
};
