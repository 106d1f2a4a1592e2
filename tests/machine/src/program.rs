//! Running programs on the host, with errors that say which and how it ended.

use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

/// Runs a program to its end; returns what it printed. If it fails, the error has what it printed.
pub(crate) fn run(command: &mut Command) -> Result<Vec<u8>> {
    let line = format!("{command:?}");
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("cannot run {line}"))?;
    if !output.status.success() {
        bail!(
            "{line}: {}\n{}{}",
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(output.stdout)
}

/// The same for a program that prints text.
pub(crate) fn text(command: &mut Command) -> Result<String> {
    Ok(String::from_utf8(run(command)?)?)
}
