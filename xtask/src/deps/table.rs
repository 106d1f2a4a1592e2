//! Which packages which task needs, and what for. To add one, add a row.

use super::Need;
use crate::ebpf::toolchain;

/// Where Debian's packages of the LLVM below install it.
pub(crate) const LLVM_PREFIX: &str = "/usr/lib/llvm-22";

/// A Debian package.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Package {
    need: Need,
    pub(crate) name: &'static str,
    /// What it is for: completes "to ...".
    pub(crate) purpose: &'static str,
    /// Whether it is part of an eBPF toolchain, and so not needed where there is another one.
    toolchain: bool,
}

const ROWS: &[Package] = &[
    row(Need::Build, "libudev-dev", "link the agent with libudev"),
    row(Need::Build, "pkg-config", "find libudev"),
    row(Need::Build, "protobuf-compiler", "generate the code of containerd's interface"),
    toolchain_row("rustc-web", "compile for the BPF target"),
    toolchain_row("rust-web-src", "build the core library for the BPF target"),
    toolchain_row("cargo-web", "drive that compiler"),
    row(Need::Ebpf, "llvm-22-dev", "build bpf-linker and strip the object"),
    row(Need::Ebpf, "libpolly-22-dev", "link bpf-linker with LLVM"),
    row(Need::Ebpf, "libzstd-dev", "link bpf-linker with LLVM"),
    row(Need::Host, "busybox-static", "put programs into the images of test containers"),
    row(Need::Host, "containerd", "run containers as a host does"),
    row(Need::Host, "crun", "run containers as a host does, by another runtime"),
    row(Need::Host, "iproute2", "make network namespaces and macvtap devices"),
    row(Need::Host, "runc", "run containers as a host does"),
    row(Need::Host, "udev", "handle the devices that tests plug"),
    row(Need::Vm, "busybox-static", "get at the disks of machines, and put programs into images"),
    row(Need::Vm, "cpio", "pack what machines are started with"),
    row(Need::Vm, "e2fsprogs", "make the disks of machines"),
    row(Need::Vm, "kmod", "find out what modules need each other"),
    row(Need::Vm, "libc6-dev", "link statically what runs in machines"),
    row(Need::Vm, "mmdebstrap", "install Debian on the disks of machines"),
    row(Need::Vm, "qemu-system-x86", "run machines"),
    row(Need::Vm, "xz-utils", "unpack kernels and their modules"),
    row(Need::Vm, "zstd", "unpack kernels and their modules"),
];

/// The packages that `need` asks for on this machine.
pub(crate) fn packages(need: Need) -> Vec<Package> {
    let spare_toolchain = need == Need::Ebpf && toolchain::find().is_ok_and(|found| found.is_some());
    ROWS.iter().filter(|row| row.need == need && !(row.toolchain && spare_toolchain)).copied().collect()
}

const fn row(need: Need, name: &'static str, purpose: &'static str) -> Package {
    Package { need, name, purpose, toolchain: false }
}

const fn toolchain_row(name: &'static str, purpose: &'static str) -> Package {
    Package { need: Need::Ebpf, name, purpose, toolchain: true }
}
