//! QEMU's monitor: plugs devices, saves and continues machines.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    os::unix::net::UnixStream,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};

/// QEMU answers what it is asked at once. What takes longer is asked for again and again.
const DEADLINE: Duration = Duration::from_mins(1);

/// A connection with the monitor of a machine.
#[derive(Debug)]
pub(crate) struct Monitor {
    stream: BufReader<UnixStream>,
}

impl Monitor {
    pub(crate) fn connect(stream: UnixStream) -> Result<Self> {
        stream.set_read_timeout(Some(DEADLINE))?;
        let mut monitor = Self { stream: BufReader::new(stream) };
        monitor.receive().context("the monitor does not greet")?;
        monitor.execute("qmp_capabilities", &json!({}))?;
        Ok(monitor)
    }

    /// Carries out a command; returns its result.
    pub(crate) fn execute(&mut self, command: &str, arguments: &Value) -> Result<Value> {
        let message = json!({ "execute": command, "arguments": arguments });
        self.stream.get_mut().write_all(format!("{message}\n").as_bytes())?;
        loop {
            // What is neither is the news of an event.
            let mut answer = self.receive().with_context(|| format!("the monitor does not answer {command}"))?;
            if let Some(result) = answer.get_mut("return") {
                return Ok(result.take());
            }
            if let Some(error) = answer.get("error") {
                bail!("{command} {arguments}: {}", error["desc"].as_str().unwrap_or_default());
            }
        }
    }

    /// Stops the machine and writes its memory to a file.
    pub(crate) fn save(&mut self, memory: &Path) -> Result<()> {
        self.execute("stop", &json!({}))?;
        self.execute("migrate-set-parameters", &json!({ "max-bandwidth": 10_000_000_000_u64 }))?;
        // The path is quoted for a shell.
        let path = memory.to_string_lossy().replace('\'', "'\\''");
        self.execute("migrate", &json!({ "uri": format!("exec:cat > '{path}'") }))?;
        self.wait("the machine is saved", "query-migrate", |state| match state["status"].as_str() {
            Some("completed") => Ok(true),
            Some("failed") => bail!("the machine cannot be saved: {state}"),
            _ => Ok(false),
        })
    }

    /// Lets a restored machine go on.
    pub(crate) fn go_on(&mut self) -> Result<()> {
        self.wait("the machine is restored", "query-status", |state| Ok(state["status"] != "inmigrate"))?;
        self.execute("cont", &json!({})).map(drop)
    }

    /// Asks until the answer is as it should be.
    fn wait(&mut self, what: &str, query: &str, mut done: impl FnMut(&Value) -> Result<bool>) -> Result<()> {
        let deadline = Instant::now() + DEADLINE;
        while !done(&self.execute(query, &json!({}))?)? {
            ensure!(Instant::now() < deadline, "in vain waited until {what}");
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    fn receive(&mut self) -> Result<Value> {
        let mut line = String::new();
        ensure!(self.stream.read_line(&mut line)? > 0, "QEMU has ended");
        Ok(serde_json::from_str(&line)?)
    }
}
