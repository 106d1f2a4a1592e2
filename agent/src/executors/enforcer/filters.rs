//! Device programs of others, and whose they are.

use std::{fmt, os::fd::AsFd};

use super::sys::{self, ProgramInfo};

/// The name of systemd's device programs (`bpf-devices.c`, systemd 248 and newer).
const SYSTEMD: &str = "sd_devices";

/// A device program that is neither a runtime's nor systemd's.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Filter {
    /// The kernel's id of the program.
    pub id: u32,
    /// Its name and the hash of its instructions; `None` if the kernel does not let us look.
    pub identity: Option<(String, [u8; 8])>,
}

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.identity {
            Some((name, tag)) => {
                write!(f, "program {} ({name}, tag ", self.id)?;
                tag.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
                f.write_str(")")
            }
            None => write!(f, "program {} (cannot be looked at)", self.id),
        }
    }
}

impl Filter {
    /// Looks at a program. `None` if it has gone.
    pub(super) fn of(id: u32) -> Option<Self> {
        match sys::program_by_id(id).and_then(|program| sys::info::<ProgramInfo>(program.as_fd())) {
            Ok(info) => Some(Self { id, identity: Some((info.name(), info.tag)) }),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(_) => Some(Self { id, identity: None }),
        }
    }
}

/// Whether a program is neither a runtime's nor systemd's nor named in `known`; then, which it is.
///
/// Programs of runc, crun and youki have neither a name nor maps; those of systemd have a fixed name. A container cannot
/// forge either: attaching needs a descriptor of its cgroup and of a program.
pub(super) fn foreign(id: u32, known: &[String]) -> Option<Filter> {
    let info = sys::program_by_id(id).and_then(|program| sys::info::<ProgramInfo>(program.as_fd()));
    match info {
        Ok(info) => {
            let name = info.name();
            let of_runtime = name.is_empty() && info.map_count == 0;
            let expected = of_runtime || name == SYSTEMD || known.contains(&name);
            (!expected).then_some(Filter { id, identity: Some((name, info.tag)) })
        }
        // It may have gone since the query.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(_) => Some(Filter { id, identity: None }),
    }
}
