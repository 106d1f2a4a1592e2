//! A kernel out of its package: the kernel itself, those modules that are used, and what it is started with.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File, Permissions},
    io::Write as _,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, bail, ensure};

use super::{Key, apt::Apt};
use crate::{program, row::Row};

pub(super) const ELF: &str = "vmlinux";
pub(super) const INITRD: &str = "initrd";
pub(super) const MODULES: &str = "modules";

/// Debian's package that depends on its newest kernel.
const PACKAGE: &str = "linux-image-amd64";

/// What the initial file system loads to get at the disk.
const FOR_THE_DISK: &[&str] = &["virtio_pci", "virtio_blk", "ext4", "crc32c_generic"];

const BUSYBOX: &str = "/bin/busybox";

pub(super) fn key(apt: &Apt, row: Row) -> Key {
    Key::new(&row.kernel_suite())
        .add(apt.sources())
        .add(include_str!("kernel.rs"))
        .add(include_str!("init.sh"))
        .add(include_str!("modules.list"))
}

/// Downloads the package and takes it apart into `folder`.
pub(super) fn build(apt: &Apt, row: Row, folder: &Path) -> Result<()> {
    let scratch = folder.join("scratch");
    let tree = scratch.join("tree");
    fs::create_dir_all(&tree)?;
    let package = apt.download_newest(PACKAGE, &row.kernel_suite(), &scratch)?;
    program::run(Command::new("dpkg-deb").arg("--extract").arg(&package).arg(&tree))?;
    // Newer packages have nothing in the other place, where all programs look.
    if !tree.join("lib").exists() {
        symlink("usr/lib", tree.join("lib"))?;
    }
    let modules = tree.join("lib/modules");
    let version = only_entry(&modules)?;
    let image = fs::read(tree.join("boot").join(format!("vmlinuz-{version}")))?;
    fs::write(folder.join(ELF), elf(&image)?)?;
    program::run(Command::new("depmod").arg("--basedir").arg(&tree).arg(&version))?;
    let modules = Modules::read(modules.join(&version))?;
    modules.write_subset(&folder.join(MODULES), &version)?;
    modules.write_initrd(&scratch.join("initrd"), &folder.join(INITRD))?;
    let name = package.file_name().context("the package has no name")?.to_string_lossy().into_owned();
    fs::write(folder.join("versions"), name + "\n")?;
    fs::remove_dir_all(scratch)?;
    Ok(())
}

fn only_entry(folder: &Path) -> Result<String> {
    let mut names = fs::read_dir(folder)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    let first = names.next().with_context(|| format!("nothing is in {}", folder.display()))?;
    ensure!(names.next().is_none(), "more than one kernel in {}", folder.display());
    first
}

/// The ELF file that is packed into a `bzImage`: see the boot protocol in the kernel's documentation, `payload_offset`.
fn elf(image: &[u8]) -> Result<Vec<u8>> {
    let number = |offset: usize| -> Result<usize> {
        let bytes = image.get(offset..offset + 4).context("the kernel is too short")?;
        Ok(u32::from_le_bytes(bytes.try_into()?) as usize)
    };
    let sectors = match *image.get(0x1f1).context("the kernel is too short")? {
        0 => 4,
        sectors => usize::from(sectors),
    };
    let start = (sectors + 1) * 512 + number(0x248)?;
    // The last four bytes are the unpacked length, and no part of what was packed.
    let end = start + number(0x24c)? - 4;
    let packed = image.get(start..end).context("the kernel is shorter than it says")?;
    let elf = unpack(packed)?;
    ensure!(elf.starts_with(b"\x7fELF"), "the kernel is no ELF file");
    Ok(elf)
}

/// Unpacks what xz or zstd have packed; what neither has packed stays as it is.
fn unpack(packed: &[u8]) -> Result<Vec<u8>> {
    let program = match packed {
        [0xfd, b'7', b'z', b'X', b'Z', ..] => "xz",
        [0x28, 0xb5, 0x2f, 0xfd, ..] => "zstd",
        _ => return Ok(packed.to_owned()),
    };
    let mut child = Command::new(program)
        .args(["--decompress", "--stdout"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run {program}"))?;
    let mut input = child.stdin.take().context("the program has no input")?;
    let output = std::thread::scope(|scope| {
        // Whatever goes wrong here is seen by the program, which then fails.
        scope.spawn(move || input.write_all(packed));
        child.wait_with_output()
    })?;
    if !output.status.success() {
        bail!("{program}: {}", output.status);
    }
    Ok(output.stdout)
}

/// The modules of a kernel.
struct Modules {
    folder: PathBuf,
    /// By name, with `_` for `-`: the file, below the folder.
    files: BTreeMap<String, String>,
    /// By file: what must be loaded before it, the last first.
    needs: BTreeMap<String, Vec<String>>,
}

impl Modules {
    fn read(folder: PathBuf) -> Result<Self> {
        let (mut files, mut needs) = (BTreeMap::new(), BTreeMap::new());
        for line in fs::read_to_string(folder.join("modules.dep"))?.lines() {
            let (file, dependencies) = line.split_once(':').context("modules.dep has an odd line")?;
            files.insert(name(file), file.to_owned());
            needs.insert(file.to_owned(), dependencies.split_whitespace().map(str::to_owned).collect());
        }
        Ok(Self { folder, files, needs })
    }

    /// The files of these modules and of those that they need, each behind what it needs. What is no module is built
    /// into this kernel, or needless on it.
    fn closure<'a>(&'a self, names: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
        let mut order = Vec::new();
        for file in names.into_iter().filter_map(|name| self.files.get(name)) {
            let before = self.needs[file].iter().rev();
            for file in before.chain([file]) {
                if !order.contains(&file.as_str()) {
                    order.push(file);
                }
            }
        }
        order
    }

    /// Copies the modules of `modules.list` below `root`, as a kernel finds them.
    fn write_subset(&self, root: &Path, version: &str) -> Result<()> {
        let target = root.join("lib/modules").join(version);
        fs::create_dir_all(&target)?;
        for list in ["modules.builtin", "modules.builtin.modinfo", "modules.order"] {
            fs::copy(self.folder.join(list), target.join(list)).with_context(|| format!("cannot copy {list}"))?;
        }
        let lines = include_str!("modules.list").lines().filter(|line| !line.starts_with('#'));
        for file in self.closure(lines.flat_map(str::split_whitespace)).into_iter().collect::<BTreeSet<_>>() {
            let copy = target.join(file);
            fs::create_dir_all(copy.parent().context("a module has no folder")?)?;
            fs::copy(self.folder.join(file), copy)?;
        }
        program::run(Command::new("depmod").arg("--basedir").arg(root).arg(version)).map(drop)
    }

    /// Writes the initial file system, which is made in the folder `scratch`.
    fn write_initrd(&self, scratch: &Path, initrd: &Path) -> Result<()> {
        for folder in ["bin", "dev", "proc", "root", "modules"] {
            fs::create_dir_all(scratch.join(folder))?;
        }
        fs::copy(BUSYBOX, scratch.join("bin/busybox")).context("cannot copy busybox")?;
        fs::write(scratch.join("init"), include_str!("init.sh"))?;
        fs::set_permissions(scratch.join("init"), Permissions::from_mode(0o755))?;
        let mut order = Vec::new();
        for file in self.closure(FOR_THE_DISK.iter().copied()) {
            let name = name(file);
            // The kernel may read packed modules, busybox does not.
            fs::write(scratch.join("modules").join(&name), unpack(&fs::read(self.folder.join(file))?)?)?;
            order.push(name);
        }
        fs::write(scratch.join("modules/order"), order.join("\n") + "\n")?;
        let list = program::run(Command::new("find").arg(".").current_dir(scratch))?;
        let list_file = scratch.with_extension("list");
        fs::write(&list_file, list)?;
        let status = Command::new("cpio")
            .args(["--create", "--format=newc", "--quiet"])
            .current_dir(scratch)
            .stdin(File::open(list_file)?)
            .stdout(File::create(initrd)?)
            .status()
            .context("cannot run cpio")?;
        ensure!(status.success(), "cpio: {status}");
        Ok(())
    }
}

/// The name of the module in a file.
fn name(file: &str) -> String {
    let name = file.rsplit('/').next().unwrap_or(file);
    name.split_once(".ko").map_or(name, |(name, _)| name).replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_needed_comes_first() {
        let text = [("kernel/a.ko.xz", vec!["kernel/b-c.ko", "kernel/d.ko"]), ("kernel/b-c.ko", vec!["kernel/d.ko"])];
        let needs: BTreeMap<_, _> = text
            .into_iter()
            .chain([("kernel/d.ko", vec![])])
            .map(|(file, needs)| (file.to_owned(), needs.into_iter().map(str::to_owned).collect()))
            .collect();
        let files = needs.keys().map(|file: &String| (name(file), file.clone())).collect();
        let modules = Modules { folder: PathBuf::new(), files, needs };
        assert_eq!(modules.closure(["a", "built_in"]), ["kernel/d.ko", "kernel/b-c.ko", "kernel/a.ko.xz"]);
        assert_eq!(modules.closure(["b_c"]), ["kernel/d.ko", "kernel/b-c.ko"]);
    }

    #[test]
    fn what_is_no_kernel_is_refused() {
        elf(b"MZ").unwrap_err();
        elf(&[0; 4096]).unwrap_err();
    }
}
