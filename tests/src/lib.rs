//! The harness of Devgate's tests on the real kernel: a small vocabulary in which a test reads like the sentence that it
//! proves.
//!
//! ```no_run
//! # use devgate_tests::prelude::*;
//! fn a_grant_opens_what_the_runtime_denies() -> TestResult {
//!     let scratch = Scratch::new("grant")?;
//!     let mut enforcer = scratch.enforcer()?;
//!     let container = scratch.cgroup("container")?;
//!     let _runtime = deny_all(&container)?;
//!     let mut prober = scratch.prober(&container)?;
//!     enforcer.manage(&container, Policy::default())?;
//!
//!     assert_eq!(prober.open(FUSE, Access::READ), DENIED);
//!     enforcer.give(&container, FUSE, &granting(Access::READ))?;
//!     assert_eq!(prober.open(FUSE, Access::READ), ALLOWED);
//!     Ok(())
//! }
//!
//! devgate_tests::tests![a_grant_opens_what_the_runtime_denies];
//! ```
//!
//! Whatever a test makes outside its process is named `devgate-test-*` and is gone when its [`Scratch`] is, also if the
//! test panics.

mod agent;
pub mod bench;
mod cgroup;
pub mod containerd;
pub mod demo;
pub mod devices;
mod give;
pub mod guards;
mod harness;
pub mod hindrance;
pub mod lines;
pub mod loops;
pub mod machine;
pub mod network;
mod nodes;
mod observe;
pub mod prelude;
pub mod prober;
pub mod raw;
pub mod running_agent;
mod runtime;
mod scratch;
pub mod stage;
pub mod stopwatch;
pub mod udevd;
mod wait;

pub use prelude::*;

/// Makes the `main` function of a test executable (`harness = false`) of test functions; each is called as it is named.
#[macro_export]
macro_rules! tests {
    ($($test:ident),+ $(,)?) => {
        fn main() -> ::std::process::ExitCode {
            $crate::prelude::main(&[$((stringify!($test), $test as fn() -> $crate::TestResult)),+])
        }
    };
}
