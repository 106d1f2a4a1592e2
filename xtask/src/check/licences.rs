//! The licences and sources of all dependencies, against `deny.toml`.

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::metadata::Metadata;
use crate::workspace::Workspace;

/// What is wrong with the dependencies, one line each.
pub(super) fn findings(workspace: &Workspace, metadata: &Metadata) -> Result<Vec<String>> {
    let path = workspace.root().join("deny.toml");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let policy: Policy = toml::from_str(&text).context("cannot read deny.toml")?;
    let mut findings = Vec::new();
    for package in &metadata.packages {
        let name = format!("{} {}", package.name, package.version);
        let licence = package.license.as_deref().unwrap_or("none");
        if !permits(licence, &policy.licenses.allow) {
            findings.push(format!("{name}: the licence `{licence}` is not among those of deny.toml"));
        }
        if let Some(source) = &package.source {
            let registry =
                source.strip_prefix("registry+").is_some_and(|url| policy.sources.allow_registry.contains(url));
            if !registry {
                findings.push(format!("{name}: the source `{source}` is not among those of deny.toml"));
            }
        }
    }
    Ok(findings)
}

#[derive(Deserialize)]
struct Policy {
    licenses: Licences,
    sources: Sources,
}

#[derive(Deserialize)]
struct Licences {
    allow: BTreeSet<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Sources {
    allow_registry: BTreeSet<String>,
}

/// Whether one of the choices that an SPDX expression gives consists of allowed licences alone. `OR` binds weaker than `AND`; an old `/` means `OR`.
fn permits(expression: &str, allowed: &BTreeSet<String>) -> bool {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let mut words = spaced.split_whitespace().peekable();
    let permitted = any(&mut words, allowed);
    // What is left over was not understood.
    permitted && words.next().is_none()
}

type Words<'a> = std::iter::Peekable<std::str::SplitWhitespace<'a>>;

fn any(words: &mut Words<'_>, allowed: &BTreeSet<String>) -> bool {
    let mut permitted = all(words, allowed);
    while words.next_if_eq(&"OR").is_some() {
        permitted |= all(words, allowed);
    }
    permitted
}

fn all(words: &mut Words<'_>, allowed: &BTreeSet<String>) -> bool {
    let mut permitted = one(words, allowed);
    while words.next_if_eq(&"AND").is_some() {
        permitted &= one(words, allowed);
    }
    permitted
}

fn one(words: &mut Words<'_>, allowed: &BTreeSet<String>) -> bool {
    if words.next_if_eq(&"(").is_some() {
        let permitted = any(words, allowed);
        return words.next() == Some(")") && permitted;
    }
    let mut licence = words.next().unwrap_or_default().to_owned();
    if words.next_if_eq(&"WITH").is_some() {
        licence = format!("{licence} WITH {}", words.next().unwrap_or_default());
    }
    allowed.contains(&licence)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_are_weighed() {
        let allowed = ["MIT", "Apache-2.0", "Unicode-3.0", "Apache-2.0 WITH LLVM-exception"].map(str::to_owned).into();
        for good in [
            "MIT",
            "GPL-2.0-only OR MIT",
            "MIT/GPL-3.0",
            "(MIT OR GPL-2.0-only) AND Unicode-3.0",
            "Apache-2.0 WITH LLVM-exception",
            "MIT AND Apache-2.0 OR GPL-2.0-only",
        ] {
            assert!(permits(good, &allowed), "{good}");
        }
        for bad in ["GPL-2.0-only", "MIT AND GPL-2.0-only", "none", "", "Apache-2.0 WITH other", "(MIT", "MIT MIT"] {
            assert!(!permits(bad, &allowed), "{bad}");
        }
    }
}
