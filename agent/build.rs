//! Puts the eBPF object where `object.rs` embeds it from.
//!
//! The object is built by `cargo xtask build-ebpf`, which needs a second toolchain; so that a fresh clone compiles without it, an empty object stands
//! in for a missing one.

use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

fn main() {
    println!("cargo::rerun-if-env-changed=DEVGATE_EBPF_OBJECT");
    let object = match env::var_os("DEVGATE_EBPF_OBJECT") {
        Some(path) => PathBuf::from(path),
        None => built_by_xtask(),
    };
    println!("cargo::rerun-if-changed={}", object.display());
    let bytes =
        fs::read(&object).unwrap_or_else(|error| panic!("cannot read the eBPF object {}: {error}", object.display()));
    if bytes.is_empty() {
        println!("cargo::warning=the agent is built without its eBPF object: run `cargo xtask build-ebpf`");
    }
    fs::write(variable("OUT_DIR").join("devgate.bpf.o"), bytes).expect("OUT_DIR can be written to");
}

/// The object in the workspace's `target/ebpf`, wherever cargo's own target folder is.
///
/// If there is none an empty file is made: cargo would take a watched file that does not exist as changed in each build.
fn built_by_xtask() -> PathBuf {
    let name = if env::var_os("CARGO_FEATURE_DEBUG_LOG").is_some() { "devgate-debug.bpf.o" } else { "devgate.bpf.o" };
    let folder = variable("CARGO_MANIFEST_DIR").join("../target/ebpf");
    let object = folder.join(name);
    make_placeholder(&folder, &object);
    object
}

/// Makes `object` as an empty file, unless it exists. It is dated long ago, as a file newer than this run would start the next one.
fn make_placeholder(folder: &Path, object: &Path) {
    fs::create_dir_all(folder).expect("the workspace's target folder can be made");
    if let Ok(file) = File::create_new(object) {
        file.set_modified(SystemTime::UNIX_EPOCH).expect("a new file can be dated");
    }
}

fn variable(name: &str) -> PathBuf {
    env::var_os(name).unwrap_or_else(|| panic!("cargo sets {name}")).into()
}
