//! A stage: namespaces of its own for a program that makes things outside of itself, so that nothing outlives it.
//!
//! The program is started twice. The first process sets the stage and waits; the second is the first process of a new pid
//! namespace, with mounts of its own. When that one has ended, or when the first gets a signal to end, the kernel ends
//! every process on the stage and with them every mount, pin, file and network that was made there. Only cgroups would
//! stay; the first process removes those too.
//!
//! ```text
//! cargo xtask demo ─ becomes ─▶ the supervisor ─ starts ─▶ the play: pid 1, own /proc, /sys/fs/bpf, /dev/shm
//!            SIGINT, SIGTERM ──▶ kills it, waits, removes cgroups
//! ```

mod namespaces;
mod signals;

use std::{
    ffi::OsString,
    fs,
    os::unix::process::ExitStatusExt,
    path::Path,
    process::{Child, Command, ExitCode, ExitStatus},
};

use anyhow::{Context, Result};
use devgate::executors::enforcer::CgroupRoot;
use rustix::{
    event::{PollFd, PollFlags, poll},
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
};

use crate::cgroup;
use signals::Signals;

/// The hidden argument that makes a program the play; the stage's name follows.
const ARGUMENT: &str = "--on-stage";

/// How long a name is that a [`Scratch`](crate::Scratch) makes of that of a stage, up to where it differs.
const PREFIX: &str = "devgate-test-";

/// Is the supervisor, or the play that it has started. The supervisor begins with `check`. `play` is called with the name
/// for the one [`Scratch`](crate::Scratch) that it may make, and with the rest of the command line.
pub fn run(
    name: &str,
    check: impl FnOnce() -> Result<()>,
    play: impl FnOnce(&str, Vec<OsString>) -> Result<ExitCode>,
) -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let first = arguments.next();
    let result = if first.as_deref() == Some(ARGUMENT.as_ref()) {
        let name = arguments.next().unwrap_or_default();
        namespaces::furnish()
            .context("cannot set up the namespaces")
            .and_then(|()| play(&name.to_string_lossy(), arguments.collect()))
    } else {
        check().and_then(|()| supervise(&format!("{name}-{}", std::process::id())))
    };
    result.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

fn supervise(name: &str) -> Result<ExitCode> {
    // From here on nothing ends this process before it has cleaned up.
    let signals = Signals::block().context("cannot wait for signals")?;
    let mut play = start(name)?;
    let ended = wait(&mut play, &signals);
    let cleaned = clean_up(name);
    match ended? {
        End::Ended(status) => {
            cleaned?;
            if let Some(signal) = status.signal() {
                eprintln!("error: it was ended by signal {signal}");
            }
            Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        End::Interrupted(signal) => {
            cleaned?;
            eprintln!("\ninterrupted; everything that was made is gone again");
            signals::die_of(signal)
        }
    }
}

fn start(name: &str) -> Result<Child> {
    let mut command = Command::new("/proc/self/exe");
    command.arg(ARGUMENT).arg(name).args(std::env::args_os().skip(1));
    namespaces::prepare(&mut command)?;
    command.spawn().context("cannot start a process in namespaces of its own")
}

/// How it came to an end.
enum End {
    Ended(ExitStatus),
    Interrupted(Signal),
}

/// Waits until the play has ended, by itself or because a signal came. Then nothing runs on the stage any more: the
/// kernel ends a pid namespace with its first process, and lets that one end last.
fn wait(play: &mut Child, signals: &Signals) -> Result<End> {
    let ended = pidfd_open(Pid::from_child(play), PidfdFlags::empty())?;
    let readable = PollFlags::IN;
    loop {
        let mut polled = [PollFd::new(&ended, readable), PollFd::new(signals, readable)];
        match poll(&mut polled, None) {
            Err(rustix::io::Errno::INTR) => continue,
            result => result?,
        };
        let [play_ended, signalled] = polled.map(|polled| !polled.revents().is_empty());
        if play_ended {
            return Ok(End::Ended(play.wait()?));
        }
        if signalled {
            let signal = signals.next()?;
            pidfd_send_signal(&ended, Signal::KILL)?;
            play.wait()?;
            return Ok(End::Interrupted(signal));
        }
    }
}

/// Removes the cgroups that were made under the stage's name.
fn clean_up(name: &str) -> Result<()> {
    let Ok(root) = CgroupRoot::find() else { return Ok(()) };
    let prefix = format!("{PREFIX}{name}-");
    let entries = fs::read_dir(root.path()).context("cannot look for cgroups")?;
    let made = entries.flatten().map(|entry| entry.path());
    let named = |path: &Path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&prefix));
    made.filter(|path| named(path)).try_for_each(|path| cgroup::remove(&path))
}
