//! Running other programs, with errors that say which and how it ended.

use std::env;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};

use anyhow::{Context, Result, bail};

/// Runs `command` with the output of this process; an exit status other than zero is an error.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = status(command)?;
    if !status.success() {
        bail!("`{}` failed: {status}", line(command));
    }
    Ok(())
}

/// Runs `command` with the output of this process.
pub(crate) fn status(command: &mut Command) -> Result<ExitStatus> {
    command.status().with_context(|| format!("cannot run `{}`", line(command)))
}

/// What `command` prints, without the white space at the end. Its errors go to the error output of this process.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let output =
        command.stderr(Stdio::inherit()).output().with_context(|| format!("cannot run `{}`", line(command)))?;
    if !output.status.success() {
        bail!("`{}` failed: {}", line(command), output.status);
    }
    let text = String::from_utf8(output.stdout).with_context(|| format!("`{}` prints no UTF-8", line(command)))?;
    Ok(text.trim_end().to_owned())
}

/// What `command` prints. Its errors are shown only as part of this one's, if it fails.
pub(crate) fn quiet_output(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot run `{}`", line(command)))?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        bail!("`{}` failed: {}\n{}", line(command), output.status, errors.trim_end());
    }
    String::from_utf8(output.stdout).with_context(|| format!("`{}` prints no UTF-8", line(command)))
}

/// What `command` prints, or none if it cannot be run or fails; its errors are not shown. For probing what the machine has.
pub(crate) fn probe(command: &mut Command) -> Option<String> {
    let output = command.stdin(Stdio::null()).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim_end().to_owned())
}

/// Whether this process may do what only root may.
pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Takes out of `command`'s environment what cargo and rustup set for xtask and what would lead another toolchain astray.
///
/// How to reach the registries stays: it is the machine's, not this build's.
pub(crate) fn clean_cargo_environment(command: &mut Command) {
    for (name, _) in env::vars_os() {
        if name.to_str().is_some_and(leads_astray) {
            command.env_remove(name);
        }
    }
}

fn leads_astray(name: &str) -> bool {
    const MACHINE: &[&str] = &[
        "CARGO_HOME",
        "CARGO_HTTP_",
        "CARGO_NET_",
        "CARGO_REGISTRIES_",
        "CARGO_REGISTRY_",
        "CARGO_SOURCE_",
        "CARGO_TERM_",
    ];
    const TOOLCHAIN: &[&str] = &[
        // Cargo puts the libraries of its own toolchain there.
        "LD_LIBRARY_PATH",
        "RUSTC",
        "RUSTC_WORKSPACE_WRAPPER",
        "RUSTC_WRAPPER",
        "RUSTDOC",
        "RUSTDOCFLAGS",
        "RUSTFLAGS",
        "RUSTUP_TOOLCHAIN",
        "RUST_RECURSION_COUNT",
    ];
    let cargo = name == "CARGO" || name.starts_with("CARGO_");
    (cargo && !MACHINE.iter().any(|prefix| name.starts_with(prefix))) || TOOLCHAIN.contains(&name)
}

/// The command as one would type it, shortened to the program's name and its arguments.
fn line(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let mut words = vec![program.file_name().unwrap_or(program.as_os_str()).to_string_lossy().into_owned()];
    words.extend(command.get_args().map(|argument| argument.to_string_lossy().into_owned()));
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::leads_astray;

    #[test]
    fn only_the_machine_s_settings_of_cargo_stay() {
        let stay = ["CARGO_HOME", "CARGO_HTTP_PROXY", "CARGO_REGISTRIES_MIRROR_INDEX", "PATH", "RUSTUP_HOME"];
        assert!(!stay.into_iter().any(leads_astray));
        let go = ["CARGO", "CARGO_TARGET_DIR", "CARGO_BUILD_TARGET", "CARGO_PKG_NAME", "RUSTFLAGS", "RUSTUP_TOOLCHAIN"];
        assert!(go.into_iter().all(leads_astray));
    }
}
