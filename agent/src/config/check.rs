//! Whether values fit, beyond their types.

use std::path::Path;

use tracing_subscriber::EnvFilter;

use super::file::{File, LimitsSection};

/// The least page of any machine.
const PAGE: u32 = 4096;
/// What more bytes than this are asked for by mistake.
const MAX_RECEIVE_BUFFER: u32 = 1 << 30;

/// A value that does not fit.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Misfit {
    pub(super) field: &'static str,
    pub(super) value: String,
    pub(super) reason: &'static str,
    pub(super) remedy: String,
}

/// All values that do not fit.
pub(super) fn misfits(file: &File) -> Vec<Misfit> {
    let mut found = Vec::new();
    let mut check = |fits: bool, field, value: &dyn ToString, reason, remedy: &str| {
        if !fits {
            found.push(Misfit { field, value: value.to_string(), reason, remedy: remedy.to_owned() });
        }
    };
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

    let paths: [(&str, Option<&Path>); 13] = [
        ("root", root.as_deref()),
        ("runDir", Some(run_dir)),
        ("stateDir", Some(state_dir)),
        ("procRoot", Some(proc_root)),
        ("enforcer.cgroupRoot", enforcer.cgroup_root.as_deref()),
        ("enforcer.ancestor", Some(&enforcer.ancestor)),
        ("enforcer.pinRoot", Some(&enforcer.pin_root)),
        ("enforcer.netNamespace", Some(&enforcer.net_namespace)),
        ("classes.folder", Some(&classes.folder)),
        ("containerd.socket", Some(&containerd.socket)),
        ("udev.netNamespace", Some(&udev.net_namespace)),
        ("udev.mountNamespace", udev.mount_namespace.as_deref()),
        ("audit.file", audit.file.as_deref()),
    ];
    for (field, path) in paths {
        if let Some(path) = path {
            let value = path.display();
            check(path.is_absolute(), field, &value, "the path does not begin with /", "write the whole path");
        }
    }

    check(*resync_seconds >= 60, "resyncSeconds", resync_seconds, "that is too often", "write 60 or more");
    let LimitsSection { cgroups, rules, devices, audit_bytes } = &enforcer.limits;
    for (field, limit) in
        [("enforcer.limits.cgroups", cgroups), ("enforcer.limits.rules", rules), ("enforcer.limits.devices", devices)]
    {
        check(*limit > 0, field, limit, "a map without room holds nothing", "write 1 or more");
    }
    let buffer = audit_bytes.is_power_of_two() && *audit_bytes >= PAGE;
    let remedy = "write a power of two, such as 1048576";
    check(buffer, "enforcer.limits.auditBytes", audit_bytes, "the kernel makes no such buffer", remedy);
    let at_most = "write a number of bytes from 1 to 1073741824";
    let sound = (1..=MAX_RECEIVE_BUFFER).contains(&udev.receive_buffer);
    check(sound, "udev.receiveBuffer", &udev.receive_buffer, "a socket has no such buffer", at_most);

    for (field, deadline) in
        [("containerd.deadlineMs", containerd.deadline_ms), ("nodes.deadlineMs", nodes.deadline_ms)]
    {
        check(deadline > 0, field, &deadline, "nothing is done in no time", "write 1 or more");
    }
    let parallel = &nodes.parallel;
    check(*parallel > 0, "nodes.parallel", parallel, "no container would be visited", "write 1 or more");
    let later = "write no less than batch.quietMs";
    check(batch.max_delay_ms >= batch.quiet_ms, "batch.maxDelayMs", &batch.max_delay_ms, "that is too short", later);
    check(retry.first_ms > 0, "retry.firstMs", &retry.first_ms, "it would never rest", "write 1 or more");
    let later = "write no less than retry.firstMs";
    check(retry.cap_ms >= retry.first_ms, "retry.capMs", &retry.cap_ms, "that is too short", later);
    let levels = "write levels for all and for modules, such as info,devgate::sources=debug";
    let filter = EnvFilter::builder().parse(&log.filter).is_ok();
    check(filter, "log.filter", &log.filter, "that is no filter", levels);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_fit() {
        assert_eq!(misfits(&File::default()), []);
    }

    #[test]
    fn what_does_not_fit_is_told_all_at_once() {
        let mut file = File { run_dir: "run".into(), resync_seconds: 1, ..File::default() };
        file.enforcer.limits.audit_bytes = 5000;
        file.enforcer.limits.rules = 0;
        file.udev.receive_buffer = 0;
        file.nodes.deadline_ms = 0;
        file.nodes.parallel = 0;
        file.batch.quiet_ms = 30;
        file.retry.cap_ms = 10;
        file.log.filter = "devgate=loud".to_owned();
        let fields: Vec<_> = misfits(&file).iter().map(|misfit| misfit.field).collect();
        assert_eq!(
            fields,
            [
                "runDir",
                "resyncSeconds",
                "enforcer.limits.rules",
                "enforcer.limits.auditBytes",
                "udev.receiveBuffer",
                "nodes.deadlineMs",
                "nodes.parallel",
                "batch.maxDelayMs",
                "retry.capMs",
                "log.filter",
            ]
        );
    }
}
