//! The packages of the workspace and those that they depend on, as cargo knows them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::command;
use crate::workspace::Workspace;

/// What `cargo metadata` prints, as far as it is of interest here.
#[derive(Debug, Deserialize)]
pub(crate) struct Metadata {
    pub(crate) packages: Vec<Package>,
    workspace_members: BTreeSet<String>,
    resolve: Resolve,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Package {
    id: String,
    pub(crate) name: String,
    pub(crate) version: String,
    /// An SPDX expression.
    pub(crate) license: Option<String>,
    /// None for a package of the workspace.
    pub(crate) source: Option<String>,
    pub(crate) manifest_path: PathBuf,
    pub(crate) targets: Vec<Target>,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Target {
    pub(crate) name: String,
    pub(crate) kind: Vec<String>,
    /// The root of the crate.
    pub(crate) src_path: PathBuf,
}

#[derive(Debug, Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Debug, Deserialize)]
struct Node {
    id: String,
    deps: Vec<Dependency>,
}

#[derive(Debug, Deserialize)]
struct Dependency {
    pkg: String,
    dep_kinds: Vec<DependencyKind>,
}

#[derive(Debug, Deserialize)]
struct DependencyKind {
    /// None for a normal dependency, else `dev` or `build`.
    kind: Option<String>,
}

impl Metadata {
    pub(crate) fn read(workspace: &Workspace) -> Result<Self> {
        // Without the dependencies that only other kinds of machines have.
        let version = command::output(workspace.cargo().arg("-vV"))?;
        let host =
            version.lines().find_map(|line| line.strip_prefix("host: ")).context("cargo does not name its host")?;
        let text = command::output(workspace.cargo().args([
            "metadata",
            "--format-version=1",
            "--locked",
            "--filter-platform",
            host,
        ]))?;
        serde_json::from_str(&text).context("cannot read what `cargo metadata` prints")
    }

    /// The packages of the workspace.
    pub(crate) fn members(&self) -> impl Iterator<Item = &Package> {
        self.packages.iter().filter(|package| self.workspace_members.contains(&package.id))
    }

    /// The programs of the workspace's package `name`.
    pub(crate) fn binaries(&self, name: &str) -> Vec<&str> {
        self.members()
            .filter(|package| package.name == name)
            .flat_map(|package| &package.targets)
            .filter(|target| target.kind.iter().any(|kind| kind == "bin"))
            .map(|target| target.name.as_str())
            .collect()
    }

    /// The names of all packages that are linked with the workspace's package `name`.
    pub(crate) fn linked_with(&self, name: &str) -> BTreeSet<&str> {
        let names: BTreeMap<_, _> = self.packages.iter().map(|package| (&package.id, package.name.as_str())).collect();
        let nodes: BTreeMap<_, _> = self.resolve.nodes.iter().map(|node| (&node.id, &node.deps)).collect();
        let mut open: Vec<_> =
            self.members().filter(|package| package.name == name).map(|package| &package.id).collect();
        let mut seen = BTreeSet::new();
        while let Some(id) = open.pop() {
            for dependency in nodes.get(id).into_iter().copied().flatten() {
                let linked = dependency.dep_kinds.iter().any(|kind| kind.kind.is_none());
                if linked && seen.insert(&dependency.pkg) {
                    open.push(&dependency.pkg);
                }
            }
        }
        seen.into_iter().filter_map(|id| names.get(id).copied()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const METADATA: &str = r#"{
        "packages": [
            {"id": "p#core", "name": "core", "version": "1.0.0", "license": null, "source": null, "manifest_path": "/w/core/Cargo.toml",
             "targets": [{"name": "bench-a", "kind": ["bin"], "src_path": "/w/core/src/bin/a.rs"}, {"name": "core", "kind": ["lib"], "src_path": "/w/core/src/lib.rs"}]},
            {"id": "r#a", "name": "a", "version": "1.0.0", "license": "MIT", "source": "r", "manifest_path": "/r/a/Cargo.toml", "targets": []},
            {"id": "r#b", "name": "b", "version": "1.0.0", "license": "MIT", "source": "r", "manifest_path": "/r/b/Cargo.toml", "targets": []},
            {"id": "r#c", "name": "c", "version": "1.0.0", "license": "MIT", "source": "r", "manifest_path": "/r/c/Cargo.toml", "targets": []}
        ],
        "workspace_members": ["p#core"],
        "resolve": {"nodes": [
            {"id": "p#core", "deps": [{"pkg": "r#a", "dep_kinds": [{"kind": null}]}, {"pkg": "r#c", "dep_kinds": [{"kind": "dev"}]}]},
            {"id": "r#a", "deps": [{"pkg": "r#b", "dep_kinds": [{"kind": "build"}, {"kind": null}]}]},
            {"id": "r#b", "deps": []},
            {"id": "r#c", "deps": []}
        ]}
    }"#;

    #[test]
    fn what_is_linked_is_found_and_what_only_tests_use_is_not() {
        let metadata: Metadata = serde_json::from_str(METADATA).unwrap();
        assert_eq!(metadata.linked_with("core"), BTreeSet::from(["a", "b"]));
        assert_eq!(metadata.binaries("core"), ["bench-a"]);
    }
}
