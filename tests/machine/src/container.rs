//! Containers in a machine.

use anyhow::{Result, bail};
use devgate_tests::containerd::PLAIN;

use crate::{
    Machine,
    machine::{Deadline, Output},
};

/// A container to be.
#[derive(Clone, Debug)]
pub struct Container {
    id: String,
    options: String,
}

/// What became of an attempt to open a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It was opened.
    Opened,
    /// A device program denied it: EPERM.
    Denied,
    /// There is no such node.
    NoNode,
    /// There is a node, but no device with its number.
    NoDevice,
}

/// What the shell in a container says to each, in small letters.
const MESSAGES: &[(&str, Verdict)] = &[
    ("operation not permitted", Verdict::Denied),
    ("no such file", Verdict::NoNode),
    ("no such device", Verdict::NoDevice),
];

impl Container {
    /// A container that asks for nothing.
    pub fn new(id: &str) -> Self {
        Self { id: id.to_owned(), options: String::new() }
    }

    /// Whoever starts it wishes these classes for it, separated by commas.
    #[must_use]
    pub fn classes(self, classes: &str) -> Self {
        self.option(&format!("--label devgate.dev/classes={classes}"))
    }

    /// Its cgroup is a scope of systemd, `ctr-<id>.scope`, made by runc.
    #[must_use]
    pub fn scope(self) -> Self {
        let scope = format!("--runc-systemd-cgroup --cgroup system.slice:ctr:{}", self.id);
        self.option(&scope)
    }

    /// crun runs it.
    #[must_use]
    pub fn crun(self) -> Self {
        self.option("--runc-binary crun")
    }

    fn option(mut self, option: &str) -> Self {
        self.options += " ";
        self.options += option;
        self
    }
}

impl Machine {
    /// Starts a container, which sleeps.
    pub fn start(&mut self, container: &Container) -> Result<()> {
        let Container { id, options } = container;
        self.run(&format!("ctr run --detach{options} {PLAIN} {id} sleep 1000000")).map(drop)
    }

    /// Runs a shell script in a container; it must succeed.
    pub fn run_in(&mut self, container: &str, script: &str) -> Result<String> {
        let script = self.inside(container, script);
        self.run(&script)
    }

    /// Starts a shell script in a container, which runs on when this returns.
    pub fn start_in(&mut self, container: &str, script: &str) -> Result<()> {
        let script = self.inside(container, script).replacen("task exec", "task exec --detach", 1);
        self.run(&script).map(drop)
    }

    /// Runs a shell script in a container again and again until it succeeds; returns what it then prints. `what` completes
    /// "in vain waited until".
    pub fn wait_until_in(&mut self, container: &str, what: &str, script: &str) -> Result<String> {
        let deadline = Deadline::new();
        loop {
            let script = self.inside(container, script);
            let Output { status, output, errors } = self.attempt(&script)?;
            if status == 0 {
                return Ok(output);
            }
            deadline.check(|| format!("{what}: `{script}` ends with {status}\n{output}\n{errors}"))?;
        }
    }

    /// Opens a device for reading, in a container.
    pub fn open(&mut self, container: &str, path: &str) -> Result<Verdict> {
        // A redirection of a command that is none of the special ones fails without an end of the shell.
        let script = self.inside(container, &format!("true <{path}"));
        let Output { status, output, errors } = self.attempt(&script)?;
        if status == 0 {
            return Ok(Verdict::Opened);
        }
        let said = errors.to_lowercase();
        match MESSAGES.iter().find(|(message, _)| said.contains(message)) {
            Some((_, verdict)) => Ok(*verdict),
            None => bail!("opening {path} in {container} ends with {status}: {output}\n{errors}"),
        }
    }

    /// Waits until a device in a container can be opened, or cannot any more.
    pub fn wait_for(&mut self, container: &str, path: &str, wanted: Verdict) -> Result<()> {
        let deadline = Deadline::new();
        loop {
            let verdict = self.open(container, path)?;
            if verdict == wanted {
                return Ok(());
            }
            deadline.check(|| format!("{path} in {container} is {wanted:?}; it is {verdict:?}"))?;
        }
    }

    /// How a script is run in a container.
    fn inside(&mut self, container: &str, script: &str) -> String {
        let quoted = script.replace('\'', "'\\''");
        let id = self.next_id();
        format!("ctr task exec --exec-id e{id} {container} sh -c '{quoted}'")
    }
}
