//! bpf-linker, built from its published source and kept in the cache.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::apt;
use crate::command;
use crate::hash::Hash;
use crate::workspace::{self, Workspace};

const VERSION: &str = "0.13.0";

/// Which LLVM it is built on. The compiler's LLVM must not be newer, as that one writes what the linker reads.
const FEATURE: &str = "llvm-22";

/// The folder of the program for this LLVM; builds it (about 2 minutes) if the cache has none.
pub(crate) fn ensure(workspace: &Workspace, llvm: &Path) -> Result<PathBuf> {
    let cache = workspace::cache()?;
    let llvm_version = apt::version("llvm-22-dev").unwrap_or_else(|| llvm.display().to_string());
    let key = Hash::new().add(VERSION).add(FEATURE).add(&llvm_version).add(std::env::consts::ARCH).short();
    let home = cache.join(format!("bpf-linker-{key}"));
    let programs = home.join("bin");
    if programs.join("bpf-linker").is_file() {
        return Ok(programs);
    }
    fs::create_dir_all(&cache).with_context(|| format!("cannot make {}", cache.display()))?;
    // Another run may be building it.
    let lock = File::create(cache.join("bpf-linker.lock")).context("cannot lock the cache")?;
    lock.lock().context("cannot lock the cache")?;
    if !programs.join("bpf-linker").is_file() {
        eprintln!("missing: bpf-linker {VERSION} on LLVM {llvm_version}, to link the BPF object; building it");
        install(workspace, llvm, &cache.join("bpf-linker.new"), &home)?;
    }
    Ok(programs)
}

/// Builds into `scratch` and moves the result to `home`, so that `home` is complete whenever it exists.
fn install(workspace: &Workspace, llvm: &Path, scratch: &Path, home: &Path) -> Result<()> {
    let mut cargo = workspace.cargo();
    command::clean_cargo_environment(&mut cargo);
    cargo
        // The linker's build looks for LLVM itself, and so does a crate that it depends on, each in its own variable.
        .env("LLVM_PREFIX", llvm)
        .env("LLVM_SYS_221_PREFIX", llvm)
        .args(["install", "--locked", "--force", "--quiet", "bpf-linker", "--version", VERSION])
        .args(["--no-default-features", "--features", FEATURE])
        .arg("--root")
        .arg(scratch);
    command::run(&mut cargo).context("cannot build bpf-linker")?;
    // What an interrupted removal left of an older one would be in the way.
    if home.exists() {
        fs::remove_dir_all(home).with_context(|| format!("cannot remove {}", home.display()))?;
    }
    fs::rename(scratch, home).with_context(|| format!("cannot move bpf-linker to {}", home.display()))
}
