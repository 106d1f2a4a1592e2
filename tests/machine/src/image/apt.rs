//! Debian's packages, from the mirror that this machine is configured with, whatever release it runs itself.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};

use crate::program;

/// The keys that releases are signed with.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Prints the address and the release of each list of packages.
const TARGETS: &[&str] = &[
    "indextargets",
    "Created-By: Packages",
    "Origin: Debian",
    "Component: main",
    "--format",
    "$(REPO_URI) $(RELEASE)",
];

/// The packages of one release, with its updates and backports.
#[derive(Debug)]
pub(super) struct Apt {
    sources: String,
}

impl Apt {
    /// The packages of the release with this code name.
    pub(super) fn new(suite: &str) -> Result<Self> {
        let release = fs::read_to_string("/etc/os-release").context("cannot read /etc/os-release")?;
        let own = release
            .lines()
            .find_map(|line| line.strip_prefix("VERSION_CODENAME="))
            .context("/etc/os-release names no release: images are built on Debian")?;
        let mut targets = program::text(Command::new("apt-get").args(TARGETS))?;
        if targets.is_empty() {
            program::run(Command::new("apt-get").args(["--quiet", "update"]))?;
            targets = program::text(Command::new("apt-get").args(TARGETS))?;
        }
        let sources = sources(&targets, own, suite);
        ensure!(!sources.is_empty(), "apt is configured with no mirror of Debian {own}");
        Ok(Self { sources })
    }

    /// The lines of a `sources.list`.
    pub(super) fn sources(&self) -> &str {
        &self.sources
    }

    /// Writes a `sources.list` into a folder.
    pub(super) fn write_sources(&self, folder: &Path) -> Result<PathBuf> {
        let path = folder.join("sources.list");
        fs::write(&path, &self.sources)?;
        Ok(path)
    }

    /// Downloads the package that `meta` stands for in `suite`, a package that is there only to depend on the newest of
    /// its kind. Returns the path of the file below `folder`.
    pub(super) fn download_newest(&self, meta: &str, suite: &str, folder: &Path) -> Result<PathBuf> {
        let apt = Private::new(self, folder)?;
        program::run(apt.command("apt-get", folder).args(["--quiet", "update"]))?;
        let depends = program::text(apt.command("apt-cache", folder).args(["depends", &format!("{meta}/{suite}")]))?;
        let newest = depends
            .lines()
            .find_map(|line| line.trim().strip_prefix("Depends: "))
            .with_context(|| format!("{meta} in {suite} depends on nothing"))?;
        program::run(apt.command("apt-get", folder).args(["--quiet", "download", newest]))?;
        fs::read_dir(folder)?
            .filter_map(|entry| Some(entry.ok()?.path()))
            .find(|path| path.extension().is_some_and(|extension| extension == "deb"))
            .with_context(|| format!("apt-get download {newest} left no package"))
    }
}

/// Lists of packages beside those of this machine.
struct Private {
    options: Vec<String>,
}

impl Private {
    fn new(apt: &Apt, folder: &Path) -> Result<Self> {
        let sources = apt.write_sources(folder)?;
        let state = folder.join("apt");
        for sub in ["lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(state.join(sub))?;
        }
        let options = [
            format!("Dir::Etc::SourceList={}", sources.display()),
            "Dir::Etc::SourceParts=/dev/null".to_owned(),
            format!("Dir::State::Lists={}", state.join("lists").display()),
            format!("Dir::Cache={}", state.join("cache").display()),
            // Only lists of packages, in one language.
            "Acquire::Languages=none".to_owned(),
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false".to_owned(),
            // The folder is root's, and downloads are checked all the same.
            "APT::Sandbox::User=root".to_owned(),
        ];
        Ok(Self { options: options.into_iter().flat_map(|option| ["--option".to_owned(), option]).collect() })
    }

    fn command(&self, program: &str, folder: &Path) -> Command {
        let mut command = Command::new(program);
        command.current_dir(folder).args(&self.options);
        command
    }
}

/// The sources of `suite`, from the mirrors that the release `own` is taken from.
fn sources(targets: &str, own: &str, suite: &str) -> String {
    let mut lines = Vec::new();
    for (address, release) in targets.lines().filter_map(|line| line.split_once(' ')) {
        let Some(part) = release.strip_prefix(own).filter(|part| part.is_empty() || part.starts_with('-')) else {
            continue;
        };
        lines.push(line(address, &format!("{suite}{part}")));
        if part.is_empty() {
            lines.push(line(address, &format!("{suite}-backports")));
        }
    }
    lines.sort();
    lines.dedup();
    lines.concat()
}

fn line(address: &str, suite: &str) -> String {
    format!("deb [signed-by={KEYRING}] {address} {suite} main\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_release_comes_from_the_same_mirrors() {
        let targets = "http://a.example/debian/ bookworm\nhttp://b.example/security/ bookworm-security\n\
                       http://a.example/debian/ bookworm-backports\nhttp://c.example/ nodistro\n";
        let sources = sources(targets, "bookworm", "trixie");
        let suites: Vec<_> =
            sources.lines().filter_map(|line| line.split_once("] ")?.1.strip_suffix(" main")).collect();
        assert_eq!(
            suites,
            [
                "http://a.example/debian/ trixie",
                "http://a.example/debian/ trixie-backports",
                "http://b.example/security/ trixie-security"
            ]
        );
    }
}
