//! A machine of a test's own.

use std::{
    fs,
    io::BufReader,
    os::unix::net::UnixStream,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use devgate_endpoint::{Answer, Request};

use crate::{
    image::Store,
    qemu::{Places, Qemu},
    qmp::Monitor,
    row::Row,
    usb,
};

/// What takes longer than this never comes. The processor may be emulated, and others may use it.
const PATIENCE: Duration = Duration::from_secs(90);

/// A fresh machine, with containerd running. It is gone with this value.
#[derive(Debug)]
pub struct Machine {
    pub(crate) running: Running,
    pub(crate) plugged: usb::Ports,
    row: Row,
    ids: u32,
    // Removed after the machine that uses it.
    _sockets: tempfile::TempDir,
}

/// What a script has done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// The exit status, or 128 and the number of the signal that ended it.
    pub status: i32,
    /// What it printed, without the white space at the end.
    pub output: String,
    /// The same of its error output.
    pub errors: String,
}

impl Machine {
    /// Restores the saved machine of a row. Its console is written into the folder `logs`.
    pub fn restore(store: &Store, row: Row, logs: &Path) -> Result<Self> {
        let image = store.image(row)?;
        fs::create_dir_all(logs)?;
        let sockets = tempfile::Builder::new().prefix("devgate-test-machine").tempdir()?;
        let places = Places::new(sockets.path(), logs.join("console.log"));
        let mut running = Running::connect(Qemu::restore(&image, &places)?, &places)?;
        running.monitor.go_on()?;
        running.run("true").context("the restored machine does not answer")?;
        Ok(Self { running, plugged: usb::Ports::default(), row, ids: 0, _sockets: sockets })
    }

    /// What it runs.
    pub fn row(&self) -> Row {
        self.row
    }

    /// Runs a shell script, each command of which must succeed; returns what it prints.
    pub fn run(&mut self, script: &str) -> Result<String> {
        self.running.run(script)
    }

    /// Runs a shell script, whatever comes of it.
    pub fn attempt(&mut self, script: &str) -> Result<Output> {
        self.running.attempt(script)
    }

    /// Writes a file, and the folders above it.
    pub fn put(&mut self, path: &str, mode: u32, content: impl AsRef<[u8]>) -> Result<()> {
        self.running.put(path, mode, content.as_ref())
    }

    /// Reads a file.
    pub fn get(&mut self, path: &str) -> Result<Vec<u8>> {
        self.running.get(path)
    }

    /// Runs a script again and again until it succeeds; returns what it then prints. `what` completes "in vain waited
    /// until".
    pub fn wait_until(&mut self, what: &str, script: &str) -> Result<String> {
        let deadline = Deadline::new();
        loop {
            let Output { status, output, errors } = self.attempt(script)?;
            if status == 0 {
                return Ok(output);
            }
            deadline.check(|| format!("{what}: `{script}` ends with {status}\n{output}\n{errors}"))?;
        }
    }

    /// A number that was not used in this machine.
    pub(crate) fn next_id(&mut self) -> u32 {
        self.ids += 1;
        self.ids
    }
}

/// When a condition should have come to hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline(Instant);

impl Deadline {
    /// Of a condition that is waited for from now on.
    pub(crate) fn new() -> Self {
        Self(Instant::now() + PATIENCE)
    }

    /// An error that names the condition, if it is too late for it.
    pub(crate) fn check(self, condition: impl FnOnce() -> String) -> Result<()> {
        ensure!(Instant::now() < self.0, "in vain waited until {}", condition());
        Ok(())
    }
}

/// A machine that runs, and the connections with it.
#[derive(Debug)]
pub(crate) struct Running {
    endpoint: BufReader<UnixStream>,
    pub(crate) monitor: Monitor,
    qemu: Qemu,
}

impl Running {
    pub(crate) fn connect(mut qemu: Qemu, places: &Places) -> Result<Self> {
        let endpoint = connect(&places.endpoint, &mut qemu)?;
        endpoint.set_read_timeout(Some(PATIENCE * 2))?;
        let monitor = Monitor::connect(connect(&places.monitor, &mut qemu)?)?;
        Ok(Self { endpoint: BufReader::new(endpoint), monitor, qemu })
    }

    pub(crate) fn run(&mut self, script: &str) -> Result<String> {
        let Output { status, output, errors } = self.attempt(&format!("set -e\n{script}"))?;
        ensure!(status == 0, "`{script}` ends with {status}\n{output}\n{errors}");
        Ok(output)
    }

    pub(crate) fn attempt(&mut self, script: &str) -> Result<Output> {
        let request = Request::Run { deadline: PATIENCE, script: script.to_owned() };
        match self.ask(&request).with_context(|| format!("while `{script}` ran"))? {
            Answer::Ended { status: Some(status), output, errors } => {
                Ok(Output { status, output: text(&output), errors: text(&errors) })
            }
            Answer::Ended { status: None, output, errors } => {
                bail!("`{script}` does not end within {PATIENCE:?}\n{}\n{}", text(&output), text(&errors))
            }
            other => bail!("`{script}`: {other:?}"),
        }
    }

    pub(crate) fn put(&mut self, path: &str, mode: u32, content: &[u8]) -> Result<()> {
        match self.ask(&Request::Put { path: path.to_owned(), mode, content: content.to_owned() })? {
            Answer::Written => Ok(()),
            other => bail!("cannot write {path} in the machine: {other:?}"),
        }
    }

    pub(crate) fn get(&mut self, path: &str) -> Result<Vec<u8>> {
        match self.ask(&Request::Get { path: path.to_owned() })? {
            Answer::Content(content) => Ok(content),
            other => bail!("cannot read {path} in the machine: {other:?}"),
        }
    }

    fn ask(&mut self, request: &Request) -> Result<Answer> {
        request.write(self.endpoint.get_mut()).context("the machine does not listen")?;
        Answer::read(&mut self.endpoint).with_context(|| match self.qemu.runs() {
            Ok(true) => "the machine does not answer",
            _ => "the machine has ended",
        })
    }
}

/// Connects with a socket of QEMU, which may not be there yet.
fn connect(socket: &Path, qemu: &mut Qemu) -> Result<UnixStream> {
    let deadline = Deadline::new();
    loop {
        match UnixStream::connect(socket) {
            Ok(stream) => return Ok(stream),
            Err(error) => {
                ensure!(qemu.runs()?, "QEMU ends at once");
                deadline.check(|| format!("QEMU has the socket {}: {error}", socket.display()))?;
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim_end().to_owned()
}
