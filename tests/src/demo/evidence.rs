//! The lines of the audit log that tell the story again.

use std::time::Instant;

use anyhow::{Result, bail};
use devgate_abi::DeviceNumber;
use serde_json::Value;

use crate::wait::PATIENCE;

/// A line that must be there.
pub(super) struct Expected {
    pub(super) words: &'static str,
    event: &'static str,
    number: DeviceNumber,
    /// Further fields that a line of this event must have.
    fields: Vec<(&'static str, String)>,
}

/// Fields that are shown, if a line has them.
const SHOWN: [&str; 7] = ["event", "container", "number", "path", "access", "action", "reason"];

/// What must be in the log, as it happened.
pub(super) fn expected(first: DeviceNumber, second: DeviceNumber) -> Vec<Expected> {
    let line = |words, event, number, fields: &[(&'static str, &str)]| Expected {
        words,
        event,
        number,
        fields: fields.iter().map(|(name, value)| (*name, (*value).to_owned())).collect(),
    };
    let reader = ("container", "containerd/default/reader");
    let other = ("container", "containerd/default/other");
    let path = ("path", "/dev/sensor");
    vec![
        line("plugged in", "deviceArrived", first, &[]),
        line("granted", "granted", first, &[reader]),
        line("the node is placed", "nodePlaced", first, &[reader, path]),
        line("reader opens it", "verdict", first, &[reader, ("action", "grant")]),
        line("other is denied", "verdict", first, &[other, ("access", "r")]),
        line("reader is denied the old number", "verdict", first, &[reader, ("access", "r"), ("action", "deny")]),
        line("the old node is removed", "nodeRemoved", first, &[reader, path]),
        line("granted under the new number", "granted", second, &[reader]),
        line("the new node is placed", "nodePlaced", second, &[reader, path]),
        line("unplugged", "deviceLeft", second, &[]),
        line("the node is removed", "nodeRemoved", second, &[reader, path]),
    ]
}

impl Expected {
    fn fits(&self, line: &Value) -> bool {
        line["event"] == self.event
            && line["number"] == self.number.to_string()
            && self.fields.iter().all(|(name, value)| line[name] == **value)
    }
}

/// Finds the line among those that are known, and reads them anew until it is there.
pub(super) fn find(
    lines: &mut Vec<Value>,
    expected: &Expected,
    mut all: impl FnMut() -> Result<Vec<Value>>,
) -> Result<Value> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(line) = lines.iter().find(|line| expected.fits(line)) {
            return Ok(line.clone());
        }
        if Instant::now() > deadline {
            let near: Vec<_> = lines.iter().filter(|line| line["event"] == expected.event).map(shorten).collect();
            bail!("no such line of {} in the audit log, but:\n{}", expected.number, near.join("\n"));
        }
        *lines = all()?;
    }
}

/// The fields that tell the story.
pub(super) fn shorten(line: &Value) -> String {
    let shown = SHOWN.iter().filter(|name| !line[**name].is_null());
    let fields: Vec<_> = shown.map(|name| format!("\"{name}\":{}", line[*name])).collect();
    format!("{{{}}}", fields.join(","))
}
