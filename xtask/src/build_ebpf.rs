//! `cargo xtask build-ebpf`: makes the object that the agent embeds.

use std::fs;

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::ebpf::{Builder, Object, Options};
use crate::hash;
use crate::tree;
use crate::workspace::Workspace;

/// The arguments of `cargo xtask build-ebpf`.
#[derive(Debug, Args)]
pub(crate) struct BuildEbpf {
    /// Let the programs log what they decide: for debugging, slow
    #[arg(long)]
    debug_log: bool,

    /// Also build twice from two other folders, and fail unless all bytes are the same
    #[arg(long)]
    check: bool,
}

pub(crate) fn run(workspace: &Workspace, arguments: &BuildEbpf) -> Result<()> {
    let options = Options { debug_log: arguments.debug_log };
    let builder = Builder::new(workspace)?;
    let object = builder.build(workspace, options)?;
    println!(
        "{}  {} bytes  sha256 {}{}",
        workspace.relative(&object.path).display(),
        object.bytes.len(),
        hash::sha256(&object.bytes),
        if object.built { "" } else { "  (unchanged)" },
    );
    if arguments.check {
        check(workspace, &builder, options, &object)?;
    }
    Ok(())
}

/// Builds from copies of the workspace whose paths have different lengths, each with a target folder of its own.
fn check(workspace: &Workspace, builder: &Builder, options: Options, object: &Object) -> Result<()> {
    let scratch = workspace.ebpf_target().join("check");
    let mut different = Vec::new();
    for name in ["a", "another-folder"] {
        let copy = Workspace::at(scratch.join(name));
        tree::mirror(workspace.root(), copy.root())?;
        let built = builder.build(&copy, options)?;
        println!("{}  sha256 {}", workspace.relative(&built.path).display(), hash::sha256(&built.bytes));
        if built.bytes != object.bytes {
            different.push(name);
        }
    }
    if !different.is_empty() {
        bail!("not the same bytes: the objects are kept in {}, for comparison", workspace.relative(&scratch).display());
    }
    println!("the same bytes from three folders");
    fs::remove_dir_all(&scratch).with_context(|| format!("cannot remove {}", scratch.display()))
}
