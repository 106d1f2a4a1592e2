//! The lines of the log. Field names are part of its format: they are added to and not changed.

use std::{fmt, time::Duration};

use devgate_abi::{Access, Action, Reason, Record, RecordFlags};
use jiff::Timestamp;
use rustix::time::{ClockId, clock_gettime};
use serde::{Serialize, Serializer};

use crate::{
    executors::enforcer::Losses,
    reconciler::{Names, Report, Timing},
};

/// The difference between the wall clock and the clock of the kernel's records.
pub(super) struct Clock {
    offset: i128,
}

impl Clock {
    pub(super) fn now() -> Self {
        let nanoseconds = |clock| {
            let time = clock_gettime(clock);
            i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec)
        };
        Self { offset: nanoseconds(ClockId::Realtime) - nanoseconds(ClockId::Boottime) }
    }

    fn time(&self, boottime: u64) -> Timestamp {
        Timestamp::from_nanosecond(self.offset + i128::from(boottime)).unwrap_or(Timestamp::MAX)
    }
}

/// The wall clock, as the lines have it.
pub(super) fn now() -> String {
    Timestamp::now().to_string()
}

/// Written as its text, without a string of its own.
struct Text<T>(T);

impl<T: fmt::Display> Serialize for Text<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

fn list<T: fmt::Display, S: Serializer>(values: &[T], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(values.iter().map(Text))
}

/// A decision of the kernel program.
#[expect(clippy::struct_field_names, reason = "the verdict of a verdict is its name in the log")]
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Verdict<'a> {
    time: Text<Timestamp>,
    event: &'static str,
    action: &'static str,
    reason: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    container: Option<Text<&'a devgate_core::RuntimeId>>,
    cgroup: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<Text<&'a devgate_core::DeviceId>>,
    #[serde(serialize_with = "list", skip_serializing_if = "<[_]>::is_empty")]
    classes: &'a [devgate_core::ClassName],
    number: Text<devgate_abi::DeviceNumber>,
    access: Text<Access>,
    prior: i32,
    verdict: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<Text<devgate_core::RuleId>>,
    #[serde(skip_serializing_if = "is_zero")]
    generation: u32,
    sequence: u64,
    pid: u32,
    tid: u32,
    uid: u32,
    gid: u32,
    #[serde(serialize_with = "comm")]
    comm: &'a [u8],
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    audit_only: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// The task's name, which the task chose: anything but a zero can be in it.
fn comm<S: Serializer>(bytes: &&[u8], serializer: S) -> Result<S::Ok, S::Error> {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    serializer.serialize_str(&String::from_utf8_lossy(&bytes[..end]))
}

pub(super) fn verdict<'a>(record: &'a Record, names: &'a Names, clock: &Clock) -> Verdict<'a> {
    let rule = names.rules.get(&record.rule_id);
    // The kernel knows only the containers that hold a class.
    let container = names.containers.get(&record.container).or_else(|| names.containers.get(&record.cgroup));
    Verdict {
        time: Text(clock.time(record.time)),
        event: "verdict",
        action: match Action::from_raw(record.action) {
            Some(Action::Keep) => "keep",
            Some(Action::Grant) => "grant",
            Some(Action::Deny) => "deny",
            None => "unknown",
        },
        reason: Reason::from_raw(record.reason).map_or("Unknown", Reason::name),
        container: container.map(|container| Text(&**container)),
        cgroup: record.cgroup,
        device: rule.map(|rule| Text(&rule.device)),
        classes: rule.map_or(&[], |rule| &rule.classes),
        number: Text(record.device),
        access: Text(Access::from_bits(record.access)),
        prior: record.prior,
        verdict: record.verdict,
        rule: (record.rule_id != 0).then_some(Text(devgate_core::RuleId(record.rule_id))),
        generation: record.generation,
        sequence: record.sequence,
        pid: record.pid,
        tid: record.tid,
        uid: record.uid,
        gid: record.gid,
        comm: &record.comm,
        audit_only: record.flags.contains(RecordFlags::AUDIT_ONLY),
    }
}

/// Records that were not written.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Gap<'a> {
    time: String,
    event: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    container: Option<Text<&'a devgate_core::RuntimeId>>,
    cgroup: u64,
    limited: u64,
    lost: u64,
}

pub(super) fn gap<'a>(losses: &Losses, names: &'a Names) -> Gap<'a> {
    let Losses { cgroup, limited, lost } = *losses;
    let container = names.containers.get(&cgroup).map(|container| Text(&**container));
    Gap { time: now(), event: "gap", container, cgroup, limited, lost }
}

/// Something that the agent did.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Done {
    time: String,
    event: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    container: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cgroup: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    classes: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    number: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    microseconds: Option<Spent>,
}

/// What the time from the first event was made of, in microseconds.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Spent {
    batch: u128,
    reread: u128,
    plan: u128,
    kernel: u128,
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<u128>,
    total: u128,
}

impl Spent {
    fn new(timing: &Timing, node: Option<(Duration, Duration)>) -> Self {
        let Timing { first, taken, reread, planned, enforced } = *timing;
        let end = node.map_or(enforced, |(_, done)| done);
        let between = |from: Duration, to: Duration| to.saturating_sub(from).as_micros();
        Self {
            batch: between(first, taken),
            reread: between(taken, reread),
            plan: between(reread, planned),
            kernel: between(planned, enforced),
            node: node.map(|(visit, _)| visit.as_micros()),
            total: between(first, end),
        }
    }
}

impl Done {
    fn new(event: &'static str) -> Self {
        Self {
            time: now(),
            event,
            container: None,
            cgroup: None,
            device: None,
            classes: Vec::new(),
            number: None,
            path: None,
            rule: None,
            message: None,
            microseconds: None,
        }
    }
}

pub(super) fn report(report: &Report) -> Done {
    let some = |value: &dyn fmt::Display| Some(value.to_string());
    match report {
        Report::Arrived { device, number, devnode } => {
            Done { device: some(device), number: some(number), path: some(devnode), ..Done::new("deviceArrived") }
        }
        Report::Left { device, number } => {
            Done { device: some(device), number: some(number), ..Done::new("deviceLeft") }
        }
        Report::Voided { number } => Done { number: some(number), ..Done::new("grantsVoided") },
        Report::Granted { container, device, classes, number, rule, timing } => Done {
            container: some(container),
            device: some(device),
            classes: classes.iter().map(ToString::to_string).collect(),
            number: some(number),
            rule: some(rule),
            microseconds: Some(Spent::new(timing, None)),
            ..Done::new("granted")
        },
        Report::Revoked { cgroup, container, number } => Done {
            container: container.as_ref().map(ToString::to_string),
            cgroup: Some(cgroup.0),
            number: some(number),
            ..Done::new("revoked")
        },
        Report::NodePlaced { container, device, number, path, timing, visit, done } => Done {
            container: some(container),
            device: some(device),
            number: some(number),
            path: some(path),
            microseconds: Some(Spent::new(timing, Some((*visit, *done)))),
            ..Done::new("nodePlaced")
        },
        Report::NodeRemoved { container, number, path } => Done {
            container: container.as_ref().map(ToString::to_string),
            number: some(number),
            path: some(path),
            ..Done::new("nodeRemoved")
        },
        Report::Failed { container, step, message, permanent } => Done {
            container: container.as_ref().map(ToString::to_string),
            message: Some(format!("{step}: {message}{}", if *permanent { " (not tried again)" } else { "" })),
            ..Done::new("failed")
        },
        Report::Alarm { message } => Done { message: Some(message.clone()), ..Done::new("alarm") },
    }
}
