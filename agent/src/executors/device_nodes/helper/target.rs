//! Taking hold of a container's namespaces, and entering them.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::rc::Rc;

use rustix::fs::{Mode, OFlags, fstat, open, openat};
use rustix::io::Errno;
use rustix::process::{Gid, Uid, fchdir, umask};
use rustix::thread::{
    CapabilitySet, CapabilitySets, LinkNameSpaceType, move_into_link_name_space, set_capabilities, set_no_new_privs,
    set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};

use super::host_mounts::HostMounts;
use super::id_map::IdMaps;
use super::server::Visitor;
use crate::executors::device_nodes::cgroup;
use crate::executors::device_nodes::container::has_exited;
use crate::executors::device_nodes::protocol::Request;
use crate::executors::device_nodes::refusal::EntryError;

/// A container that has been verified and not yet entered.
pub(super) struct Target {
    pub id_maps: IdMaps,
    mount_namespace: OwnedFd,
    /// `None` if it is the helper's own.
    user_namespace: Option<OwnedFd>,
    entered: Entered,
}

/// What is still at hand of the host inside the container.
pub(super) struct Entered {
    /// The helper's directory in the host's procfs. Also its working directory, so that `fd/<n>` names any file it has open.
    pub own_process: OwnedFd,
    /// The mounts of the host, to recognise them in the container.
    pub host: Rc<HostMounts>,
}

const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

impl Target {
    /// Takes the namespaces of the process behind the pidfd and makes sure that they are those of the container.
    ///
    /// Everything is read through the process's directory in procfs, which goes stale when the process exits; that it has not
    /// exited is seen last. Nothing of the container is entered or looked up before all is verified.
    pub(super) fn take(visitor: &Visitor, request: &Request) -> Result<Self, EntryError> {
        let (pidfd, proc_root) = (&visitor.pidfd, &visitor.proc_root);
        let proc = open(proc_root, DIRECTORY, Mode::empty())
            .map_err(|e| failed("open", &proc_root.display().to_string(), e))?;
        let own_process =
            openat(&proc, "self", DIRECTORY, Mode::empty()).map_err(|e| failed("open", "/proc/self", e))?;
        let pid = pid_of(&own_process, pidfd)?;
        let gone_or = |operation: &'static str, path: &'static str| {
            move |errno| match errno {
                Errno::SRCH | Errno::NOENT => EntryError::ProcessGone,
                errno => failed(operation, path, errno),
            }
        };
        let process =
            openat(&proc, pid.to_string(), DIRECTORY, Mode::empty()).map_err(gone_or("open", "/proc/<pid>"))?;
        let namespace = |name: &'static str| {
            openat(&process, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map_err(gone_or("open", name))
        };
        let mount_namespace = namespace("ns/mnt")?;
        let user_namespace = namespace("ns/user")?;
        let id_maps = IdMaps::read(&process).map_err(|e| failed_io("read", "/proc/<pid>/uid_map", &e))?;
        verify_cgroup(&process, request)?;
        if has_exited(pidfd).map_err(|e| failed("poll", "pidfd", e))? {
            return Err(EntryError::ProcessGone);
        }

        let same = |a: &OwnedFd, b: &OwnedFd| -> rustix::io::Result<bool> {
            let (a, b) = (fstat(a)?, fstat(b)?);
            Ok((a.st_dev, a.st_ino) == (b.st_dev, b.st_ino))
        };
        let host = visitor.host.as_ref().map_err(|e| failed_io("read", "/proc/1/mountinfo", e))?.clone();
        let stat_failed = |e| failed("stat", "/proc/<pid>/ns", e);
        let own_mount = openat(&own_process, "ns/mnt", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            .map_err(|e| failed("open", "/proc/self/ns/mnt", e))?;
        if same(&own_mount, &mount_namespace).map_err(stat_failed)?
            || host.first_is_shared_with(&process).map_err(|e| failed_io("read", "/proc/1/mountinfo", &e))?
        {
            return Err(EntryError::HostNamespace);
        }
        let owner = owner_of(&mount_namespace)?;
        if !same(&owner, &user_namespace).map_err(stat_failed)? {
            return Err(EntryError::ForeignUserNamespace);
        }
        let own_user = openat(&own_process, "ns/user", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            .map_err(|e| failed("open", "/proc/self/ns/user", e))?;
        let user_namespace =
            if same(&own_user, &user_namespace).map_err(stat_failed)? { None } else { Some(user_namespace) };
        Ok(Self { id_maps, mount_namespace, user_namespace, entered: Entered { own_process, host } })
    }

    /// Enters the container. In one with a user namespace the helper becomes that namespace's root and has no power outside of it.
    ///
    /// The root directory is from now on that of the mount namespace, where the runtime's `exec` would lead too: a runtime
    /// that moves a mount over the root instead of pivoting ends up in the same place, for the topmost mount counts.
    pub(super) fn enter(self) -> Result<Entered, EntryError> {
        if let Some(user_namespace) = &self.user_namespace {
            move_into_link_name_space(user_namespace.as_fd(), Some(LinkNameSpaceType::User))
                .map_err(|e| failed("setns", "user", e))?;
            let (uid, gid) = (self.id_maps.users.root(), self.id_maps.groups.root());
            // Without a map nothing can be owned by anybody inside: refused as the kernel would refuse it.
            let unmapped = || failed("setresuid", "user", Errno::OVERFLOW);
            let (uid, gid) = (Uid::from_raw(uid.ok_or_else(unmapped)?), Gid::from_raw(gid.ok_or_else(unmapped)?));
            set_thread_res_gid(gid, gid, gid).map_err(|e| failed("setresgid", "user", e))?;
            // A namespace whose maps were written without privilege forbids setgroups; then there are none that it could use.
            match set_thread_groups(&[]) {
                Ok(()) | Err(Errno::PERM) => {}
                Err(e) => return Err(failed("setgroups", "user", e)),
            }
            set_thread_res_uid(uid, uid, uid).map_err(|e| failed("setresuid", "user", e))?;
        }
        move_into_link_name_space(self.mount_namespace.as_fd(), Some(LinkNameSpaceType::Mount))
            .map_err(|e| failed("setns", "mnt", e))?;
        fchdir(&self.entered.own_process).map_err(|e| failed("fchdir", "/proc/self", e))?;
        set_no_new_privs(true).map_err(|e| failed("prctl", "no_new_privs", e))?;
        // What mounting, and writing in a directory of any owner, needs.
        let kept = CapabilitySet::SYS_ADMIN | CapabilitySet::DAC_OVERRIDE;
        let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
        set_capabilities(None, sets).map_err(|e| failed("capset", "self", e))?;
        umask(Mode::empty());
        Ok(self.entered)
    }
}

/// The number of the process behind a pidfd, as the procfs of `own_process` numbers it.
fn pid_of(own_process: &OwnedFd, pidfd: &impl AsFd) -> Result<u32, EntryError> {
    let path = format!("fdinfo/{}", pidfd.as_fd().as_raw_fd());
    let file = openat(own_process, &path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|e| failed("open", &path, e))?;
    let mut text = String::with_capacity(1 << 10);
    File::from(file).take(1 << 12).read_to_string(&mut text).map_err(|e| failed_io("read", &path, &e))?;
    let pid =
        text.lines().find_map(|line| line.strip_prefix("Pid:")).ok_or_else(|| failed("read", "pidfd", Errno::BADF))?;
    // -1 when the process has been reaped, 0 when it is not in this pid namespace.
    match pid.trim().parse::<i64>() {
        Ok(pid) if pid > 0 => u32::try_from(pid).map_err(|_| EntryError::ProcessGone),
        _ => Err(EntryError::ProcessGone),
    }
}

fn verify_cgroup(process: &OwnedFd, request: &Request) -> Result<(), EntryError> {
    let text = |error: cgroup::CgroupError| EntryError::Cgroup(error.to_string());
    let path = cgroup::path_of(process).map_err(text)?;
    let ids = cgroup::ids_upwards(&request.cgroup_root, &path).map_err(text)?;
    if ids.contains(&request.cgroup_id) {
        Ok(())
    } else {
        Err(EntryError::WrongCgroup { expected: request.cgroup_id, path })
    }
}

/// The user namespace that owns a namespace.
fn owner_of(namespace: &OwnedFd) -> Result<OwnedFd, EntryError> {
    // SAFETY: NS_GET_USERNS takes no argument and returns a new descriptor or -1.
    let fd = unsafe { libc::ioctl(namespace.as_raw_fd(), libc::NS_GET_USERNS) };
    if fd < 0 {
        return Err(failed_io("ioctl NS_GET_USERNS", "ns/mnt", &std::io::Error::last_os_error()));
    }
    // SAFETY: the kernel has just made this descriptor and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn failed(operation: &str, path: &str, errno: Errno) -> EntryError {
    EntryError::System { operation: operation.to_owned(), path: path.to_owned(), errno: errno.raw_os_error() }
}

fn failed_io(operation: &str, path: &str, error: &std::io::Error) -> EntryError {
    if error.raw_os_error() == Some(libc::ESRCH) {
        return EntryError::ProcessGone;
    }
    failed(operation, path, Errno::from_io_error(error).unwrap_or(Errno::IO))
}
