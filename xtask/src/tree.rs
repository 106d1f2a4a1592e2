//! Walking and copying source trees.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The files below `folder` in the order of their names, without those that no source is: version control and build output.
pub(crate) fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    walk(folder, &mut found)?;
    found.sort();
    Ok(found)
}

/// Makes `to` the same tree as `from`. What is equal already is left alone, so that cargo builds no more than it must.
pub(crate) fn mirror(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("cannot make {}", to.display()))?;
    let sources = files(from)?;
    for old in files(to)? {
        let source = from.join(old.strip_prefix(to)?);
        if sources.binary_search(&source).is_err() {
            fs::remove_file(&old).with_context(|| format!("cannot remove {}", old.display()))?;
        }
    }
    for source in sources {
        copy(&source, &to.join(source.strip_prefix(from)?))?;
    }
    Ok(())
}

fn walk(folder: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    let entries = fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
    for entry in entries {
        let entry = entry.with_context(|| format!("cannot list {}", folder.display()))?;
        let name = entry.file_name();
        if name == ".git" || name == "target" {
            continue;
        }
        let kind = entry.file_type().with_context(|| format!("cannot examine {}", entry.path().display()))?;
        if kind.is_dir() {
            walk(&entry.path(), found)?;
        } else if kind.is_file() {
            found.push(entry.path());
        }
    }
    Ok(())
}

/// Copies a file, unless the copy has the same content. Only a changed copy is newer than what was built from it.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let content = fs::read(from).with_context(|| format!("cannot read {}", from.display()))?;
    if fs::read(to).is_ok_and(|copy| copy == content) {
        return Ok(());
    }
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    fs::write(to, content).with_context(|| format!("cannot write {}", to.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder of its own for a test, gone at its end.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let folder = std::env::temp_dir().join(format!("devgate-test-xtask-{name}-{}", std::process::id()));
            fs::create_dir_all(&folder).unwrap();
            Self(folder)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    #[test]
    fn mirror_adds_updates_and_removes() {
        let scratch = Scratch::new("mirror");
        let (from, to) = (scratch.0.join("from"), scratch.0.join("to"));
        fs::create_dir_all(from.join("src")).unwrap();
        fs::create_dir_all(from.join("target/debug")).unwrap();
        fs::write(from.join("src/a.rs"), "a").unwrap();
        fs::write(from.join("src/b.rs"), "b").unwrap();
        fs::write(from.join("target/debug/x"), "x").unwrap();
        mirror(&from, &to).unwrap();
        assert_eq!(files(&to).unwrap(), [to.join("src/a.rs"), to.join("src/b.rs")]);
        let untouched = fs::metadata(to.join("src/a.rs")).unwrap().modified().unwrap();
        mirror(&from, &to).unwrap();
        assert_eq!(fs::metadata(to.join("src/a.rs")).unwrap().modified().unwrap(), untouched);

        fs::remove_file(from.join("src/b.rs")).unwrap();
        fs::write(from.join("src/a.rs"), "changed").unwrap();
        mirror(&from, &to).unwrap();
        assert_eq!(files(&to).unwrap(), [to.join("src/a.rs")]);
        assert_eq!(fs::read_to_string(to.join("src/a.rs")).unwrap(), "changed");
    }
}
