//! What a test and the endpoint in its machine say to each other, over a serial port.
//!
//! A message is a list of fields: their number, then each with its length before it, all numbers in four bytes with the
//! lowest first. The endpoint answers each [`Request`] before it reads the next one.

use std::io::{self, Read, Write};
use std::time::Duration;

/// The name of the port, below `/dev/virtio-ports` in the machine.
pub const PORT: &str = "devgate.endpoint";

/// No message has more fields than this; what says so is no message.
const MOST_FIELDS: u32 = 8;

/// No field is longer than this.
const LONGEST_FIELD: u32 = 1 << 30;

/// What the endpoint is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Run a script with `/bin/sh`.
    Run {
        /// After this time it is killed, with all that it has started in its process group.
        deadline: Duration,
        /// The script.
        script: String,
    },
    /// Write a file.
    Put {
        /// Its path. Folders above it are made.
        path: String,
        /// Its permissions.
        mode: u32,
        /// What is to be in it.
        content: Vec<u8>,
    },
    /// Read a file.
    Get {
        /// Its path.
        path: String,
    },
}

/// What became of a [`Request`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// A script has ended.
    Ended {
        /// Its exit status, 128 and the signal's number, or none if it was killed at its deadline.
        status: Option<i32>,
        /// What it wrote to its output.
        output: Vec<u8>,
        /// What it wrote to its error output.
        errors: Vec<u8>,
    },
    /// A file was written.
    Written,
    /// What is in the file.
    Content(Vec<u8>),
    /// It could not be done, and why.
    Failed(String),
}

impl Request {
    /// Sends it.
    pub fn write(&self, to: &mut impl Write) -> io::Result<()> {
        match self {
            Self::Run { deadline, script } => {
                let deadline = deadline.as_millis().to_string();
                write(to, &[b"run", deadline.as_bytes(), script.as_bytes()])
            }
            Self::Put { path, mode, content } => {
                write(to, &[b"put", path.as_bytes(), mode.to_string().as_bytes(), content])
            }
            Self::Get { path } => write(to, &[b"get", path.as_bytes()]),
        }
    }

    /// Receives one.
    pub fn read(from: &mut impl Read) -> io::Result<Self> {
        let mut fields = Fields::read(from)?;
        match &*fields.text()? {
            "run" => Ok(Self::Run { deadline: Duration::from_millis(fields.number()?), script: fields.text()? }),
            "put" => Ok(Self::Put { path: fields.text()?, mode: fields.number()?, content: fields.bytes()? }),
            "get" => Ok(Self::Get { path: fields.text()? }),
            other => Err(invalid(format!("unknown request {other:?}"))),
        }
    }
}

impl Answer {
    /// Sends it.
    pub fn write(&self, to: &mut impl Write) -> io::Result<()> {
        match self {
            Self::Ended { status, output, errors } => {
                let status = status.map_or_else(String::new, |status| status.to_string());
                write(to, &[b"ended", status.as_bytes(), output, errors])
            }
            Self::Written => write(to, &[b"written"]),
            Self::Content(content) => write(to, &[b"content", content]),
            Self::Failed(reason) => write(to, &[b"failed", reason.as_bytes()]),
        }
    }

    /// Receives one.
    pub fn read(from: &mut impl Read) -> io::Result<Self> {
        let mut fields = Fields::read(from)?;
        match &*fields.text()? {
            "ended" => {
                let status = fields.text()?;
                let status = if status.is_empty() { None } else { Some(parse(&status)?) };
                Ok(Self::Ended { status, output: fields.bytes()?, errors: fields.bytes()? })
            }
            "written" => Ok(Self::Written),
            "content" => Ok(Self::Content(fields.bytes()?)),
            "failed" => Ok(Self::Failed(fields.text()?)),
            other => Err(invalid(format!("unknown answer {other:?}"))),
        }
    }
}

/// The fields of a message that were not taken yet.
struct Fields(std::vec::IntoIter<Vec<u8>>);

impl Fields {
    fn read(from: &mut impl Read) -> io::Result<Self> {
        let count = read_number(from, MOST_FIELDS)?;
        let mut fields = Vec::new();
        for _ in 0..count {
            let length = read_number(from, LONGEST_FIELD)?;
            let mut field = vec![0; length as usize];
            from.read_exact(&mut field)?;
            fields.push(field);
        }
        Ok(Self(fields.into_iter()))
    }

    fn bytes(&mut self) -> io::Result<Vec<u8>> {
        self.0.next().ok_or_else(|| invalid("a message lacks a field"))
    }

    fn text(&mut self) -> io::Result<String> {
        String::from_utf8(self.bytes()?).map_err(invalid)
    }

    fn number<T: std::str::FromStr>(&mut self) -> io::Result<T> {
        parse(&self.text()?)
    }
}

/// Sends a message in one piece.
fn write(to: &mut impl Write, fields: &[&[u8]]) -> io::Result<()> {
    let mut message = length(fields.len())?.to_vec();
    for field in fields {
        message.extend(length(field.len())?);
        message.extend(*field);
    }
    to.write_all(&message)?;
    to.flush()
}

fn length(length: usize) -> io::Result<[u8; 4]> {
    Ok(u32::try_from(length).map_err(invalid)?.to_le_bytes())
}

fn read_number(from: &mut impl Read, most: u32) -> io::Result<u32> {
    let mut bytes = [0; 4];
    from.read_exact(&mut bytes)?;
    let number = u32::from_le_bytes(bytes);
    if number > most { Err(invalid(format!("{number} is more than {most}"))) } else { Ok(number) }
}

fn parse<T: std::str::FromStr>(text: &str) -> io::Result<T> {
    text.parse().map_err(|_| invalid(format!("{text:?} is no number")))
}

fn invalid(reason: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_understood() {
        let requests = [
            Request::Run { deadline: Duration::from_millis(1500), script: "echo ü".into() },
            Request::Put { path: "/a b".into(), mode: 0o755, content: vec![0, 255, 10] },
            Request::Get { path: "/etc/hostname".into() },
        ];
        let answers = [
            Answer::Ended { status: Some(3), output: b"out".to_vec(), errors: Vec::new() },
            Answer::Ended { status: None, output: Vec::new(), errors: b"err".to_vec() },
            Answer::Written,
            Answer::Content(vec![1, 2]),
            Answer::Failed("no such file".into()),
        ];
        for request in requests {
            let mut wire = Vec::new();
            request.write(&mut wire).unwrap();
            assert_eq!(Request::read(&mut &*wire).unwrap(), request);
        }
        for answer in answers {
            let mut wire = Vec::new();
            answer.write(&mut wire).unwrap();
            assert_eq!(Answer::read(&mut &*wire).unwrap(), answer);
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for wire in [&b"\x01\0\0\0\x03\0\0\0fly"[..], b"\xff\xff\xff\xff", b"\x01\0\0\0\x03\0\0\0run", b""] {
            Request::read(&mut &*wire).unwrap_err();
        }
    }
}
