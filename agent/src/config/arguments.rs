//! Flags and environment over the file.

use std::path::PathBuf;

use super::file::{File, LogFormat};

/// What the command line and the environment say. A flag is over the environment, which is over the file.
#[derive(Clone, Debug, Default, clap::Args)]
// A group would have the type's name, which is also that of each subcommand's own arguments.
#[group(skip)]
pub struct Arguments {
    /// The configuration file; without one every default holds.
    #[arg(long, env = "DEVGATE_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Put before the paths of the host's own file systems.
    #[arg(long, env = "DEVGATE_ROOT", value_name = "DIR")]
    pub root: Option<PathBuf>,
    /// Folder for locks [default: /run/devgate].
    #[arg(long, env = "DEVGATE_RUN_DIR", value_name = "DIR")]
    pub run_dir: Option<PathBuf>,
    /// Folder for what is remembered [default: /var/lib/devgate].
    #[arg(long, env = "DEVGATE_STATE_DIR", value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// Folder of the pins on a bpf file system [default: /sys/fs/bpf/devgate].
    #[arg(long, env = "DEVGATE_PIN_ROOT", value_name = "DIR")]
    pub pin_root: Option<PathBuf>,
    /// Where the cgroup v2 hierarchy is mounted [default: looked for].
    #[arg(long, env = "DEVGATE_CGROUP_ROOT", value_name = "DIR")]
    pub cgroup_root: Option<PathBuf>,
    /// The cgroup above all containers [default: /].
    #[arg(long, env = "DEVGATE_ANCESTOR", value_name = "CGROUP")]
    pub ancestor: Option<PathBuf>,
    /// Folder of class files [default: /etc/devgate/classes].
    #[arg(long, env = "DEVGATE_CLASSES", value_name = "DIR")]
    pub classes: Option<PathBuf>,
    /// containerd's socket [default: /run/containerd/containerd.sock].
    #[arg(long, env = "DEVGATE_CONTAINERD", value_name = "SOCKET")]
    pub containerd: Option<PathBuf>,
    /// The audit log's file [default: standard output].
    #[arg(long, env = "DEVGATE_AUDIT_FILE", value_name = "FILE")]
    pub audit_file: Option<PathBuf>,
    /// Levels of the log: `info,devgate::sources=debug` [default: info].
    #[arg(long, env = "DEVGATE_LOG", value_name = "FILTER")]
    pub log: Option<String>,
    /// Form of the log [default: text].
    #[arg(long, env = "DEVGATE_LOG_FORMAT")]
    pub log_format: Option<LogFormat>,
}

impl Arguments {
    pub(super) fn apply(&self, file: &mut File) {
        // Destructured so that a new flag cannot be forgotten here.
        let Self {
            config: _,
            root,
            run_dir,
            state_dir,
            pin_root,
            cgroup_root,
            ancestor,
            classes,
            containerd,
            audit_file,
            log,
            log_format,
        } = self.clone();
        set(&mut file.run_dir, run_dir);
        set(&mut file.state_dir, state_dir);
        set(&mut file.enforcer.pin_root, pin_root);
        set(&mut file.enforcer.ancestor, ancestor);
        set(&mut file.classes.folder, classes);
        set(&mut file.containerd.socket, containerd);
        set(&mut file.log.filter, log);
        set(&mut file.log.format, log_format);
        file.root = root.or(file.root.take());
        file.enforcer.cgroup_root = cgroup_root.or(file.enforcer.cgroup_root.take());
        file.audit.file = audit_file.or(file.audit.file.take());
    }
}

fn set<T>(field: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *field = value;
    }
}
