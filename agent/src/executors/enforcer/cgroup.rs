//! Cgroups of the v2 hierarchy, held by descriptor, so that what was checked stays what is used.

use std::{
    fs, io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::fs::{Mode, OFlags, ResolveFlags, fstat, fstatfs, openat, openat2};

/// `CGROUP2_SUPER_MAGIC` in `include/uapi/linux/magic.h`
const CGROUP2_MAGIC: u64 = 0x6367_7270;

/// What can be wrong with a cgroup.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// No cgroup2 file system is mounted there.
    #[error("{0} is not on a cgroup2 file system; mount one (`mount -t cgroup2 none {0}`) or set `cgroup.root`")]
    NotCgroup2(PathBuf),
    /// It cannot be opened.
    #[error("cannot open the cgroup {0}")]
    Open(PathBuf, #[source] io::Error),
    /// The path leads out of the hierarchy or is not in a plain form.
    #[error("the cgroup path {0} is not a plain path below the hierarchy's root")]
    Path(PathBuf),
}

/// The root of the cgroup v2 hierarchy.
#[derive(Debug)]
pub struct CgroupRoot {
    fd: OwnedFd,
    path: PathBuf,
}

/// One cgroup.
#[derive(Debug)]
pub struct Cgroup {
    fd: OwnedFd,
    id: u64,
    path: PathBuf,
}

impl CgroupRoot {
    /// Opens the hierarchy that is mounted at `path`: `/sys/fs/cgroup`, or `/sys/fs/cgroup/unified` on a host that has
    /// the first version of cgroups too.
    pub fn open(path: &Path) -> Result<Self, CgroupError> {
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = openat(rustix::fs::CWD, path, flags, Mode::empty())
            .map_err(|error| CgroupError::Open(path.to_owned(), error.into()))?;
        match fstatfs(&fd) {
            Ok(status) if status.f_type.cast_unsigned() == CGROUP2_MAGIC => Ok(Self { fd, path: path.to_owned() }),
            Ok(_) => Err(CgroupError::NotCgroup2(path.to_owned())),
            Err(error) => Err(CgroupError::Open(path.to_owned(), error.into())),
        }
    }

    /// Finds where the hierarchy is mounted: `/sys/fs/cgroup` or `/sys/fs/cgroup/unified`.
    pub fn find() -> Result<Self, CgroupError> {
        let pure = Path::new("/sys/fs/cgroup");
        match Self::open(pure) {
            Err(CgroupError::NotCgroup2(_)) => {
                Self::open(&pure.join("unified")).map_err(|_| CgroupError::NotCgroup2(pure.to_owned()))
            }
            other => other,
        }
    }

    /// Another handle of the same hierarchy.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { fd: self.fd.try_clone()?, path: self.path.clone() })
    }

    /// Where the hierarchy is mounted.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens a cgroup by its path from the root, as `/proc/PID/cgroup` shows it: `/` or `/a/b`.
    pub fn cgroup(&self, path: &Path) -> Result<Cgroup, CgroupError> {
        let bad = || CgroupError::Path(path.to_owned());
        let relative = path.strip_prefix("/").map_err(|_| bad())?;
        let plain = relative.components().all(|part| matches!(part, std::path::Component::Normal(_)));
        if !plain {
            return Err(bad());
        }
        let name = if relative.as_os_str().is_empty() { Path::new(".") } else { relative };
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
        let failed = |error: rustix::io::Errno| CgroupError::Open(path.to_owned(), error.into());
        let fd =
            openat2(&self.fd, name, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty(), resolve).map_err(failed)?;
        let id = fstat(&fd).map_err(failed)?.st_ino;
        Ok(Cgroup { fd, id, path: path.to_owned() })
    }

    /// The folder of a cgroup in the file system.
    pub fn folder(&self, path: &Path) -> PathBuf {
        self.path.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// The ids of all cgroups that exist now.
    pub fn all_ids(&self) -> io::Result<std::collections::HashSet<u64>> {
        use std::os::unix::fs::DirEntryExt;

        let mut ids = std::collections::HashSet::from([fstat(&self.fd)?.st_ino]);
        let mut folders = vec![self.path.clone()];
        while let Some(folder) = folders.pop() {
            // A cgroup may go while we look; it is then in no list.
            let Ok(entries) = fs::read_dir(&folder) else { continue };
            for entry in entries.flatten() {
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    ids.insert(entry.ino());
                    folders.push(entry.path());
                }
            }
        }
        Ok(ids)
    }
}

impl AsFd for CgroupRoot {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Cgroup {
    /// The cgroup's id as the kernel programs see it: the number of its inode (64-bit kernels from 5.5 on; never used
    /// for another cgroup until the next boot).
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The path from the hierarchy's root, `/a/b`.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How many levels it lies below the root.
    pub fn level(&self) -> u32 {
        self.path.components().count() as u32 - 1
    }

    /// Whether it is `ancestor` or lies below it.
    pub fn is_within(&self, ancestor: &Self) -> bool {
        self.path.starts_with(&ancestor.path)
    }
}

impl AsFd for Cgroup {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
