//! Takes back what the agent has done: nodes in containers, link, pins and guard.

use std::{
    collections::BTreeSet,
    fs, io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::{
    config::Config,
    executors::{
        device_nodes::{Change, ContainerRef, DevPath, DeviceNodes, HelperProcesses, Outcome, SOURCE, VisitError},
        enforcer::{self, Cgroup, CgroupError, CgroupRoot, EnforcerError},
    },
};

/// Why not everything could be taken back. What was taken back stays so; repeating it does the rest.
#[derive(Debug, thiserror::Error)]
pub enum UninstallError {
    /// The processes cannot be looked at.
    #[error("cannot look for containers in {0}")]
    Processes(PathBuf, #[source] io::Error),
    /// The hierarchy cannot be opened.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// A container does not let itself be visited.
    #[error("nodes are left in the container of process {0}")]
    Visit(u32, #[source] VisitError),
    /// The kernel's part is left.
    #[error(transparent)]
    Enforcer(#[from] EnforcerError),
}

/// Removes the nodes from all containers below the ancestor, wherever their runtime is, then the link, the pins and the
/// guard. Returns what was removed. The agent must not run: it would put back what is taken.
pub async fn uninstall(config: &Config) -> Result<Vec<String>, UninstallError> {
    let enforcer_config = config.enforcer();
    enforcer::refuse_while_running(&enforcer_config.pin_root)?;
    let root = match &enforcer_config.cgroup_root {
        Some(path) => CgroupRoot::open(path)?,
        None => CgroupRoot::find()?,
    };
    let nodes = HelperProcesses::new(config.helper(root.path()));
    let proc_root = &config.file().proc_root;
    let mut removed = Vec::new();
    let mut failed = None;
    // Without its ancestor there are no containers either. What is elsewhere may be another agent's.
    let ancestor = root.cgroup(&enforcer_config.ancestor).ok();
    let containers = ancestor.map(|ancestor| containers_with_nodes(proc_root, &root, &ancestor)).transpose()?;
    for (pid, container) in containers.unwrap_or_default() {
        match clear(&nodes, &container).await {
            Ok(paths) => {
                removed.extend(paths.into_iter().map(|path| format!("{path} from the container of process {pid}")));
            }
            Err(error) => failed = Some(UninstallError::Visit(pid, error)),
        }
    }
    removed.extend(enforcer::uninstall(&enforcer_config)?.iter().map(|path| path.display().to_string()));
    match failed {
        Some(error) => Err(error),
        None => Ok(removed),
    }
}

async fn clear(nodes: &HelperProcesses, container: &ContainerRef) -> Result<Vec<String>, VisitError> {
    let placed = nodes.list(container).await?;
    let paths: Vec<_> = placed.iter().map(|node| node.path.clone()).collect();
    let changes = placed.into_iter().filter_map(|node| {
        let path = DevPath::try_from(node.path).ok()?;
        Some(Change::Remove { path, mount_id: node.mount_id })
    });
    let outcomes = nodes.visit(container, changes.collect()).await?;
    Ok(paths
        .into_iter()
        .zip(outcomes)
        .filter(|(_, outcome)| *outcome == Outcome::Removed)
        .map(|(path, _)| path)
        .collect())
}

/// A process below the ancestor in each mount namespace that has nodes of ours, other than our own namespace.
fn containers_with_nodes(
    proc_root: &Path,
    root: &CgroupRoot,
    ancestor: &Cgroup,
) -> Result<Vec<(u32, ContainerRef)>, UninstallError> {
    let failed = |error| UninstallError::Processes(proc_root.to_owned(), error);
    let mut seen = BTreeSet::new();
    seen.extend(fs::read_link("/proc/self/ns/mnt").ok());
    let mut found = Vec::new();
    for entry in fs::read_dir(proc_root).map_err(failed)?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        // A process may end while it is looked at; its namespace has others, or has ended with it.
        let Some(container) = look(&entry.path(), pid, (root, ancestor), &mut seen) else { continue };
        found.push((pid, container));
    }
    Ok(found)
}

fn look(
    folder: &Path,
    pid: u32,
    (root, ancestor): (&CgroupRoot, &Cgroup),
    seen: &mut BTreeSet<PathBuf>,
) -> Option<ContainerRef> {
    let namespace = fs::read_link(folder.join("ns/mnt")).ok()?;
    if seen.contains(&namespace) {
        return None;
    }
    let pidfd: OwnedFd = pidfd_open(Pid::from_raw(pid.cast_signed())?, PidfdFlags::empty()).ok()?;
    let cgroups = fs::read_to_string(folder.join("cgroup")).ok()?;
    let path = cgroups.lines().find_map(|line| line.strip_prefix("0::"))?;
    let cgroup = root.cgroup(Path::new(path)).ok()?;
    // Another process of the namespace may be below.
    if !cgroup.is_within(ancestor) {
        return None;
    }
    let mounts = fs::read_to_string(folder.join("mountinfo")).ok()?;
    seen.insert(namespace);
    if !mounts.lines().any(is_ours) {
        return None;
    }
    Some(ContainerRef::new(pidfd, cgroup.id()))
}

/// Whether a line of `mountinfo` is that of a node: after the separator come the type and the source.
fn is_ours(line: &str) -> bool {
    let behind = line.split_once(" - ").map(|(_, behind)| behind.split(' ').take(2).collect::<Vec<_>>());
    behind.is_some_and(|behind| behind == ["tmpfs", SOURCE])
}

#[cfg(test)]
mod tests {
    use super::is_ours;

    #[test]
    fn only_mounts_of_our_tmpfs_are_ours() {
        assert!(is_ours("77 60 0:51 /0/0000002a+usb /dev/ttyUSB0 rw,nosuid - tmpfs devgate rw,mode=700"));
        assert!(!is_ours("77 60 0:51 /devgate /dev/devgate rw - tmpfs tmpfs rw"));
        assert!(!is_ours("77 60 0:51 / /mnt rw - ext4 devgate rw"));
    }
}
