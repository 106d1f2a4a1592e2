//! The images that machines start from: built once from Debian's packages, and kept by the hash of what they are made of.

mod apt;
mod disk;
mod kernel;
mod saved;
mod userland;

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    time::Instant,
};

use anyhow::{Context as _, Result};
use sha2::{Digest as _, Sha256};

use crate::{accelerator::Accelerator, qemu, row::Row};
use apt::Apt;

/// Where images are kept.
#[derive(Clone, Debug)]
pub struct Store {
    folder: PathBuf,
    endpoint: PathBuf,
}

/// A machine that has been started, is idle, and was saved: its kernel, its disk and its memory.
#[derive(Clone, Debug)]
pub(crate) struct Image {
    pub(crate) kernel: Kernel,
    /// A raw disk with one file system.
    pub(crate) disk: PathBuf,
    /// The memory, as QEMU's migration writes it.
    pub(crate) memory: PathBuf,
    pub(crate) accelerator: Accelerator,
}

/// What a machine is started with.
#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    /// The kernel as an ELF file, which QEMU enters without firmware.
    pub(crate) elf: PathBuf,
    pub(crate) initrd: PathBuf,
    /// The root of a tree with `lib/modules`.
    modules: PathBuf,
}

impl Store {
    /// Images in `folder`, with this endpoint in them: a statically linked `devgate-endpoint`.
    pub fn new(folder: impl AsRef<Path>, endpoint: impl Into<PathBuf>) -> Result<Self> {
        // Programs that are run in other folders get paths below this one.
        let folder = std::path::absolute(folder).context("the folder of the images has no path")?;
        Ok(Self { folder, endpoint: endpoint.into() })
    }

    /// Builds what is missing for a row, which takes a minute, and says so.
    pub fn prepare(&self, row: Row) -> Result<()> {
        self.image(row).map(drop)
    }

    /// The image of a row.
    pub(crate) fn image(&self, row: Row) -> Result<Image> {
        let apt = Apt::new(row.suite)?;
        let userland = userland::key(&apt, row.suite);
        let userland = self.ensure(&userland, "userland", |folder| userland::build(&apt, row.suite, folder))?;
        let kernel = self.ensure(&kernel::key(&apt, row), "kernel", |folder| kernel::build(&apt, row, folder))?;
        let kernel = Kernel {
            elf: kernel.join(kernel::ELF),
            initrd: kernel.join(kernel::INITRD),
            modules: kernel.join(kernel::MODULES),
        };
        let accelerator = self.accelerator(&kernel)?;
        let endpoint = fs::read(&self.endpoint)
            .with_context(|| format!("cannot read the endpoint {}", self.endpoint.display()))?;
        let key = saved::key(row)?
            .add(userland.as_os_str().as_encoded_bytes())
            .add(kernel.elf.as_os_str().as_encoded_bytes())
            .add(accelerator.name())
            .add(include_str!("disk.rs"))
            .add(&endpoint);
        let saved = self.ensure(&key, "machine", |folder| {
            disk::build(&userland.join(userland::TREE), &kernel.modules, &self.endpoint, &folder.join(saved::DISK))?;
            saved::build(&kernel, accelerator, folder)
        })?;
        Ok(Image { kernel, disk: saved.join(saved::DISK), memory: saved.join(saved::MEMORY), accelerator })
    }

    /// What runs the machines on this host. It is found out once for each start of the host.
    fn accelerator(&self, kernel: &Kernel) -> Result<Accelerator> {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
        let host = Key::new("host").add(boot).add(qemu::version()?).add(include_str!("../accelerator.rs"));
        let found = self.ensure(&host, "accelerator", |folder| {
            let found = Accelerator::probe(kernel)?;
            fs::write(folder.join("name"), found.name())?;
            Ok(())
        })?;
        let name = fs::read_to_string(found.join("name"))?;
        Accelerator::named(&name).with_context(|| format!("{name} runs no machines"))
    }

    /// The folder of what `key` stands for; builds it if it is not there. One process builds, others wait for it.
    fn ensure(&self, key: &Key, what: &str, build: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
        let home = self.folder.join(key.folder(what));
        if home.exists() {
            return Ok(home);
        }
        fs::create_dir_all(&self.folder).with_context(|| format!("cannot make {}", self.folder.display()))?;
        let lock = File::create(self.folder.join("lock"))?;
        lock.lock()?;
        if home.exists() {
            return Ok(home);
        }
        let start = Instant::now();
        let scratch = self.folder.join("new");
        if scratch.exists() {
            fs::remove_dir_all(&scratch).context("cannot remove what an interrupted run has left")?;
        }
        fs::create_dir(&scratch)?;
        build(&scratch).with_context(|| format!("cannot make the {what} of {}", key.name))?;
        self.remove_older(key, what)?;
        fs::rename(&scratch, &home)?;
        eprintln!("made: {what} of {} in {:.1} s", key.name, start.elapsed().as_secs_f64());
        Ok(home)
    }

    /// Removes what was built under the same name of other ingredients.
    fn remove_older(&self, key: &Key, what: &str) -> Result<()> {
        let name = format!("{what}-{}", key.name);
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().rsplit_once('-').is_some_and(|(older, _)| older == name) {
                fs::remove_dir_all(entry.path())?;
            }
        }
        Ok(())
    }
}

/// The name of something that is built, and the hash of all that it is made of.
struct Key {
    name: String,
    hash: Sha256,
}

impl Key {
    fn new(name: &str) -> Self {
        Self { name: name.to_owned(), hash: Sha256::new() }
    }

    /// Adds an ingredient. Each has its length before it: no two lists look alike.
    fn add(mut self, ingredient: impl AsRef<[u8]>) -> Self {
        let ingredient = ingredient.as_ref();
        self.hash.update((ingredient.len() as u64).to_le_bytes());
        self.hash.update(ingredient);
        self
    }

    fn folder(&self, what: &str) -> String {
        let hash = format!("{:x}", self.hash.clone().finalize());
        format!("{what}-{}-{}", self.name, &hash[..16])
    }
}
