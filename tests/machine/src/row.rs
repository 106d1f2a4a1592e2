//! What systems the machines run.

use std::fmt;

/// A Debian release with one of its kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// As it appears in the names of tests.
    pub name: &'static str,
    /// The code name of the release.
    pub suite: &'static str,
    /// What has to be added to the code name to get the suite of the kernel.
    pub kernel_suite: &'static str,
}

/// Debian 12 as it is: Linux 6.1, systemd 252, containerd 1.6, runc 1.1, crun 1.8.
pub const DEBIAN_12: Row = Row { name: "debian12", suite: "bookworm", kernel_suite: "" };

/// Debian 12 with the kernel of its backports: Linux 6.12.
pub const DEBIAN_12_LINUX_6_12: Row =
    Row { name: "debian12_linux_6_12", suite: "bookworm", kernel_suite: "-backports" };

/// Debian 13: Linux 6.12, systemd 257, containerd 1.7, runc 1.1, crun 1.21.
pub const DEBIAN_13: Row = Row { name: "debian13", suite: "trixie", kernel_suite: "" };

/// All of them.
pub const ALL: [Row; 3] = [DEBIAN_12, DEBIAN_12_LINUX_6_12, DEBIAN_13];

impl Row {
    /// The suite that its kernel is taken from.
    pub(crate) fn kernel_suite(&self) -> String {
        format!("{}{}", self.suite, self.kernel_suite)
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}
