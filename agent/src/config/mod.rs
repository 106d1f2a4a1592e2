//! The agent's configuration: one file, with environment and flags over it.

mod arguments;
mod check;
mod file;

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use devgate_abi::Policy;
use devgate_core::{Backoff, BatchTiming};

use crate::{
    executors::{
        device_nodes::{HelperConfig, Staging},
        enforcer::{EnforcerConfig, Limits, RecordRate},
    },
    reconciler::Timings,
    sources::{containerd::ContainerdConfig, udev::UdevConfig},
    yaml::Fault,
};

use check::Misfit;

pub use arguments::Arguments;
pub use file::{
    AuditSection, BatchSection, ClassesSection, ContainerdSection, EnforcerSection, File, LimitsSection, LogFormat,
    LogSection, NodesSection, RetrySection, UdevSection,
};

/// The configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The file is wrong; every fault is named.
    #[error("{}", faults.iter().map(|fault| format!("{}:{}: {fault}", path.display(), fault.line)).collect::<Vec<_>>().join("\n"))]
    Faults {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        faults: Vec<Fault>,
    },
    /// What the command line or the environment says does not fit.
    #[error("by flag or environment: {field}: {value:?}: {reason}; {remedy}")]
    Value {
        /// The field of the file that it stands for.
        field: &'static str,
        /// What it says.
        value: String,
        /// What is wrong with it.
        reason: &'static str,
        /// What to write instead.
        remedy: String,
    },
}

/// The configuration, complete.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    file: File,
}

impl Config {
    /// Reads the file, if one is named, and puts environment and flags over it.
    pub fn load(arguments: &Arguments) -> Result<Self, ConfigError> {
        let mut file = match &arguments.config {
            Some(path) => read(path)?,
            None => File::default(),
        };
        arguments.apply(&mut file);
        // What the file says was looked at before: only what was put over it can be wrong.
        match check::misfits(&file).into_iter().next() {
            Some(Misfit { field, value, reason, remedy }) => Err(ConfigError::Value { field, value, reason, remedy }),
            None => Ok(Self { file }),
        }
    }

    /// As it is written in a file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// A path of the host's own file systems, below the configured root.
    fn rooted(&self, path: &Path) -> PathBuf {
        match &self.file.root {
            Some(root) => root.join(path.strip_prefix("/").unwrap_or(path)),
            None => path.to_owned(),
        }
    }

    /// The folder of class files.
    pub fn classes(&self) -> PathBuf {
        self.rooted(&self.file.classes.folder)
    }

    /// The folder for what is remembered over restarts.
    pub fn state_dir(&self) -> PathBuf {
        self.rooted(&self.file.state_dir)
    }

    /// The audit log's file; `None` for standard output.
    pub fn audit_file(&self) -> Option<PathBuf> {
        self.file.audit.file.as_deref().map(|path| self.rooted(path))
    }

    /// For the enforcer.
    pub fn enforcer(&self) -> EnforcerConfig {
        let File { enforcer, audit, .. } = &self.file;
        let mut unclassified = Policy::default();
        if enforcer.deny_unclassified {
            unclassified = unclassified.union(Policy::DENY_OTHERS);
        }
        EnforcerConfig {
            cgroup_root: enforcer.cgroup_root.clone(),
            ancestor: enforcer.ancestor.clone(),
            pin_root: enforcer.pin_root.clone(),
            run_dir: self.rooted(&self.file.run_dir),
            net_namespace: enforcer.net_namespace.clone(),
            executable: "/proc/self/exe".into(),
            unguarded: enforcer.unguarded,
            foreign_filters: enforcer.foreign_filters,
            known_filters: enforcer.known_filters.clone(),
            unclassified,
            audit_everything: audit.everything,
            record_rate: RecordRate { per_second: audit.records_per_second, burst: audit.burst },
            limits: Limits {
                cgroups: enforcer.limits.cgroups,
                rules: enforcer.limits.rules,
                devices: enforcer.limits.devices,
                audit_bytes: enforcer.limits.audit_bytes,
            },
        }
    }

    /// For the device source.
    pub fn udev(&self) -> UdevConfig {
        let UdevSection { net_namespace, mount_namespace, receive_buffer, database } = &self.file.udev;
        UdevConfig {
            net_namespace: net_namespace.clone(),
            mount_namespace: mount_namespace.clone(),
            receive_buffer: *receive_buffer as usize,
            database: *database,
        }
    }

    /// For the containerd source.
    pub fn containerd(&self) -> ContainerdConfig {
        let ContainerdSection { socket, namespaces, deadline_ms } = &self.file.containerd;
        ContainerdConfig {
            socket: self.rooted(socket),
            namespaces: namespaces.clone(),
            proc_root: self.file.proc_root.clone(),
            cgroup_root: self.file.enforcer.cgroup_root.clone(),
            deadline: Duration::from_millis(u64::from(*deadline_ms)),
            relist: self.resync(),
            ..ContainerdConfig::default()
        }
    }

    /// How often all is listed and compared although nothing happened.
    fn resync(&self) -> Duration {
        Duration::from_secs(u64::from(self.file.resync_seconds.max(60)))
    }

    /// For the visits to containers. `cgroup_root` is where the hierarchy was found.
    pub fn helper(&self, cgroup_root: &Path) -> HelperConfig {
        HelperConfig {
            proc_root: self.file.proc_root.clone(),
            cgroup_root: cgroup_root.to_owned(),
            deadline: Duration::from_millis(u64::from(self.file.nodes.deadline_ms)),
            parallel: usize::from(self.file.nodes.parallel),
            staging: Staging::Automatic,
            ..HelperConfig::default()
        }
    }

    /// For the reconciler.
    pub fn timings(&self) -> Timings {
        let File { batch, retry, .. } = &self.file;
        let milliseconds = |value: u32| Duration::from_millis(u64::from(value));
        Timings {
            batch: BatchTiming { quiet: milliseconds(batch.quiet_ms), max_delay: milliseconds(batch.max_delay_ms) },
            backoff: Backoff { first: milliseconds(retry.first_ms), cap: milliseconds(retry.cap_ms) },
            resync: self.resync(),
        }
    }
}

fn read(path: &Path) -> Result<File, ConfigError> {
    let bytes = fs::read(path).map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
    let documents: Vec<_> =
        crate::yaml::documents(&bytes).into_iter().filter(|document| !document.is_empty()).collect();
    let Some(document) = documents.first() else { return Ok(File::default()) };
    let (file, mut faults) = document.read::<File>();
    if let Some(second) = documents.get(1) {
        faults.push(Fault {
            line: second.line,
            field: String::new(),
            value: String::new(),
            reason: "a configuration is one document".to_owned(),
            remedy: "take the others out".to_owned(),
        });
    }
    // Where a value could not be read, something else stands in for it, which nobody wrote.
    let misfits = file.as_ref().filter(|_| faults.is_empty()).map(check::misfits).unwrap_or_default();
    faults.extend(misfits.into_iter().map(|Misfit { field, value, reason, remedy }| Fault {
        line: document.line_of(field),
        field: field.to_owned(),
        value,
        reason: reason.to_owned(),
        remedy,
    }));
    match file {
        Some(file) if faults.is_empty() => Ok(file),
        _ => Err(ConfigError::Faults { path: path.to_owned(), faults }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(text: &str) -> Result<Config, ConfigError> {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), text).unwrap();
        Config::load(&Arguments { config: Some(file.path().to_owned()), ..Arguments::default() })
    }

    #[test]
    fn the_example_states_every_default() {
        let example = include_str!("../../../deploy/devgate.yaml");
        assert_eq!(load(example).unwrap().file, File::default());
        // Every field stands in it, those without a default in a comment.
        let written = serde_json::to_string(&File::default()).unwrap();
        for key in written.split('"').skip(1).step_by(2).filter(|key| written.contains(&format!("\"{key}\":"))) {
            assert!(example.contains(&format!("{key}:")), "{key} is not in the example");
        }
    }

    // Fault: agent/src/config/file.rs
    // - #[serde(default, rename_all = "camelCase", deny_unknown_fields)]
    // + #[serde(default, rename_all = "camelCase")]
    #[test]
    fn an_unknown_field_is_refused_with_its_line() {
        let error = load("runDir: /tmp/x\nenforcer:\n  ancestr: /\n").unwrap_err().to_string();
        assert!(error.contains(":3: ") && error.contains("ancestr"), "{error}");
    }

    // Fault: agent/src/config/mod.rs
    // - line: document.line_of(field),
    // + line: 1,
    #[test]
    fn a_value_that_does_not_fit_is_refused_with_its_line_or_as_a_flag() {
        let error = load("runDir: /tmp/x\nbatch:\n  quietMs: 50\n  maxDelayMs: 20\n").unwrap_err().to_string();
        assert!(error.contains(":4: batch.maxDelayMs: \"20\": "), "{error}");
        let arguments = Arguments { ancestor: Some("kubepods".into()), ..Arguments::default() };
        let error = Config::load(&arguments).unwrap_err().to_string();
        assert_eq!(
            error,
            "by flag or environment: enforcer.ancestor: \"kubepods\": the path does not begin with /; write the whole path"
        );
    }

    #[test]
    fn flags_are_over_the_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "runDir: /tmp/x\nstateDir: /tmp/y\nroot: /tmp/root\n").unwrap();
        let arguments =
            Arguments { config: Some(file.path().to_owned()), run_dir: Some("/tmp/z".into()), ..Arguments::default() };
        let config = Config::load(&arguments).unwrap();
        assert_eq!(config.enforcer().run_dir, Path::new("/tmp/root/tmp/z"));
        assert_eq!(config.state_dir(), Path::new("/tmp/root/tmp/y"));
    }
}
