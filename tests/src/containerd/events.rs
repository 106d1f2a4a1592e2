//! What containerd says of its containers, with its own times.

use std::{
    fs::File,
    path::Path,
    process::{Child, Command, Stdio},
};

use anyhow::{Context, Result};

use crate::{lines::Lines, wait::wait_until};

/// The events, noted by a process that ends with this value.
#[derive(Debug)]
pub struct EventLog {
    process: Child,
    lines: Lines,
}

impl EventLog {
    /// When this returns, events are noted.
    pub(super) fn start(mut command: Command, file: &Path) -> Result<Self> {
        let output = File::options().create(true).append(true).open(file)?;
        command.env("TZ", "UTC").stdin(Stdio::null()).stdout(output).stderr(Stdio::null());
        let process = command.spawn().context("cannot run ctr")?;
        // It says nothing of being ready; it sleeps in its connection once it is.
        let sockets = format!("/proc/{}/fd", process.id());
        wait_until("ctr is connected", || {
            let open = std::fs::read_dir(&sockets).into_iter().flatten().flatten();
            open.filter_map(|entry| std::fs::read_link(entry.path()).ok())
                .any(|to| to.to_string_lossy().starts_with("socket:"))
        });
        Ok(Self { process, lines: Lines::all(file)? })
    }

    /// When this happened to the container, in nanoseconds of the day (UTC), and the number of its first process.
    pub fn wait(&mut self, topic: &str, id: &str) -> Result<(u64, u32)> {
        self.lines.wait(&format!("{topic} of {id}"), |line| read(line, topic, id))
    }
}

impl Drop for EventLog {
    fn drop(&mut self) {
        // It has ended only if containerd has.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// `2026-12-01 15:54:03.123456789 +0000 UTC default /tasks/create {"container_id":"x",...,"pid":7}`
fn read(line: &str, topic: &str, id: &str) -> Option<(u64, u32)> {
    let (words, event) = line.split_at(line.find('{')?);
    let words: Vec<_> = words.split_whitespace().collect();
    let event: serde_json::Value = serde_json::from_str(event).ok()?;
    (words.get(5) == Some(&topic) && event["container_id"] == id).then_some(())?;
    Some((nanoseconds(words.get(1)?)?, event["pid"].as_u64()?.try_into().ok()?))
}

/// Nanoseconds of the day, of a time as RFC 3339 has it.
pub fn time_of_day(time: &str) -> Option<u64> {
    nanoseconds(time.split_once('T')?.1.strip_suffix('Z')?)
}

/// The time of the day.
fn nanoseconds(time: &str) -> Option<u64> {
    let (whole, fraction) = time.split_once('.').unwrap_or((time, ""));
    let mut fields = whole.split(':').map(|field| field.parse::<u64>().ok());
    let [hours, minutes, seconds] = [fields.next()??, fields.next()??, fields.next()??];
    // Zeros at the end are left out.
    let fraction = format!("{fraction:0<9}").parse::<u64>().ok()?;
    Some(((hours * 60 + minutes) * 60 + seconds) * 1_000_000_000 + fraction)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_ctr_is_read() {
        let line = r#"2026-12-01 00:01:02.5 +0000 UTC default /tasks/create {"container_id":"x","pid":7}"#;
        assert_eq!(read(line, "/tasks/create", "x"), Some((62_500_000_000, 7)));
        assert_eq!(read(line, "/tasks/start", "x"), None);
        assert_eq!(read(line, "/tasks/create", "y"), None);
    }
}
