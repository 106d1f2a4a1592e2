//! The helper process: one visit to one container's mount namespace.
//!
//! It is forked from a small resident process ([`server`]), which is the agent's own executable started with [`ARGUMENT`]: entering
//! namespaces needs a process with a single thread, and a fork of the agent itself would inherit its threads' locks. Its order is
//! what makes a visit safe:
//!
//! 1. *Take* the namespaces of the process behind the pidfd, its id maps and its cgroup; then see that it still lives. All that was
//!    taken is then that process's, whatever became of its number (`target`).
//! 2. *Make* the nodes, while still on the host and with its powers (`staging`).
//! 3. *Enter*, giving up every capability that the rest does not need (`target::Target::enter`).
//! 4. *Change* mounts and files in the container's `/dev` (`place`, `remove`), or list (`list`).

mod dev_dir;
mod host_mounts;
mod host_node;
mod id_map;
mod list;
mod look;
mod mountinfo;
mod place;
mod remove;
mod server;
mod staging;
mod target;
mod visit;

use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use super::protocol::{Answer, MESSAGE_LIMIT, Request, Task};
use super::refusal::EntryError;
use server::Visitor;
use staging::Stage;
use target::Target;
use visit::Visit;

/// The hidden subcommand that makes the executable the server that helpers are forked from. After it comes the path of a procfs of the
/// host's pid namespace.
pub const ARGUMENT: &str = "node-helper";

/// Forks helpers until the agent has gone; in a helper, makes its visit. To be called from `main` before any thread is started.
pub fn helper_main() -> ExitCode {
    let visited = server::fork_helpers().and_then(|visit| visit.map_or(Ok(()), converse));
    match visited {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("devgate {ARGUMENT}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn converse((visitor, conversation): (Visitor, OwnedFd)) -> io::Result<()> {
    let mut socket = UnixStream::from(conversation);
    let mut text = Vec::with_capacity(1 << 12);
    match Read::by_ref(&mut socket).take(MESSAGE_LIMIT).read_to_end(&mut text) {
        // The agent has given the visit up before it began.
        Ok(0) => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(()),
        read => _ = read?,
    }
    let request: Request = serde_json::from_slice(&text)?;
    // SAFETY: alarm only sets a timer of this process; SIGALRM has its default action, which ends the process.
    unsafe { libc::alarm(request.seconds_to_live) };
    let answer = serve(&visitor, request).unwrap_or_else(Answer::NotEntered);
    socket.write_all(&serde_json::to_vec(&answer)?)
}

fn serve(visitor: &Visitor, request: Request) -> Result<Answer, EntryError> {
    let target = Target::take(visitor, &request)?;
    Ok(match request.task {
        Task::Apply(changes) => {
            let stage = Stage::make(&changes, &target.id_maps, request.staging);
            let mut visit = Visit::new(target.enter()?)?;
            Answer::Applied(visit.apply(changes, stage))
        }
        Task::List => Answer::Listed(list::nodes(&target.enter()?)?),
    })
}
