//! Programs built from their published sources and kept in the cache.

use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::command;
use crate::hash::Hash;
use crate::workspace::{self, Workspace};

/// A program that cargo installs.
#[derive(Debug)]
pub(super) struct Program<'a> {
    pub(super) name: &'a str,
    pub(super) version: &'a str,
    /// The choice of features.
    pub(super) features: &'a [&'a str],
    /// What its build finds in the environment.
    pub(super) environment: &'a [(&'a str, &'a Path)],
    /// What else the result depends on: versions of libraries.
    pub(super) built_on: &'a str,
    /// What it is for: completes "to ...".
    pub(super) purpose: &'a str,
}

impl Program<'_> {
    /// The folder of the program; builds it if the cache has none made from the same.
    pub(super) fn ensure(&self, workspace: &Workspace) -> Result<PathBuf> {
        let cache = workspace::cache()?;
        let home = cache.join(format!("{}-{}", self.name, self.key()));
        let folder = home.join("bin");
        if folder.join(self.name).is_file() {
            return Ok(folder);
        }
        fs::create_dir_all(&cache).with_context(|| format!("cannot make {}", cache.display()))?;
        // Another run may be building it.
        let lock = File::create(cache.join(format!("{}.lock", self.name))).context("cannot lock the cache")?;
        lock.lock().context("cannot lock the cache")?;
        if !folder.join(self.name).is_file() {
            eprintln!("missing: {} {}, to {}; building it", self.name, self.version, self.purpose);
            self.install(workspace, &cache.join(format!("{}.new", self.name)), &home)?;
        }
        Ok(folder)
    }

    fn key(&self) -> String {
        let hash = Hash::new().add(self.version).add(self.built_on).add(env::consts::ARCH);
        self.features.iter().fold(hash, Hash::add).short()
    }

    /// Builds into `scratch` and moves the result to `home`, so that `home` is complete whenever it exists.
    fn install(&self, workspace: &Workspace, scratch: &Path, home: &Path) -> Result<()> {
        let mut cargo = workspace.cargo();
        command::clean_cargo_environment(&mut cargo);
        // A dependency may ask rustup for a toolchain of its own, unless one is named.
        cargo
            .envs(env::var_os("RUSTUP_TOOLCHAIN").map(|toolchain| ("RUSTUP_TOOLCHAIN", toolchain)))
            .envs(self.environment.iter().copied())
            .args(["install", "--locked", "--force", "--quiet", self.name, "--version", self.version])
            .args(self.features)
            .arg("--root")
            .arg(scratch);
        command::run(&mut cargo).with_context(|| format!("cannot build {}", self.name))?;
        // What an interrupted removal left of an older one would be in the way.
        if home.exists() {
            fs::remove_dir_all(home).with_context(|| format!("cannot remove {}", home.display()))?;
        }
        fs::rename(scratch, home).with_context(|| format!("cannot move {} to {}", self.name, home.display()))
    }
}
