//! A BPF file system for tests and benchmarks, on machines where nothing has mounted one.

use std::env;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::command;
use crate::mounts;

/// Where everything expects it.
const MOUNT_POINT: &str = "/sys/fs/bpf";

/// Set in the environment of an xtask that has been through [`ensure`]: if the mount is still not there, trying again will not help.
const DONE: &str = "DEVGATE_XTASK_BPFFS";

/// If root runs this and no BPF file system is mounted: starts this program again in a mount namespace of its own that has one. It and all that is pinned
/// in it is gone when xtask ends, however it ends.
///
/// Does nothing where it is mounted or cannot be; who needs it says so.
pub(crate) fn ensure() -> Result<()> {
    let mounted = mounts::list().iter().any(|mount| mount.kind == "bpf" && mount.point == Path::new(MOUNT_POINT));
    if mounted || !command::is_root() || env::var_os(DONE).is_some() {
        return Ok(());
    }
    eprintln!("note: nothing is mounted at {MOUNT_POINT}; using a BPF file system that only this run sees");
    let program = env::current_exe().context("cannot find the program of xtask")?;
    let script = format!("mount -t bpf bpf {MOUNT_POINT}; exec \"$0\" \"$@\"");
    let error = Command::new("unshare")
        .args(["--mount", "--propagation", "slave", "sh", "-c", &script])
        .arg(program)
        .args(env::args_os().skip(1))
        .env(DONE, "1")
        .exec();
    Err(error).context("cannot run `unshare`")
}
