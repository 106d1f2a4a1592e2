//! The configuration as it is written in a file.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::executors::enforcer::{EnforcerConfig, ForeignFilters, Limits, RecordRate, Unguarded};
use crate::sources::udev::Database;

macro_rules! section {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty = $default:expr,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(default, rename_all = "camelCase", deny_unknown_fields)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $type,)*
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $default,)* }
            }
        }
    };
}

section! {
    /// The whole file. Every field has a default; `deploy/devgate.yaml` states them.
    File {
        /// Put before the paths of the host's own file systems: `runDir`, `stateDir`, `classes.folder`, `audit.file` and
        /// `containerd.socket`.
        root: Option<PathBuf> = None,
        /// Folder for locks; on a tmpfs.
        run_dir: PathBuf = EnforcerConfig::default().run_dir,
        /// Folder for what is remembered over restarts.
        state_dir: PathBuf = "/var/lib/devgate".into(),
        /// A procfs of the host's pid namespace.
        proc_root: PathBuf = "/proc".into(),
        /// After how many seconds everything is listed again and compared with the kernel although nothing happened; at
        /// least 60.
        resync_seconds: u32 = 600,
        /// The kernel's part.
        enforcer: EnforcerSection = EnforcerSection::default(),
        /// Where the classes are.
        classes: ClassesSection = ClassesSection::default(),
        /// The container runtime.
        containerd: ContainerdSection = ContainerdSection::default(),
        /// Where devices are heard of.
        udev: UdevSection = UdevSection::default(),
        /// Device nodes in containers.
        nodes: NodesSection = NodesSection::default(),
        /// How long events are collected.
        batch: BatchSection = BatchSection::default(),
        /// When what failed is tried again.
        retry: RetrySection = RetrySection::default(),
        /// The audit log.
        audit: AuditSection = AuditSection::default(),
        /// The agent's own log.
        log: LogSection = LogSection::default(),
    }
}

section! {
    /// The kernel's part.
    EnforcerSection {
        /// Where the cgroup v2 hierarchy is mounted; looked for if absent.
        cgroup_root: Option<PathBuf> = None,
        /// The cgroup above all containers, as a path from the hierarchy's root.
        ancestor: PathBuf = EnforcerConfig::default().ancestor,
        /// Folder of the pins on a bpf file system.
        pin_root: PathBuf = EnforcerConfig::default().pin_root,
        /// The network namespace whose uevents the guard hears.
        net_namespace: PathBuf = EnforcerConfig::default().net_namespace,
        /// What holds for devices that can be unplugged while no guard is alive.
        unguarded: Unguarded = Unguarded::default(),
        /// What becomes of grants where unknown device programs run.
        foreign_filters: ForeignFilters = ForeignFilters::default(),
        /// Names of further device programs whose denials may be overridden.
        known_filters: Vec<String> = Vec::new(),
        /// Whether cgroups below the ancestor that are not managed are denied all but the standard devices.
        deny_unclassified: bool = false,
        /// Sizes of the maps.
        limits: LimitsSection = LimitsSection::default(),
    }
}

section! {
    /// Sizes of the maps.
    LimitsSection {
        /// How many cgroups can be managed.
        cgroups: u32 = Limits::default().cgroups,
        /// How many rules there can be.
        rules: u32 = Limits::default().rules,
        /// How many device numbers can be granted at once.
        devices: u32 = Limits::default().devices,
        /// Bytes of the ring buffer for audit records.
        audit_bytes: u32 = Limits::default().audit_bytes,
    }
}

section! {
    /// Where the classes are.
    ClassesSection {
        /// A folder of YAML files.
        folder: PathBuf = "/etc/devgate/classes".into(),
    }
}

section! {
    /// The container runtime.
    ContainerdSection {
        /// containerd's socket.
        socket: PathBuf = "/run/containerd/containerd.sock".into(),
        /// The namespaces whose containers are served; all if empty.
        namespaces: Vec<String> = Vec::new(),
        /// How long an answer may take, in milliseconds.
        deadline_ms: u32 = 10_000,
    }
}

section! {
    /// Where devices are heard of.
    UdevSection {
        /// The network namespace whose uevents and udev events are listened to.
        net_namespace: PathBuf = EnforcerConfig::default().net_namespace,
        /// The mount namespace whose `/sys`, `/dev` and `/run/udev` are read; the agent's own if absent.
        mount_namespace: Option<PathBuf> = None,
        /// `required`: a device counts when udev has finished with it. `none`: there is no udev on the machine.
        database: Database = Database::default(),
        /// Bytes of the receive buffers.
        receive_buffer: u32 = 8 << 20,
    }
}

section! {
    /// Device nodes in containers.
    NodesSection {
        /// How long a visit to a container may take, in milliseconds.
        deadline_ms: u32 = 2_000,
        /// How many visits are under way at once. One that takes long does not count.
        parallel: u16 = 16,
    }
}

section! {
    /// How long events are collected.
    BatchSection {
        /// How long it must be quiet after an event, in milliseconds.
        quiet_ms: u32 = 2,
        /// How long the first event waits at most, in milliseconds.
        max_delay_ms: u32 = 20,
    }
}

section! {
    /// When what failed is tried again.
    RetrySection {
        /// The longest wait before the second try, in milliseconds.
        first_ms: u32 = 50,
        /// The longest wait at all, in milliseconds.
        cap_ms: u32 = 60_000,
    }
}

section! {
    /// The audit log.
    AuditSection {
        /// A file that is appended to; standard output if absent.
        file: Option<PathBuf> = None,
        /// Records per second and container in the long run; 0 for no limit.
        records_per_second: u32 = RecordRate::default().per_second,
        /// Records at once after a quiet time.
        burst: u32 = RecordRate::default().burst,
        /// Whether every decision is recorded, also outside of managed cgroups.
        everything: bool = false,
    }
}

section! {
    /// The agent's own log, which goes to standard error.
    LogSection {
        /// Its form.
        format: LogFormat = LogFormat::Text,
        /// Levels, for all and for modules: `info,devgate::sources=debug`.
        filter: String = "info".to_owned(),
    }
}

/// The form of the agent's own log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum LogFormat {
    /// Lines for people.
    Text,
    /// One JSON object on each line.
    Json,
}
