//! The endpoint: does what the test outside of the machine says. It is linked statically, so that it runs in any system.

use std::{
    fs::{self, File, Permissions},
    io::{self, Read, Seek, SeekFrom},
    os::unix::{
        fs::PermissionsExt as _,
        process::{CommandExt as _, ExitStatusExt as _},
    },
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use devgate_endpoint::{Answer, PORT, Request};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{MemfdFlags, memfd_create},
    process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open},
};

/// How often it is looked for what offers nothing to wait on: the port at boot, and the test at its other end.
const INTERVAL: Duration = Duration::from_millis(20);

fn main() -> io::Result<()> {
    let mut port = Port(open_port());
    loop {
        let request = Request::read(&mut port)?;
        let answer = carry_out(request).unwrap_or_else(|error| Answer::Failed(error.to_string()));
        answer.write(&mut port.0)?;
    }
}

/// The port, which reads nothing while nobody is at its other end: a machine is saved and restored meanwhile.
struct Port(File);

impl Read for Port {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.0.read(buffer) {
                Ok(0) => thread::sleep(INTERVAL),
                result => return result,
            }
        }
    }
}

fn open_port() -> File {
    let path = Path::new("/dev/virtio-ports").join(PORT);
    loop {
        match File::options().read(true).write(true).open(&path) {
            Ok(port) => return port,
            Err(_) => thread::sleep(INTERVAL),
        }
    }
}

fn carry_out(request: Request) -> io::Result<Answer> {
    match request {
        Request::Run { deadline, script } => run(&script, deadline),
        Request::Put { path, mode, content } => {
            let path = Path::new(&path);
            if let Some(folder) = path.parent() {
                fs::create_dir_all(folder)?;
            }
            fs::write(path, content)?;
            fs::set_permissions(path, Permissions::from_mode(mode))?;
            Ok(Answer::Written)
        }
        Request::Get { path } => fs::read(path).map(Answer::Content),
    }
}

/// Runs a script. Its outputs are files in memory and no pipes: what it leaves running in the background may keep them.
fn run(script: &str, deadline: Duration) -> io::Result<Answer> {
    let mut output = scratch("output")?;
    let mut errors = scratch("errors")?;
    let mut child = Command::new("/bin/sh")
        .args(["-c", script])
        .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        .env("HOME", "/root")
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(errors.try_clone()?)
        .process_group(0)
        .spawn()?;
    let status = wait(&mut child, deadline)?;
    Ok(Answer::Ended {
        status: status.and_then(|status| status.code().or_else(|| Some(128 + status.signal()?))),
        output: content(&mut output)?,
        errors: content(&mut errors)?,
    })
}

/// Waits until a process ends; at its deadline kills its group, and returns none.
fn wait(child: &mut Child, deadline: Duration) -> io::Result<Option<ExitStatus>> {
    let pid = Pid::from_child(child);
    let descriptor = pidfd_open(pid, PidfdFlags::empty())?;
    let end = Instant::now() + deadline;
    loop {
        let rest = end.saturating_duration_since(Instant::now());
        let timeout = Timespec { tv_sec: rest.as_secs().cast_signed(), tv_nsec: rest.subsec_nanos().into() };
        match poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&timeout)) {
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
            Ok(0) => {
                // It is our child and was not waited for: the number is still its own.
                kill_process_group(pid, Signal::KILL)?;
                child.wait()?;
                return Ok(None);
            }
            Ok(_) => return child.wait().map(Some),
        }
    }
}

fn scratch(name: &str) -> io::Result<File> {
    Ok(memfd_create(name, MemfdFlags::CLOEXEC)?.into())
}

fn content(file: &mut File) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    file.seek(SeekFrom::Start(0))?;
    file.read_to_end(&mut content)?;
    Ok(content)
}
