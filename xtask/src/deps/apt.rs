//! Debian packages: asking which are there, installing those that are not.

use std::collections::BTreeSet;
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::table::Package;
use crate::command;

/// Installs those of `packages` that are missing.
pub(crate) fn ensure(packages: &[Package]) -> Result<()> {
    let names: Vec<_> = packages.iter().map(|package| package.name).collect();
    let Some(installed) = installed(&names) else {
        eprintln!(
            "note: no dpkg on this machine, so nothing is checked; needed is what corresponds to: {}",
            names.join(" ")
        );
        return Ok(());
    };
    let missing: Vec<_> = packages.iter().filter(|package| !installed.contains(package.name)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    for package in &missing {
        eprintln!("missing: {}, to {}", package.name, package.purpose);
    }
    let names: Vec<_> = missing.iter().map(|package| package.name).collect();
    if !command::is_root() {
        bail!("packages are missing and only root can install them: sudo apt-get install {}", names.join(" "));
    }
    install(&names)
}

/// The version of an installed package.
pub(crate) fn version(package: &str) -> Option<String> {
    command::probe(Command::new("dpkg-query").args(["--show", "--showformat=${Version}", package]))
}

/// Which of `names` are installed; none where there is no dpkg.
fn installed(names: &[&str]) -> Option<BTreeSet<String>> {
    if names.is_empty() {
        return Some(BTreeSet::new());
    }
    // It exits with 1 as soon as it does not know one of the names, and still lists the others.
    let output = Command::new("dpkg-query")
        .args(["--show", "--showformat=${db:Status-Status} ${Package}\n"])
        .args(names)
        .output()
        .ok()?;
    Some(parse_installed(&String::from_utf8_lossy(&output.stdout)))
}

fn parse_installed(listing: &str) -> BTreeSet<String> {
    listing.lines().filter_map(|line| line.strip_prefix("installed ")).map(str::to_owned).collect()
}

fn install(names: &[&str]) -> Result<()> {
    eprintln!("installing {}", names.join(" "));
    // A fresh machine has no package lists, an old one may have lists of packages that are gone.
    if command::probe(&mut apt_get(&["install"], names)).is_some() {
        return Ok(());
    }
    eprintln!("the package lists do not serve: apt-get update");
    command::run(&mut apt_get(&["-qq", "update"], &[]))?;
    command::run(&mut apt_get(&["-qq", "install"], names))
        .with_context(|| format!("cannot install {}", names.join(" ")))
}

fn apt_get(verb: &[&str], names: &[&str]) -> Command {
    let mut command = Command::new("apt-get");
    command
        .env("DEBIAN_FRONTEND", "noninteractive")
        .args(["--yes", "--no-install-recommends", "--option", "DPkg::Lock::Timeout=600"])
        .args(verb)
        .args(names);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_installed_packages_count() {
        let listing = "installed iproute2\nnot-installed rustc-web\nconfig-files llvm-22-dev\n";
        assert_eq!(parse_installed(listing), BTreeSet::from(["iproute2".to_owned()]));
    }
}
