//! What cargo says it has built.

use std::path::PathBuf;

use anyhow::{Context, Result};
use serde::Deserialize;

/// An executable that cargo has built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Artifact {
    /// The package's name, as in its manifest.
    pub(crate) package: String,
    /// The target's name: of a library, of a binary or of a file in `tests/`.
    pub(crate) target: String,
    /// `lib`, `bin`, `test`, ...
    pub(crate) kind: String,
    /// Whether it is the target's test executable.
    pub(crate) test: bool,
    /// The package's folder: tests run in it.
    pub(crate) folder: PathBuf,
    pub(crate) executable: PathBuf,
}

/// The executables among the lines of `cargo ... --message-format=json`.
pub(crate) fn parse(messages: &str) -> Result<Vec<Artifact>> {
    let mut artifacts = Vec::new();
    for line in messages.lines().filter(|line| line.starts_with('{')) {
        let message: Message = serde_json::from_str(line).context("cannot read what cargo prints")?;
        if let (Some(package_id), Some(manifest), Some(target), Some(executable)) =
            (message.package_id, message.manifest_path, message.target, message.executable)
        {
            artifacts.push(Artifact {
                package: package_name(&package_id).to_owned(),
                target: target.name,
                kind: target.kind.into_iter().next().unwrap_or_default(),
                test: message.profile.is_some_and(|profile| profile.test),
                folder: manifest.parent().map(PathBuf::from).unwrap_or_default(),
                executable,
            });
        }
    }
    Ok(artifacts)
}

#[derive(Deserialize)]
struct Message {
    package_id: Option<String>,
    manifest_path: Option<PathBuf>,
    target: Option<Target>,
    profile: Option<Profile>,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

/// The name in a package id, which is `path+file:///folder#name@version`, or `...folder#version` if the folder is called as the package.
fn package_name(id: &str) -> &str {
    let (source, fragment) = id.rsplit_once('#').unwrap_or((id, ""));
    match fragment.split_once('@') {
        Some((name, _)) => name,
        None => source.rsplit('/').next().unwrap_or(source),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // As cargo 1.95 prints them, less the fields that are not read.
    const MESSAGES: &str = concat!(
        r#"{"reason":"compiler-artifact","package_id":"registry+https://github.com/rust-lang/crates.io-index#libc@0.2.180","target":{"kind":["lib"],"name":"libc"},"profile":{"test":false},"executable":null}"#,
        "\n",
        r#"{"reason":"build-script-executed","package_id":"path+file:///w/agent#devgate@0.1.0","linked_libs":[]}"#,
        "\n",
        r#"{"reason":"compiler-artifact","package_id":"path+file:///w/agent#devgate@0.1.0","manifest_path":"/w/agent/Cargo.toml","target":{"kind":["bin"],"name":"devgate"},"profile":{"test":false},"executable":"/w/target/debug/devgate"}"#,
        "\n",
        r#"{"reason":"compiler-artifact","package_id":"path+file:///w/xtask#0.1.0","manifest_path":"/w/xtask/Cargo.toml","target":{"kind":["bin"],"name":"xtask"},"profile":{"test":true},"executable":"/w/target/debug/deps/xtask-1"}"#,
        "\n",
        r#"{"reason":"build-finished","success":true}"#,
    );

    #[test]
    fn executables_are_found() {
        let artifact = |package: &str, test, folder: &str, executable: &str| Artifact {
            package: package.into(),
            target: package.into(),
            kind: "bin".into(),
            test,
            folder: folder.into(),
            executable: executable.into(),
        };
        assert_eq!(
            parse(MESSAGES).unwrap(),
            [
                artifact("devgate", false, "/w/agent", "/w/target/debug/devgate"),
                artifact("xtask", true, "/w/xtask", "/w/target/debug/deps/xtask-1")
            ]
        );
    }
}
