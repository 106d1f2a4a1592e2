//! Flags and environment over the file: one for each field of it.

use std::path::PathBuf;

use super::file::{
    AuditSection, BatchSection, ClassesSection, ContainerdSection, EnforcerSection, File, LimitsSection, LogFormat,
    LogSection, NodesSection, RetrySection, UdevSection,
};
use crate::{
    executors::enforcer::{ForeignFilters, Unguarded},
    sources::udev::Database,
};

macro_rules! arguments {
    ($($(#[doc = $doc:literal])* $field:ident: $type:ty, $env:literal, $value:literal $(, $delimiter:literal)?;)*) => {
        /// What the command line and the environment say. A flag is over the environment, which is over the file.
        #[derive(Clone, Debug, Default, clap::Args)]
        // Without a group of its own it can be part of arguments that are called the same.
        #[group(skip)]
        pub struct Arguments {
            /// The configuration file; without one every default holds.
            #[arg(long, env = "DEVGATE_CONFIG", value_name = "FILE")]
            pub config: Option<PathBuf>,
            $(
                $(#[doc = $doc])*
                #[arg(long, env = $env, value_name = $value $(, value_delimiter = $delimiter)?)]
                pub $field: Option<$type>,
            )*
        }
    };
}

arguments! {
    /// Put before the paths of the host's own file systems.
    root: PathBuf, "DEVGATE_ROOT", "DIR";
    /// Folder for locks [default: /run/devgate].
    run_dir: PathBuf, "DEVGATE_RUN_DIR", "DIR";
    /// Folder for what is remembered [default: /var/lib/devgate].
    state_dir: PathBuf, "DEVGATE_STATE_DIR", "DIR";
    /// A procfs of the host's pid namespace [default: /proc].
    proc_root: PathBuf, "DEVGATE_PROC_ROOT", "DIR";
    /// Seconds after which everything is compared with the kernel although nothing happened [default: 600].
    resync_seconds: u32, "DEVGATE_RESYNC_SECONDS", "SECONDS";
    /// Where the cgroup v2 hierarchy is mounted [default: looked for].
    cgroup_root: PathBuf, "DEVGATE_CGROUP_ROOT", "DIR";
    /// The cgroup above all containers [default: /].
    ancestor: PathBuf, "DEVGATE_ANCESTOR", "CGROUP";
    /// Folder of the pins on a bpf file system [default: /sys/fs/bpf/devgate].
    pin_root: PathBuf, "DEVGATE_PIN_ROOT", "DIR";
    /// The network namespace whose uevents the guard hears [default: /proc/1/ns/net].
    guard_net_namespace: PathBuf, "DEVGATE_GUARD_NET_NAMESPACE", "FILE";
    /// What holds for devices that can be unplugged while no guard is alive [default: keep].
    unguarded: Unguarded, "DEVGATE_UNGUARDED", "WHAT";
    /// What becomes of grants where unknown device programs run [default: withhold].
    foreign_filters: ForeignFilters, "DEVGATE_FOREIGN_FILTERS", "WHAT";
    /// Names of further device programs whose denials may be overridden, separated by commas [default: none].
    known_filters: Vec<String>, "DEVGATE_KNOWN_FILTERS", "NAMES", ',';
    /// Whether cgroups that hold no class are denied all but the standard devices [default: false].
    deny_unclassified: bool, "DEVGATE_DENY_UNCLASSIFIED", "BOOL";
    /// How many cgroups can be managed [default: 4096].
    limit_cgroups: u32, "DEVGATE_LIMIT_CGROUPS", "NUMBER";
    /// How many rules there can be [default: 65536].
    limit_rules: u32, "DEVGATE_LIMIT_RULES", "NUMBER";
    /// How many device numbers can be granted at once [default: 16384].
    limit_devices: u32, "DEVGATE_LIMIT_DEVICES", "NUMBER";
    /// Bytes of the ring buffer for audit records, a power of two [default: 1048576].
    limit_audit_bytes: u32, "DEVGATE_LIMIT_AUDIT_BYTES", "BYTES";
    /// Folder of class files [default: /etc/devgate/classes].
    classes: PathBuf, "DEVGATE_CLASSES", "DIR";
    /// containerd's socket [default: /run/containerd/containerd.sock].
    containerd: PathBuf, "DEVGATE_CONTAINERD", "SOCKET";
    /// containerd's namespaces whose containers are served, separated by commas [default: all].
    containerd_namespaces: Vec<String>, "DEVGATE_CONTAINERD_NAMESPACES", "NAMES", ',';
    /// Milliseconds that an answer of containerd may take [default: 10000].
    containerd_deadline_ms: u32, "DEVGATE_CONTAINERD_DEADLINE_MS", "MS";
    /// The network namespace whose devices are heard of [default: /proc/1/ns/net].
    udev_net_namespace: PathBuf, "DEVGATE_UDEV_NET_NAMESPACE", "FILE";
    /// The mount namespace whose /sys, /dev and /run/udev are read [default: the agent's own].
    udev_mount_namespace: PathBuf, "DEVGATE_UDEV_MOUNT_NAMESPACE", "FILE";
    /// Whether a device must be in the udev database [default: required].
    udev_database: Database, "DEVGATE_UDEV_DATABASE", "WHAT";
    /// Bytes of the buffers for uevents [default: 8388608].
    udev_receive_buffer: u32, "DEVGATE_UDEV_RECEIVE_BUFFER", "BYTES";
    /// Milliseconds that a visit to a container may take [default: 2000].
    nodes_deadline_ms: u32, "DEVGATE_NODES_DEADLINE_MS", "MS";
    /// How many visits to containers are under way at once [default: 16].
    nodes_parallel: u16, "DEVGATE_NODES_PARALLEL", "NUMBER";
    /// Milliseconds that it must be quiet after an event [default: 2].
    batch_quiet_ms: u32, "DEVGATE_BATCH_QUIET_MS", "MS";
    /// Milliseconds that the first event waits at most [default: 20].
    batch_max_delay_ms: u32, "DEVGATE_BATCH_MAX_DELAY_MS", "MS";
    /// Milliseconds that are waited at most before the second try [default: 50].
    retry_first_ms: u32, "DEVGATE_RETRY_FIRST_MS", "MS";
    /// Milliseconds that are waited at most between tries [default: 60000].
    retry_cap_ms: u32, "DEVGATE_RETRY_CAP_MS", "MS";
    /// The audit log's file [default: standard output].
    audit_file: PathBuf, "DEVGATE_AUDIT_FILE", "FILE";
    /// Audit records per second and container in the long run; 0 for no limit [default: 100].
    audit_records_per_second: u32, "DEVGATE_AUDIT_RECORDS_PER_SECOND", "NUMBER";
    /// Audit records at once after a quiet time [default: 1000].
    audit_burst: u32, "DEVGATE_AUDIT_BURST", "NUMBER";
    /// Whether every decision is recorded, also outside of managed cgroups [default: false].
    audit_everything: bool, "DEVGATE_AUDIT_EVERYTHING", "BOOL";
    /// Levels of the log: `info,devgate::sources=debug` [default: info].
    log: String, "DEVGATE_LOG", "FILTER";
    /// Form of the log [default: text].
    log_format: LogFormat, "DEVGATE_LOG_FORMAT", "FORM";
}

impl Arguments {
    pub(super) fn apply(&self, file: &mut File) {
        let given = self.clone();
        // Destructured so that a new field cannot be forgotten here.
        let File {
            root,
            run_dir,
            state_dir,
            proc_root,
            resync_seconds,
            enforcer,
            classes,
            containerd,
            udev,
            nodes,
            batch,
            retry,
            audit,
            log,
        } = file;
        set_path(root, given.root.clone());
        set(run_dir, given.run_dir.clone());
        set(state_dir, given.state_dir.clone());
        set(proc_root, given.proc_root.clone());
        set(resync_seconds, given.resync_seconds);
        given.apply_to_enforcer(enforcer);
        given.apply_to_sources(classes, containerd, udev);
        let NodesSection { deadline_ms, parallel } = nodes;
        set(deadline_ms, given.nodes_deadline_ms);
        set(parallel, given.nodes_parallel);
        let BatchSection { quiet_ms, max_delay_ms } = batch;
        set(quiet_ms, given.batch_quiet_ms);
        set(max_delay_ms, given.batch_max_delay_ms);
        let RetrySection { first_ms, cap_ms } = retry;
        set(first_ms, given.retry_first_ms);
        set(cap_ms, given.retry_cap_ms);
        let AuditSection { file, records_per_second, burst, everything } = audit;
        set_path(file, given.audit_file);
        set(records_per_second, given.audit_records_per_second);
        set(burst, given.audit_burst);
        set(everything, given.audit_everything);
        let LogSection { format, filter } = log;
        set(format, given.log_format);
        set(filter, given.log);
    }

    fn apply_to_enforcer(&self, section: &mut EnforcerSection) {
        let given = self.clone();
        let EnforcerSection {
            cgroup_root,
            ancestor,
            pin_root,
            net_namespace,
            unguarded,
            foreign_filters,
            known_filters,
            deny_unclassified,
            limits,
        } = section;
        set_path(cgroup_root, given.cgroup_root);
        set(ancestor, given.ancestor);
        set(pin_root, given.pin_root);
        set(net_namespace, given.guard_net_namespace);
        set(unguarded, given.unguarded);
        set(foreign_filters, given.foreign_filters);
        set(known_filters, given.known_filters);
        set(deny_unclassified, given.deny_unclassified);
        let LimitsSection { cgroups, rules, devices, audit_bytes } = limits;
        set(cgroups, given.limit_cgroups);
        set(rules, given.limit_rules);
        set(devices, given.limit_devices);
        set(audit_bytes, given.limit_audit_bytes);
    }

    fn apply_to_sources(&self, classes: &mut ClassesSection, runtime: &mut ContainerdSection, udev: &mut UdevSection) {
        let given = self.clone();
        let ClassesSection { folder } = classes;
        set(folder, given.classes);
        let ContainerdSection { socket, namespaces, deadline_ms } = runtime;
        set(socket, given.containerd);
        set(namespaces, given.containerd_namespaces);
        set(deadline_ms, given.containerd_deadline_ms);
        let UdevSection { net_namespace, mount_namespace, database, receive_buffer } = udev;
        set(net_namespace, given.udev_net_namespace);
        set_path(mount_namespace, given.udev_mount_namespace);
        set(database, given.udev_database);
        set(receive_buffer, given.udev_receive_buffer);
    }
}

fn set<T>(field: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *field = value;
    }
}

fn set_path(field: &mut Option<PathBuf>, value: Option<PathBuf>) {
    if value.is_some() {
        *field = value;
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn file_after(words: &[&str]) -> serde_json::Value {
        let line = Line::try_parse_from(["devgate"].iter().chain(words)).unwrap();
        let mut file = File::default();
        line.arguments.apply(&mut file);
        serde_json::to_value(file).unwrap()
    }

    fn leaves(value: &serde_json::Value) -> Vec<&serde_json::Value> {
        match value {
            serde_json::Value::Object(fields) => fields.values().flat_map(leaves).collect(),
            leaf => vec![leaf],
        }
    }

    // Fault: agent/src/config/arguments.rs
    // - set(database, given.udev_database);
    // + set(database, None);
    #[test]
    fn each_flag_changes_one_field_and_each_field_has_one() {
        let words = [
            "--root=/a",
            "--run-dir=/b",
            "--state-dir=/c",
            "--proc-root=/d",
            "--resync-seconds=61",
            "--cgroup-root=/e",
            "--ancestor=/f",
            "--pin-root=/g",
            "--guard-net-namespace=/h",
            "--unguarded=deny",
            "--foreign-filters=override",
            "--known-filters=i,j",
            "--deny-unclassified=true",
            "--limit-cgroups=1",
            "--limit-rules=2",
            "--limit-devices=3",
            "--limit-audit-bytes=4",
            "--classes=/k",
            "--containerd=/l",
            "--containerd-namespaces=m",
            "--containerd-deadline-ms=5",
            "--udev-net-namespace=/n",
            "--udev-mount-namespace=/o",
            "--udev-database=none",
            "--udev-receive-buffer=6",
            "--nodes-deadline-ms=7",
            "--nodes-parallel=8",
            "--batch-quiet-ms=9",
            "--batch-max-delay-ms=10",
            "--retry-first-ms=11",
            "--retry-cap-ms=12",
            "--audit-file=/p",
            "--audit-records-per-second=13",
            "--audit-burst=14",
            "--audit-everything=true",
            "--log=debug",
            "--log-format=json",
        ];
        let before = file_after(&[]);
        let fields = leaves(&before).len();
        assert_eq!(words.len(), fields, "a field without a flag");
        for word in words {
            let after = file_after(&[word]);
            let changed = leaves(&before).into_iter().zip(leaves(&after)).filter(|(a, b)| a != b).count();
            assert_eq!(changed, 1, "{word}");
        }
        let all = file_after(&words);
        let changed = leaves(&before).into_iter().zip(leaves(&all)).filter(|(a, b)| a != b).count();
        assert_eq!(changed, fields, "two flags for one field");
        assert_eq!(all["enforcer"]["knownFilters"], serde_json::json!(["i", "j"]));
    }
}
