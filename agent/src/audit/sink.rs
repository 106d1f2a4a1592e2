//! Where the lines go.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use serde::Serialize;

/// The log cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot open the audit log {path}; set `audit.file`")]
pub struct SinkError {
    path: PathBuf,
    #[source]
    source: io::Error,
}

/// Writes lines, many at once. What cannot be written is counted, and said when writing works again.
pub struct Sink {
    out: Box<dyn Write + Send>,
    buffer: Vec<u8>,
    lines: u64,
    lost: u64,
}

/// Lines that could not be written.
#[derive(Serialize)]
struct Lost {
    time: String,
    event: &'static str,
    unwritten: u64,
}

impl Sink {
    /// Appends to a file, which is made with mode 0600.
    pub fn file(path: &Path) -> Result<Self, SinkError> {
        let file: io::Result<File> = OpenOptions::new().append(true).create(true).mode(0o600).open(path);
        Ok(Self::to(file.map_err(|source| SinkError { path: path.to_owned(), source })?))
    }

    /// Writes to standard output.
    pub fn stdout() -> Self {
        Self::to(io::stdout())
    }

    /// Writes to anything.
    pub fn to(out: impl Write + Send + 'static) -> Self {
        Self { out: Box::new(out), buffer: Vec::new(), lines: 0, lost: 0 }
    }

    /// Adds a line.
    pub(super) fn write(&mut self, line: &impl Serialize) {
        let len = self.buffer.len();
        // Writing to memory fails only for values that are no JSON.
        if let Err(error) = serde_json::to_writer(&mut self.buffer, line) {
            tracing::error!(%error, "an audit record cannot be written as JSON");
            self.buffer.truncate(len);
            return;
        }
        self.buffer.push(b'\n');
        self.lines += 1;
    }

    /// Writes out what was added.
    pub(super) fn flush(&mut self) {
        if self.buffer.is_empty() {
            return;
        }
        if self.lost > 0 {
            let lost = Lost { time: super::line::now(), event: "gap", unwritten: self.lost };
            let mut line = serde_json::to_vec(&lost).unwrap_or_default();
            line.push(b'\n');
            self.buffer.splice(0..0, line);
        }
        match self.out.write_all(&self.buffer).and_then(|()| self.out.flush()) {
            Ok(()) => self.lost = 0,
            Err(error) => {
                if self.lost == 0 {
                    tracing::error!(%error, "the audit log cannot be written; lines are lost until it can");
                }
                self.lost += self.lines;
            }
        }
        self.buffer.clear();
        self.lines = 0;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    /// A disk that is full at times.
    #[derive(Clone, Default)]
    struct Disk(Arc<Mutex<(Vec<u8>, bool)>>);

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut disk = self.0.lock().unwrap();
            if disk.1 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            disk.0.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    // Fault: agent/src/audit/sink.rs
    // - self.lost += self.lines;
    // + self.lost += 0;
    #[test]
    fn what_a_full_disk_cost_is_said_when_there_is_room() {
        let disk = Disk::default();
        let mut sink = Sink::to(disk.clone());
        disk.0.lock().unwrap().1 = true;
        for line in ["a", "b"] {
            sink.write(&line);
            sink.flush();
        }
        disk.0.lock().unwrap().1 = false;
        sink.write(&"c");
        sink.flush();
        let text = String::from_utf8(disk.0.lock().unwrap().0.clone()).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 2);
        assert!(lines[0].contains(r#""event":"gap","unwritten":2"#), "{}", lines[0]);
        assert_eq!(lines[1], r#""c""#);
    }
}
