//! The agent of this checkout in a machine.

use std::{env, fs};

use anyhow::{Context as _, Result};

use crate::Machine;

/// The folder of classes that the agent reads.
const CLASSES: &str = "/etc/devgate/classes";

/// What is deployed, as it is.
const UNIT: &str = include_str!("../../../deploy/systemd/devgate.service");
const CONFIG: &str = include_str!("../../../deploy/devgate.yaml");

/// What the agent logs once all sources have listed and what follows is in the kernel.
const READY: &str = "everything is known and in force";

impl Machine {
    /// Installs the agent as a unit of systemd, with a file of classes.
    pub fn install_agent(&mut self, classes: &str) -> Result<()> {
        let program = env::var_os("DEVGATE_BIN").context("DEVGATE_BIN names no program")?;
        self.put("/usr/local/bin/devgate", 0o755, fs::read(&program)?)?;
        self.put("/etc/systemd/system/devgate.service", 0o644, UNIT)?;
        self.put("/etc/devgate/devgate.yaml", 0o644, CONFIG)?;
        self.put(&format!("{CLASSES}/test.yaml"), 0o644, classes)
    }

    /// Installs the agent and starts it; when this returns all that was there before is known and in force.
    pub fn start_agent(&mut self, classes: &str) -> Result<()> {
        self.install_agent(classes)?;
        self.run("systemctl start devgate")?;
        self.wait_until("the agent knows everything", &format!("journalctl --unit devgate --grep '{READY}'")).map(drop)
    }
}
