//! The agent of this checkout in a machine.

use std::{env, fs};

use anyhow::{Context as _, Result};

use crate::Machine;

/// The folder of classes that the agent reads.
const CLASSES: &str = "/etc/devgate/classes";

/// What is deployed, as it is.
const UNIT: &str = include_str!("../../../deploy/systemd/devgate.service");
const CONFIG: &str = include_str!("../../../deploy/devgate.yaml");

impl Machine {
    /// Installs the agent as a unit of systemd, and starts it with a file of classes; when this returns it enforces.
    pub fn start_agent(&mut self, classes: &str) -> Result<()> {
        let program = env::var_os("DEVGATE_BIN").context("DEVGATE_BIN names no program")?;
        self.put("/usr/local/bin/devgate", 0o755, fs::read(&program)?)?;
        self.put("/etc/systemd/system/devgate.service", 0o644, UNIT)?;
        self.put("/etc/devgate/devgate.yaml", 0o644, CONFIG)?;
        self.put(&format!("{CLASSES}/test.yaml"), 0o644, classes)?;
        self.run("systemctl start devgate")?;
        self.wait_until("the agent enforces", "devgate enforcer status").map(drop)
    }
}
