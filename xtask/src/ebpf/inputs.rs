//! What the eBPF object is made from, as one hash.

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Context, Result};
use serde::Deserialize;

use super::PACKAGE;
use crate::hash::Hash;
use crate::tree;
use crate::workspace::Workspace;

/// The hash of the sources, of the locked dependencies and of `rest`: flags, and versions of the tools.
pub(crate) fn hash(workspace: &Workspace, rest: &[String]) -> Result<String> {
    let root = workspace.root();
    let mut hash = Hash::new();
    // The root manifest has the profile, the lints and the dependencies' versions.
    let mut files = vec![root.join("Cargo.toml")];
    files.extend(tree::files(&root.join("agent-ebpf"))?);
    for file in &files {
        hash = hash.add_file(root, file)?;
    }
    let lock = root.join("Cargo.lock");
    let lock = fs::read_to_string(&lock).with_context(|| format!("cannot read {}", lock.display()))?;
    for package in locked(&lock)? {
        hash = hash.add(package);
    }
    Ok(rest.iter().fold(hash, Hash::add).full())
}

/// A lock file, as far as it is of interest here.
#[derive(Deserialize)]
struct Lock {
    package: Vec<LockedPackage>,
}

#[derive(Deserialize)]
struct LockedPackage {
    name: String,
    version: String,
    checksum: Option<String>,
    #[serde(default)]
    dependencies: Vec<String>,
}

/// The locked packages that the eBPF crate depends on, directly or not, each as one line.
fn locked(lock: &str) -> Result<BTreeSet<String>> {
    let lock: Lock = toml::from_str(lock).context("cannot read Cargo.lock")?;
    let mut found = BTreeSet::new();
    let mut open = vec![PACKAGE.to_owned()];
    while let Some(wanted) = open.pop() {
        // A dependency is "name", or "name version" where the name is not unique, and then perhaps a source.
        let mut words = wanted.split(' ');
        let (name, version) = (words.next().unwrap_or_default(), words.next());
        let matching =
            |package: &&LockedPackage| package.name == name && version.is_none_or(|version| package.version == version);
        for package in lock.package.iter().filter(matching) {
            let checksum = package.checksum.as_deref().unwrap_or_default();
            if found.insert(format!("{name} {} {checksum}", package.version)) {
                open.extend(package.dependencies.iter().cloned());
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCK: &str = r#"
version = 4

[[package]]
name = "devgate-ebpf"
version = "0.1.0"
dependencies = ["aya-ebpf", "syn 2.0.1"]

[[package]]
name = "aya-ebpf"
version = "0.2.1"
source = "registry+https://github.com/rust-lang/crates.io-index"
checksum = "abc"

[[package]]
name = "syn"
version = "1.0.9"

[[package]]
name = "syn"
version = "2.0.1"

[[package]]
name = "tokio"
version = "1.54.0"
"#;

    #[test]
    fn only_what_the_ebpf_crate_depends_on_counts() {
        let found = locked(LOCK).unwrap();
        assert_eq!(found.into_iter().collect::<Vec<_>>(), ["aya-ebpf 0.2.1 abc", "devgate-ebpf 0.1.0 ", "syn 2.0.1 "]);
    }
}
