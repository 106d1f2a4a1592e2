//! Containers made by the real runc.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use devgate::executors::device_nodes::ContainerRef;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::container::{cgroup_of, cgroup_root, test_prefix};
use crate::spec::MAPPED_ROOT;

/// A container that runc runs; it ends with this value.
pub(crate) struct RuncContainer {
    id: String,
    directory: TempDir,
}

impl RuncContainer {
    pub(crate) fn start(user_namespace: bool) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix(&test_prefix()).tempdir()?;
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755))?;
        let rootfs = directory.path().join("rootfs");
        for name in ["usr", "proc", "dev"] {
            fs::create_dir_all(rootfs.join(name))?;
        }
        for name in ["bin", "lib", "lib64"] {
            symlink(format!("usr/{name}"), rootfs.join(name))?;
        }
        if user_namespace {
            let owner = Some(MAPPED_ROOT);
            std::os::unix::fs::chown(&rootfs, owner, owner)?;
        }
        let id = format!("{}-runc-{}", test_prefix(), if user_namespace { "userns" } else { "plain" });
        fs::write(directory.path().join("config.json"), config(&id, user_namespace).to_string())?;
        let container = Self { id, directory };
        container.runc(&["run", "--detach", "--pid-file", "pid", "--bundle", "."])?;
        Ok(container)
    }

    pub(crate) fn find(&self) -> Result<ContainerRef> {
        let pid = fs::read_to_string(self.directory.path().join("pid"))?.trim().parse()?;
        Ok(ContainerRef::find(pid, cgroup_of(pid)?, Path::new("/proc"), &cgroup_root()?)?)
    }

    /// Runs a shell command in the container.
    pub(crate) fn shell(&self, script: &str) -> Result<String> {
        let output = self.command(&["exec", &self.id, "/bin/sh", "-c", script]).output().context("run runc")?;
        ensure!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8(output.stdout)?)
    }

    fn runc(&self, arguments: &[&str]) -> Result<()> {
        let mut arguments = arguments.to_vec();
        arguments.push(&self.id);
        // Not a pipe, which the container would keep open for as long as it runs.
        let log = self.directory.path().join("log");
        let status = self.command(&arguments).stdout(Stdio::null()).stderr(fs::File::create(&log)?).status()?;
        ensure!(status.success(), "runc {arguments:?}: {}", fs::read_to_string(&log)?);
        Ok(())
    }

    /// runc wants the cgroup v2 hierarchy at `/sys/fs/cgroup`, where a hybrid host has something else: so in a mount namespace of its own.
    fn command(&self, arguments: &[&str]) -> Command {
        let script = "mount -t cgroup2 cgroup2 /sys/fs/cgroup && exec runc --root ./state \"$@\"";
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", script, "sh"]).args(arguments);
        command.current_dir(self.directory.path()).stdin(Stdio::null());
        command
    }
}

impl Drop for RuncContainer {
    fn drop(&mut self) {
        if let Err(error) = self.runc(&["delete", "--force"]) {
            eprintln!("{error:#}");
        }
    }
}

/// Whether there is a runc.
pub(crate) fn installed() -> bool {
    Command::new("runc").arg("--version").output().is_ok_and(|output| output.status.success())
}

fn config(id: &str, user_namespace: bool) -> Value {
    let mut namespaces = vec![json!({ "type": "mount" }), json!({ "type": "pid" }), json!({ "type": "ipc" })];
    let mut linux = json!({
        "cgroupsPath": format!("/{id}"),
        "resources": { "devices": [
            { "allow": false, "access": "rwm" },
            { "allow": true, "type": "c", "major": 10, "minor": 229, "access": "rw" },
        ] },
    });
    if user_namespace {
        namespaces.push(json!({ "type": "user" }));
        let map = json!([{ "containerID": 0, "hostID": MAPPED_ROOT, "size": 65536 }]);
        linux["uidMappings"] = map.clone();
        linux["gidMappings"] = map;
    }
    linux["namespaces"] = json!(namespaces);
    json!({
        "ociVersion": "1.0.2",
        "process": {
            "user": { "uid": 0, "gid": 0 },
            "args": ["/bin/sleep", "infinity"],
            "env": ["PATH=/bin"],
            "cwd": "/",
            "capabilities": { "bounding": [], "effective": [], "permitted": [] },
        },
        "root": { "path": "rootfs", "readonly": true },
        "mounts": [
            { "destination": "/proc", "type": "proc", "source": "proc" },
            { "destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755", "size=64k"] },
            { "destination": "/usr", "type": "bind", "source": "/usr", "options": ["bind", "ro"] },
        ],
        "linux": linux,
    })
}
