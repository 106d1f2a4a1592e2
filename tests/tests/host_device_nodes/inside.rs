//! The first processes of a hand-made container: this very executable, started with a hidden argument.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, symlink};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result};
use rustix::fs::{CWD, FileType, Gid, Mode, OFlags, Uid, makedev, mknodat, open};
use rustix::mount::{
    MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, mount, mount_bind_recursive,
    mount_change, mount_move, mount_remount, move_mount, open_tree, unmount,
};
use rustix::process::{chdir, pivot_root};
use rustix::thread::{UnshareFlags, set_thread_res_gid, set_thread_res_uid, unshare_unsafe};

use crate::spec::{Dev, Line, Order, Reply, Spec, Stat};

/// Makes the namespaces and starts [`INIT`] in them.
pub(crate) const CREATE: &str = "create-container";
/// The first process in the container's pid namespace.
pub(crate) const INIT: &str = "init-container";

/// Runs one of the two, if the arguments ask for it.
pub(crate) fn dispatch() -> Option<ExitCode> {
    let result = match std::env::args().nth(1)?.as_str() {
        CREATE => create(),
        INIT => init(),
        _ => return None,
    };
    // The test has gone or has asked for the impossible; it sees the closed socket and this text.
    if let Err(error) = &result {
        eprintln!("container: {error:#}");
    }
    Some(if result.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn line() -> Result<Line> {
    Ok(Line::new(UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?)))
}

fn create() -> Result<()> {
    let mut line = line()?;
    let spec: Spec = line.hear()?;
    if spec.user_namespace {
        unshare(UnshareFlags::NEWUSER)?;
        line.say(&"map me")?;
        let _: String = line.hear()?;
        set_thread_res_gid(Gid::ROOT, Gid::ROOT, Gid::ROOT)?;
        set_thread_res_uid(Uid::ROOT, Uid::ROOT, Uid::ROOT)?;
    }
    unshare(UnshareFlags::NEWNS | UnshareFlags::NEWPID)?;
    let mut init = Command::new("/proc/self/exe")
        .args([INIT, &serde_json::to_string(&spec)?])
        .stdin(Stdio::inherit())
        .spawn()
        .context("start the container's first process")?;
    line.say(&init.id())?;
    init.wait()?;
    Ok(())
}

fn init() -> Result<()> {
    let spec: Spec = serde_json::from_str(&std::env::args().nth(2).context("no spec")?)?;
    let mut line = line()?;
    // Until then the line is the creator's.
    let _: String = line.hear()?;
    make_root(&spec)?;
    line.say(&"ready")?;
    let mut state = State::default();
    // Ends, and the container with it, when the test closes its end.
    while let Ok(order) = line.hear::<Order>() {
        let reply = state.obey(order).unwrap_or_else(|error| Reply::Errno(error.raw_os_error().unwrap_or(libc::EIO)));
        line.say(&reply)?;
    }
    Ok(())
}

fn make_root(spec: &Spec) -> Result<()> {
    // Taken while it is still a peer of the host's mount.
    let host_dev = match &spec.dev {
        Dev::Host(path) => Some(clone_of(path)?),
        Dev::Own | Dev::OwnWithInodes(_) => None,
    };
    let volume = spec.volume.as_ref().map(clone_of).transpose()?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).context("make / private")?;
    mount("tmpfs", "/tmp", "tmpfs", MountFlags::empty(), c"mode=755").context("mount the root")?;
    for directory in ["dev", "old", "volume"] {
        fs::create_dir(format!("/tmp/{directory}"))?;
    }
    if let Some(tree) = &host_dev {
        attach(tree, "/tmp/dev")?;
    } else {
        let inodes =
            if let Dev::OwnWithInodes(count) = spec.dev { format!("nr_inodes={count},") } else { String::new() };
        let options = std::ffi::CString::new(format!("{inodes}size=64k,mode=755"))?;
        mount("tmpfs", "/tmp/dev", "tmpfs", MountFlags::NOSUID, options.as_c_str()).context("mount /dev")?;
    }
    if let Some(tree) = &volume {
        attach(tree, "/tmp/volume")?;
    }
    chdir("/tmp")?;
    pivot_root(".", "old").context("pivot_root")?;
    chdir("/")?;
    unmount("/old", UnmountFlags::DETACH).context("leave the host's root")?;
    Ok(())
}

fn clone_of(path: impl AsRef<std::path::Path>) -> Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    open_tree(CWD, path.as_ref(), flags).with_context(|| format!("clone {}", path.as_ref().display()))
}

fn attach(tree: &OwnedFd, path: &str) -> Result<()> {
    move_mount(tree, "", CWD, path, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH).with_context(|| format!("mount {path}"))
}

fn unshare(flags: UnshareFlags) -> io::Result<()> {
    // SAFETY: only CLONE_FILES can harm, and it is never given.
    unsafe { unshare_unsafe(flags) }.map_err(Into::into)
}

#[derive(Default)]
struct State {
    fuse: Option<OwnedFd>,
}

impl State {
    fn obey(&mut self, order: Order) -> io::Result<Reply> {
        match order {
            Order::Open(path) => drop(open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?),
            Order::Stat(path) => return stat(&path),
            Order::Symlink { target, path } => symlink(target, path)?,
            Order::Mkdir(path) => fs::create_dir_all(path)?,
            Order::Rmdir(path) => fs::remove_dir(path)?,
            Order::Unlink(path) => fs::remove_file(path)?,
            Order::Write { path, text } => fs::write(path, text)?,
            Order::BindSocket(path) => drop(UnixListener::bind(path)?),
            Order::Mknod { path, major, minor } => {
                mknodat(CWD, path, FileType::CharacterDevice, Mode::from_raw_mode(0o600), makedev(major, minor))?;
            }
            Order::Unmount(path) => unmount(path, UnmountFlags::empty())?,
            Order::MoveMount { from, to } => mount_move(from, to)?,
            Order::ImitateNode { path, tag } => imitate_node(&path, &tag)?,
            Order::MountTmpfs(path) => mount("tmpfs", path, "tmpfs", MountFlags::empty(), None)?,
            Order::RemountReadOnly(path) => mount_remount(path, MountFlags::BIND | MountFlags::RDONLY, "")?,
            Order::Fill(directory) => fill(&directory)?,
            Order::NewUserNamespace => unshare(UnshareFlags::NEWUSER)?,
            Order::NewMountNamespace => unshare(UnshareFlags::NEWNS)?,
            Order::MountFuse { device, path, greet } => {
                self.fuse = Some(crate::fuse::mount_fuse(&device, &path, greet)?);
            }
            Order::TakeFuseMessage => crate::fuse::take_message(self.fuse.as_ref().ok_or(io::ErrorKind::NotFound)?)?,
            Order::CloseFuse => self.fuse = None,
            Order::ForkStorm(threads) => (0..threads).for_each(|_| drop(std::thread::spawn(fork_for_ever))),
        }
        Ok(Reply::Done)
    }
}

fn stat(path: &str) -> io::Result<Reply> {
    let stat = fs::symlink_metadata(path)?;
    let device = stat.rdev();
    Ok(Reply::Stat(Stat {
        mode: stat.mode(),
        uid: stat.uid(),
        gid: stat.gid(),
        major: rustix::fs::major(device),
        minor: rustix::fs::minor(device),
        inode: stat.ino(),
        size: stat.size(),
    }))
}

fn imitate_node(path: &str, tag: &str) -> io::Result<()> {
    fs::create_dir("/imitation")?;
    mount("devgate", "/imitation", "tmpfs", MountFlags::empty(), None)?;
    fs::create_dir("/imitation/0")?;
    let file = format!("/imitation/0/{tag}");
    fs::write(&file, "")?;
    if fs::symlink_metadata(path).is_err() {
        fs::write(path, "")?;
    }
    mount_bind_recursive(file, path)?;
    Ok(())
}

fn fill(directory: &str) -> io::Result<()> {
    for index in 0.. {
        match fs::write(format!("{directory}/fill{index}"), "") {
            Err(error) if error.raw_os_error() == Some(libc::ENOSPC) => break,
            other => other?,
        }
    }
    Ok(())
}

fn fork_for_ever() {
    loop {
        // SAFETY: the child calls nothing but _exit.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            // SAFETY: ends the child without running anything of the parent's.
            unsafe { libc::_exit(0) };
        }
        if pid > 0 {
            // SAFETY: a null status is allowed.
            unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
        }
    }
}
