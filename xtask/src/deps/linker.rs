//! bpf-linker, which makes one BPF object of the compiler's output.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::apt;
use super::program::Program;
use crate::workspace::Workspace;

/// The folder of the program for the LLVM at `llvm`; builds it, in 1 to 2 minutes, if the cache has none.
pub(super) fn ensure(workspace: &Workspace, llvm: &Path) -> Result<PathBuf> {
    let llvm_version = apt::version("llvm-22-dev").unwrap_or_else(|| llvm.display().to_string());
    let program = Program {
        name: "bpf-linker",
        version: "0.13.0",
        // The compiler's LLVM must not be newer than this one, which reads what that one writes.
        features: &["--no-default-features", "--features", "llvm-22"],
        // It looks for LLVM itself, and so does a crate that it depends on, each in its own variable.
        environment: &[("LLVM_PREFIX", llvm), ("LLVM_SYS_221_PREFIX", llvm)],
        built_on: &llvm_version,
        purpose: "link the eBPF object",
    };
    program.ensure(workspace)
}
