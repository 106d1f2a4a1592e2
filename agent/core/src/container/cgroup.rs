use std::fmt;

use super::{CgroupId, CgroupProblem, RuntimeId};

/// The cgroup that holds a container's tasks: the leaf, where a runtime makes more than one for a container.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cgroup {
    /// Its id.
    pub id: CgroupId,
    /// Its path below the root of the v2 hierarchy, such as `/default/demo`.
    pub path: String,
}

impl Cgroup {
    /// Refuses a path that cannot be the container's own: the process id may have passed to another process since the
    /// runtime named it.
    ///
    /// Every runtime puts the container's id into the name of its cgroup: alone (cgroupfs driver), or as
    /// `<prefix>-<id>.scope` (systemd driver). crun makes one more below, named `container`.
    pub fn check(&self, container: &RuntimeId) -> Result<(), CgroupProblem> {
        let Self { id: _, path } = self;
        if path == "/" {
            return Err(CgroupProblem::Root);
        }
        let not_plain = || CgroupProblem::NotPlain { path: path.clone() };
        let below = path.strip_prefix('/').ok_or_else(not_plain)?;
        let parts: Vec<&str> = below.split('/').collect();
        if parts.iter().any(|part| matches!(*part, "" | "." | "..")) {
            return Err(not_plain());
        }
        let named = match parts.as_slice() {
            [.., name, "container"] => names(name, &container.id) || names("container", &container.id),
            [.., name] => names(name, &container.id),
            [] => false,
        };
        if named { Ok(()) } else { Err(CgroupProblem::NotNamed { path: path.clone(), id: container.id.clone() }) }
    }
}

fn names(component: &str, id: &str) -> bool {
    let scope = component.strip_suffix(".scope");
    match scope.unwrap_or(component).strip_suffix(id) {
        Some("") => !id.is_empty(),
        Some(prefix) => !id.is_empty() && prefix.ends_with('-') && scope.is_some(),
        None => false,
    }
}

impl fmt::Display for Cgroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.path, self.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0123456789ab";

    fn check(path: &str) -> Result<(), CgroupProblem> {
        let container = RuntimeId { runtime: "containerd".into(), namespace: "default".into(), id: ID.into() };
        Cgroup { id: CgroupId(7), path: path.into() }.check(&container)
    }

    // Fault: agent/core/src/container/cgroup.rs
    // -             [.., name, "container"] => names(name, &container.id) || names("container", &container.id),
    // +             [.., name, "container"] => names(name, "") || names("container", &container.id),
    #[test]
    fn b16_the_leaf_below_a_scope_is_the_containers() {
        for path in [
            "/default/0123456789ab",
            "/system.slice/cri-containerd-0123456789ab.scope",
            "/machine.slice/libpod-0123456789ab.scope/container",
            "/user.slice/0123456789ab/container",
        ] {
            assert_eq!(check(path), Ok(()), "{path}");
        }
    }

    // Fault: agent/core/src/container/cgroup.rs
    // -             [.., name] => names(name, &container.id),
    // +             [.., _name] => true,
    #[test]
    fn b18_a_cgroup_without_the_containers_id_is_refused() {
        for path in [
            "/default",
            "/default/other",
            "/default/0123456789abc",
            "/default/x0123456789ab",
            "/default/0123456789ab/evil",
            "/system.slice/0123456789ab.scope/child",
            "/default/my-0123456789ab",
        ] {
            assert!(matches!(check(path), Err(CgroupProblem::NotNamed { .. })), "{path}");
        }
    }

    // Fault: agent/core/src/container/cgroup.rs
    // -         if path == "/" {
    // +         if path == "//" {
    #[test]
    fn b18_the_root_is_refused() {
        assert_eq!(check("/"), Err(CgroupProblem::Root));
    }

    // Fault: agent/core/src/container/cgroup.rs
    // -         if parts.iter().any(|part| matches!(*part, "" | "." | "..")) {
    // +         if parts.is_empty() {
    #[test]
    fn b18_a_path_that_climbs_is_refused() {
        for path in ["", "/..", "/../../0123456789ab", "/default/../0123456789ab", "//0123456789ab", "0123456789ab"] {
            assert!(matches!(check(path), Err(CgroupProblem::NotPlain { .. })), "{path}");
        }
    }
}
