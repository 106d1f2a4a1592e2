//! The mounts that this process sees.

use std::fs;
use std::path::PathBuf;

/// One line of `/proc/self/mountinfo`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mount {
    pub(crate) point: PathBuf,
    /// The file system's type.
    pub(crate) kind: String,
    pub(crate) writable: bool,
}

/// All mounts; none if they cannot be read.
pub(crate) fn list() -> Vec<Mount> {
    parse(&fs::read_to_string("/proc/self/mountinfo").unwrap_or_default())
}

fn parse(mountinfo: &str) -> Vec<Mount> {
    mountinfo
        .lines()
        .filter_map(|line| {
            // See proc_pid_mountinfo(5): optional fields end with a dash.
            let (mount, filesystem) = line.split_once(" - ")?;
            let mut fields = mount.split(' ').skip(4);
            let (point, options) = (fields.next()?, fields.next()?);
            let mut filesystem = filesystem.split(' ');
            let (kind, superblock) = (filesystem.next()?, filesystem.nth(1).unwrap_or_default());
            let read_only = |options: &str| options.split(',').any(|option| option == "ro");
            Some(Mount {
                point: unescape(point).into(),
                kind: kind.to_owned(),
                writable: !read_only(options) && !read_only(superblock),
            })
        })
        .collect()
}

/// Undoes the kernel's octal escapes of white space and backslash.
fn unescape(path: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .into_iter()
        .fold(path.to_owned(), |path, (escape, character)| path.replace(escape, character))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mountinfo_is_read() {
        let mountinfo = "\
33 24 0:29 / /sys/fs/cgroup/unified rw,nosuid,nodev,noexec,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate
34 24 0:30 / /sys/fs/bpf rw,relatime - bpf none ro
35 24 0:31 / /mnt/a\\040b ro,relatime - tmpfs tmpfs rw
";
        let mount = |point: &str, kind: &str, writable| Mount { point: point.into(), kind: kind.into(), writable };
        assert_eq!(
            parse(mountinfo),
            [
                mount("/sys/fs/cgroup/unified", "cgroup2", true),
                mount("/sys/fs/bpf", "bpf", false),
                mount("/mnt/a b", "tmpfs", false)
            ]
        );
    }
}
