//! The eBPF object: compiling it, stripping it, and not doing so again without need.

mod inputs;
pub(crate) mod toolchain;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::command;
use crate::deps::{self, Need};
use crate::hash;
use crate::workspace::Workspace;
use toolchain::Toolchain;

const PACKAGE: &str = "devgate-ebpf";
const TARGET: &str = "bpfel-unknown-none";
const PROFILE: &str = "bpf";

/// The flags that do not depend on where things are.
///
/// The BPF instruction set v3 is there since Linux 5.1. BTF is made from the debug information. The architecture is that of the kernel's `pt_regs`,
/// which aya-ebpf must know. Blocks stay in the order of the source: LLVM would else put the end of a loop before its beginning and let it fall
/// through, and Linux 6.1 allows only jumps to lead back ("back-edge from insn").
const FLAGS: &[&str] = &[
    "-Cdebuginfo=2",
    "-Ctarget-cpu=v3",
    "-Clink-arg=--btf",
    "-Clink-arg=--llvm-args=-disable-block-placement",
    "--cfg=bpf_target_arch=\"x86_64\"",
];

/// What to build.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    /// With the programs' log.
    pub(crate) debug_log: bool,
}

impl Options {
    fn features(self) -> &'static [&'static str] {
        if self.debug_log { &["--features", "debug-log"] } else { &[] }
    }
}

/// A built object.
#[derive(Debug)]
pub(crate) struct Object {
    pub(crate) path: PathBuf,
    pub(crate) bytes: Vec<u8>,
    /// False if it was there already and nothing that it is made from has changed.
    pub(crate) built: bool,
}

/// The compiler, the linker and the environment that both need.
#[derive(Debug)]
pub(crate) struct Builder {
    toolchain: Toolchain,
    linker: PathBuf,
}

impl Builder {
    /// Finds the tools, and installs those that are missing.
    pub(crate) fn new(workspace: &Workspace) -> Result<Self> {
        deps::ensure(Need::Ebpf)?;
        let linker = deps::bpf_linker(workspace)?;
        let toolchain = toolchain::find()?.context(
            "there is no compiler for the eBPF object: set EBPF_RUSTC, or `rustup toolchain add nightly --component rust-src`",
        )?;
        Ok(Self { toolchain, linker })
    }

    /// Builds the object of `workspace`, if what it is made from has changed.
    pub(crate) fn build(&self, workspace: &Workspace, options: Options) -> Result<Object> {
        let name = if options.debug_log { "devgate-debug.bpf" } else { "devgate.bpf" };
        let folder = workspace.ebpf_target();
        let path = folder.join(format!("{name}.o"));
        let stamp = folder.join(format!("{name}.inputs"));

        let inputs = inputs::hash(workspace, &self.identity(options))?;
        if let Ok(bytes) = fs::read(&path)
            && fs::read_to_string(&stamp).is_ok_and(|stamp| stamp == stamp_of(&inputs, &bytes))
        {
            return Ok(Object { path, bytes, built: false });
        }
        let linked = self.compile(workspace, options)?;
        let bytes = strip(&linked, &folder.join(format!("{name}.stripped")))?;
        if fs::read(&path).ok().as_ref() != Some(&bytes) {
            replace(&path, &bytes)?;
        }
        replace(&stamp, stamp_of(&inputs, &bytes).as_bytes())?;
        Ok(Object { path, bytes, built: true })
    }

    /// A cargo of the eBPF toolchain, set up for `verb` on the eBPF crate.
    pub(crate) fn cargo(&self, workspace: &Workspace, verb: &str, options: Options) -> Command {
        let mut command = Command::new(&self.toolchain.cargo);
        command::clean_cargo_environment(&mut command);
        command
            .current_dir(workspace.root())
            .env("RUSTC", &self.toolchain.rustc)
            .env("RUSTC_BOOTSTRAP", "1")
            .env("CARGO_ENCODED_RUSTFLAGS", self.flags(workspace).join("\u{1f}"))
            .env("PATH", self.path())
            .args([verb, "--locked", "--quiet", "--package", PACKAGE, "--profile", PROFILE])
            .args(["--target", TARGET, "-Zbuild-std=core", "--target-dir"])
            .arg(workspace.ebpf_target().join("build"))
            .args(options.features());
        command
    }

    fn compile(&self, workspace: &Workspace, options: Options) -> Result<PathBuf> {
        command::run(&mut self.cargo(workspace, "build", options))?;
        Ok(workspace.ebpf_target().join("build").join(TARGET).join(PROFILE).join(PACKAGE))
    }

    /// What besides the sources decides the bytes of the object.
    fn identity(&self, options: Options) -> Vec<String> {
        let mut identity: Vec<_> = FLAGS.iter().chain(options.features()).map(ToString::to_string).collect();
        identity.push(self.toolchain.version.clone());
        identity.push(self.linker.display().to_string());
        identity
    }

    /// The compiler's flags. All paths that could get into the object are replaced, so that it does not depend on where it is built.
    fn flags(&self, workspace: &Workspace) -> Vec<String> {
        let library = self.toolchain.library();
        let mut paths = vec![(workspace.root().to_owned(), "/devgate"), (cargo_home(), "/cargo")];
        // Debian's library folder is a link; the compiler writes both names.
        paths.extend(library.canonicalize().map(|target| (target, "/rust/library")));
        paths.push((library, "/rust/library"));
        let remaps = paths.iter().map(|(path, name)| format!("--remap-path-prefix={}={name}", path.display()));
        FLAGS.iter().map(ToString::to_string).chain(remaps).collect()
    }

    /// The search path with the linker in front: the target's default linker is called by its name.
    fn path(&self) -> std::ffi::OsString {
        let path = env::var_os("PATH").unwrap_or_default();
        let folders = std::iter::once(self.linker.clone()).chain(env::split_paths(&path));
        env::join_paths(folders).unwrap_or(path)
    }
}

/// Takes the DWARF sections out, and their relocations; BTF stays.
fn strip(linked: &Path, to: &Path) -> Result<Vec<u8>> {
    command::run(Command::new(deps::llvm_program("llvm-objcopy")).arg("--strip-debug").arg(linked).arg(to))?;
    let bytes = fs::read(to).with_context(|| format!("cannot read {}", to.display()))?;
    fs::remove_file(to).with_context(|| format!("cannot remove {}", to.display()))?;
    Ok(bytes)
}

/// Writes a file so that others see the old content or the new.
fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    let new = path.with_extension("new");
    fs::write(&new, bytes).with_context(|| format!("cannot write {}", new.display()))?;
    fs::rename(&new, path).with_context(|| format!("cannot replace {}", path.display()))
}

/// What is written beside the object: from what it was made, and what it was, should somebody have changed it since.
fn stamp_of(inputs: &str, bytes: &[u8]) -> String {
    format!("inputs {inputs}\nobject {}\n", hash::sha256(bytes))
}

fn cargo_home() -> PathBuf {
    let home = || env::var_os("HOME").map(PathBuf::from).unwrap_or_default().join(".cargo");
    env::var_os("CARGO_HOME").map_or_else(home, PathBuf::from)
}
