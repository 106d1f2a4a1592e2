//! Finding a compiler that builds for the BPF target.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::command;

/// The newest LLVM whose output the linker reads: the one that it is built on.
const NEWEST_LLVM: u32 = 22;

/// A `rustc` that comes with the sources of its library, and the `cargo` beside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Toolchain {
    pub(crate) rustc: PathBuf,
    pub(crate) cargo: PathBuf,
    pub(crate) sysroot: PathBuf,
    /// What `rustc -vV` prints.
    pub(crate) version: String,
}

impl Toolchain {
    /// The sources of the standard library.
    pub(crate) fn library(&self) -> PathBuf {
        library(&self.sysroot)
    }

    /// The toolchain of `rustc`; an error says why it does not serve.
    fn of(rustc: &Path) -> Result<Self> {
        let version = command::output(command(rustc).arg("-vV"))?;
        let sysroot = PathBuf::from(command::output(command(rustc).args(["--print", "sysroot"]))?);
        if !library(&sysroot).is_dir() {
            bail!("{} has no library sources (rust-src)", rustc.display());
        }
        let cargo = rustc.with_file_name("cargo");
        if !cargo.is_file() {
            bail!("there is no cargo beside {}", rustc.display());
        }
        check_version(&version).with_context(|| format!("{} does not serve", rustc.display()))?;
        Ok(Self { rustc: rustc.to_owned(), cargo, sysroot, version })
    }
}

/// The first that serves of: `$EBPF_RUSTC`; a nightly of rustup; any other.
///
/// # Errors
///
/// If `$EBPF_RUSTC` is set and does not serve: it was asked for by name.
pub(crate) fn find() -> Result<Option<Toolchain>> {
    if let Some(rustc) = env::var_os("EBPF_RUSTC") {
        let toolchain = Toolchain::of(Path::new(&rustc)).context("EBPF_RUSTC names no compiler for the eBPF object")?;
        return Ok(Some(toolchain));
    }
    let candidates = rustup_toolchains().into_iter().map(|toolchain| toolchain.join("bin")).chain(path());
    Ok(candidates
        .map(|folder| folder.join("rustc"))
        .filter(|rustc| rustc.is_file())
        .find_map(|rustc| Toolchain::of(&rustc).ok()))
}

/// The folders of rustup's toolchains that have library sources, nightlies first.
fn rustup_toolchains() -> Vec<PathBuf> {
    let home = env::var_os("RUSTUP_HOME")
        .map(PathBuf::from)
        .or_else(|| env::var_os("HOME").map(|home| Path::new(&home).join(".rustup")));
    let Some(Ok(entries)) = home.map(|home| fs::read_dir(home.join("toolchains"))) else {
        return Vec::new();
    };
    let mut found: Vec<_> =
        entries.flatten().map(|entry| entry.path()).filter(|toolchain| library(toolchain).is_dir()).collect();
    found.sort_by_key(|toolchain| {
        let name = toolchain.file_name().map(OsString::from).unwrap_or_default();
        (!name.to_string_lossy().starts_with("nightly"), name)
    });
    found
}

fn path() -> Vec<PathBuf> {
    env::var_os("PATH").map(|path| env::split_paths(&path).collect()).unwrap_or_default()
}

fn library(sysroot: &Path) -> PathBuf {
    sysroot.join("lib/rustlib/src/rust/library")
}

/// A call of `rustc` that is not led elsewhere by what cargo set for xtask.
fn command(rustc: &Path) -> Command {
    let mut command = Command::new(rustc);
    command::clean_cargo_environment(&mut command);
    command
}

/// Whether the compiler is as new as the workspace asks and its LLVM as old as the linker asks.
fn check_version(version: &str) -> Result<()> {
    let field = |name| version.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    let numbers = |text: &str| text.split('.').map_while(|number| number.parse::<u32>().ok()).collect::<Vec<_>>();
    let release = numbers(field("release: "));
    let oldest = numbers(env!("CARGO_PKG_RUST_VERSION"));
    if release[..release.len().min(2)] < oldest[..] {
        bail!("it is older than Rust {}", env!("CARGO_PKG_RUST_VERSION"));
    }
    let llvm = numbers(field("LLVM version: ")).first().copied();
    if llvm.is_none_or(|llvm| llvm > NEWEST_LLVM) {
        bail!("it uses another LLVM than bpf-linker reads ({NEWEST_LLVM} or older)");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::check_version;

    fn version(release: &str, llvm: &str) -> String {
        format!(
            "rustc {release} (ac68faa20 2026-05-25)\nhost: x86_64-unknown-linux-gnu\nrelease: {release}\nLLVM version: {llvm}"
        )
    }

    #[test]
    fn compiler_as_new_as_the_workspace_serves() {
        check_version(&version("1.96.0", "22.1.8")).unwrap();
        check_version(&version("1.97.0-nightly", "22.1.4")).unwrap();
        check_version(&version("1.95.0", "21.1.0")).unwrap();
    }

    #[test]
    fn old_compiler_and_new_llvm_are_refused() {
        check_version(&version("1.63.0", "14.0.6")).unwrap_err();
        check_version(&version("1.99.0-nightly", "23.1.0")).unwrap_err();
        check_version("rustc").unwrap_err();
    }
}
