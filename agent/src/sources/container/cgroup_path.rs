//! Which of the cgroups that a process is in is its container's.

use devgate_core::{Cgroup, CgroupId, CgroupProblem, RuntimeId};

/// The path in the hierarchy of cgroups v2, in what `/proc/PID/cgroup` says. On a host that has the first version too
/// there are other lines.
pub(super) fn unified(text: &str) -> Option<&str> {
    text.lines().find_map(|line| line.strip_prefix("0::"))
}

/// The container's own cgroup on the way down to `path`, where its first process is.
///
/// It is the outermost one that is named after the container: below it a container that may make cgroups makes those
/// that it likes, and may go there. Were the inner one taken, it would leave its rules behind by moving. Only one that
/// the runtime itself has made below counts: crun's systemd driver puts the process into `<scope>/container`.
///
/// A namespace may be named as a container is, and then its cgroup is named after the container too. So if the runtime
/// was told a path (`told`, as in the OCI configuration's `linux.cgroupsPath`), that one comes first.
pub(super) fn own(path: &str, container: &RuntimeId, told: Option<&str>) -> Result<String, CgroupProblem> {
    let check = |path: &str| Cgroup { id: CgroupId(0), path: path.to_owned() }.check(container);
    let whole = check(path);
    if let Err(problem @ (CgroupProblem::Root | CgroupProblem::NotPlain { .. })) = whole {
        return Err(problem);
    }
    let ends = path.match_indices('/').skip(1).map(|(at, _)| at).chain([path.len()]);
    let named: Vec<&str> = ends.map(|end| &path[..end]).filter(|path| check(path).is_ok()).collect();
    let as_told = told.and_then(|told| {
        let end = end_of(told);
        named.iter().find(|path| path.ends_with(&end))
    });
    let Some(own) = as_told.or(named.first()) else {
        return Err(whole.err().unwrap_or_else(|| not_named(path, container)));
    };
    let leaf = format!("{own}/container");
    let is_runtimes = own.strip_suffix(".scope").is_some() && (path == leaf || path.starts_with(&format!("{leaf}/")));
    Ok(if is_runtimes { leaf } else { (*own).to_owned() })
}

/// How the path of the cgroup ends that a runtime makes for a `cgroupsPath`: a path, or `slice:prefix:name` for systemd.
fn end_of(told: &str) -> String {
    match *told.split(':').collect::<Vec<_>>() {
        [_slice, "", name] => format!("/{name}.scope"),
        [_slice, prefix, name] => format!("/{prefix}-{name}.scope"),
        _ => format!("/{}", told.trim_start_matches('/')),
    }
}

fn not_named(path: &str, container: &RuntimeId) -> CgroupProblem {
    CgroupProblem::NotNamed { path: path.to_owned(), id: container.id.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn container(id: &str) -> RuntimeId {
        RuntimeId { runtime: "containerd".into(), namespace: "default".into(), id: id.into() }
    }

    #[test]
    fn the_line_of_version_2_counts_also_on_a_hybrid_host() {
        assert_eq!(unified("12:devices:/x\n1:name=systemd:/y\n0::/default/demo\n"), Some("/default/demo"));
        assert_eq!(unified("12:devices:/x\n"), None);
    }

    // Fault: agent/src/sources/container/cgroup_path.rs
    // - let is_runtimes = own.strip_suffix(".scope").is_some() && (path == leaf || path.starts_with(&format!("{leaf}/")));
    // + let is_runtimes = false;
    #[test]
    fn b16_the_leaf_that_cruns_systemd_driver_makes_has_the_tasks() {
        let own = |path| own(path, &container("demo"), None).expect("it is the container's");
        assert_eq!(own("/machine.slice/crun-demo.scope/container"), "/machine.slice/crun-demo.scope/container");
        assert_eq!(own("/machine.slice/crun-demo.scope/container/made"), "/machine.slice/crun-demo.scope/container");
        assert_eq!(own("/machine.slice/crun-demo.scope"), "/machine.slice/crun-demo.scope");
    }

    #[test]
    fn what_a_container_makes_below_its_cgroup_is_not_taken_for_it() {
        let own = |path: &str| own(path, &container("demo"), None).expect("it is the container's");
        for below in ["init.scope", "container", "x/demo", "x/demo/container", "demo", "x-demo.scope"] {
            assert_eq!(own(&format!("/default/demo/{below}")), "/default/demo", "{below}");
        }
        assert_eq!(own("/a.slice/x-demo.scope/y/demo"), "/a.slice/x-demo.scope");
    }

    #[test]
    fn a_namespace_that_is_named_as_its_container_is_not_taken_for_it() {
        let own = |path, told| own(path, &container("demo"), Some(told)).expect("it is the container's");
        assert_eq!(own("/demo/demo", "/demo/demo"), "/demo/demo");
        assert_eq!(own("/pods/demo/demo/x/demo/demo", "/demo/demo"), "/pods/demo/demo");
        assert_eq!(own("/demo/x-demo.scope/container", "a.slice:x:demo"), "/demo/x-demo.scope/container");
        assert_eq!(own("/demo/demo.scope", "a.slice::demo"), "/demo/demo.scope");
        assert_eq!(own("/default/demo", "/elsewhere"), "/default/demo");
    }

    // Fault: agent/src/sources/container/cgroup_path.rs
    // - if let Err(problem @ (CgroupProblem::Root | CgroupProblem::NotPlain { .. })) = whole {
    // + if let Err(problem @ CgroupProblem::Root) = whole {
    #[test]
    fn b18_no_other_cgroup_is_taken() {
        let own = |path| own(path, &container("demo"), Some("/default/demo")).expect_err("it is not the container's");
        assert_eq!(own("/"), CgroupProblem::Root);
        for path in ["/../default/demo", "/default/demo/../other", "default/demo", "", "//demo"] {
            assert!(matches!(own(path), CgroupProblem::NotPlain { .. }), "{path}");
        }
        for path in ["/default", "/default/other", "/default/demo (deleted)", "/default/demo2"] {
            assert!(matches!(own(path), CgroupProblem::NotNamed { .. }), "{path}");
        }
    }
}
