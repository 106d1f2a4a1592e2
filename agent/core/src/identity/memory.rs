use std::collections::BTreeSet;

use super::DeviceId;
use crate::digest::StableHash;

/// What the agent must remember over a restart and a reboot because nothing else knows it. It holds no number, no
/// cgroup and no grant: those are read from the kernel, or gone with the boot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// The ids that more than one device has had because they say the same serial number. Both have another one from
    /// the next start on.
    pub ambiguous: BTreeSet<DeviceId>,
}

/// Why what was remembered is not used. Nothing is lost that would not be learnt again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemoryProblem {
    /// Another version wrote it, or it is something else.
    #[error("it does not begin with {:?}", Memory::HEADER)]
    Header,
    /// It was cut off or changed.
    #[error("its checksum is missing or wrong")]
    Checksum,
    /// A line that this version does not know.
    #[error("line {line} is not understood")]
    Line {
        /// From 1.
        line: usize,
    },
}

impl Memory {
    const HEADER: &str = "devgate-memory 1";
    const SUM: &str = "sha256 ";
    const AMBIGUOUS: &str = "ambiguous ";

    /// The text to write to the disk.
    pub fn to_text(&self) -> String {
        let mut text = format!("{}\n", Self::HEADER);
        for id in &self.ambiguous {
            text.extend([Self::AMBIGUOUS, id.as_str(), "\n"]);
        }
        let sum = checksum(&text);
        text.extend([Self::SUM, &sum, "\n"]);
        text
    }

    /// What a text from the disk says. One that is damaged says nothing at all.
    pub fn from_text(text: &[u8]) -> Result<Self, MemoryProblem> {
        let text = str::from_utf8(text).map_err(|_| MemoryProblem::Checksum)?;
        let Some(lines) = text.strip_prefix(Self::HEADER).and_then(|rest| rest.strip_prefix('\n')) else {
            return Err(MemoryProblem::Header);
        };
        let (body, sum) = lines.rsplit_once(Self::SUM).ok_or(MemoryProblem::Checksum)?;
        let signed = &text[..text.len() - Self::SUM.len() - sum.len()];
        if sum.strip_suffix('\n') != Some(checksum(signed).as_str()) {
            return Err(MemoryProblem::Checksum);
        }
        let entry = |(index, line): (usize, &str)| {
            let id = line.strip_prefix(Self::AMBIGUOUS).and_then(DeviceId::parse);
            id.ok_or(MemoryProblem::Line { line: index + 2 })
        };
        Ok(Self { ambiguous: body.lines().enumerate().map(entry).collect::<Result<_, _>>()? })
    }
}

fn checksum(text: &str) -> String {
    StableHash::default().text(text).hex(32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory() -> Memory {
        Memory { ambiguous: ["a-1", "b-2"].into_iter().filter_map(DeviceId::parse).collect() }
    }

    #[test]
    fn what_was_written_is_read() {
        assert_eq!(Memory::from_text(memory().to_text().as_bytes()), Ok(memory()));
        assert_eq!(Memory::from_text(Memory::default().to_text().as_bytes()), Ok(Memory::default()));
    }

    // Fault: agent/core/src/identity/memory.rs
    // -         if sum.strip_suffix('\n') != Some(checksum(signed).as_str()) {
    // +         if sum.strip_suffix('\n').is_none() {
    #[test]
    fn b34_a_damaged_file_says_nothing() {
        let text = memory().to_text().into_bytes();
        for at in 0..text.len() {
            assert!(Memory::from_text(&text[..at]).is_err(), "cut at {at}");
            let mut garbled = text.clone();
            garbled[at] ^= 1;
            assert!(Memory::from_text(&garbled).is_err(), "garbled at {at}");
        }
        assert_eq!(Memory::from_text(b"\xff\x00garbage"), Err(MemoryProblem::Checksum));
    }

    // Fault: agent/core/src/identity/memory.rs
    // -         let Some(lines) = text.strip_prefix(Self::HEADER).and_then(|rest| rest.strip_prefix('\n')) else {
    // +         let Some(lines) = text.find('\n').map(|end| &text[end + 1..]) else {
    #[test]
    fn b34_another_format_is_not_read() {
        let text = memory().to_text().replace("memory 1", "memory 2");
        assert_eq!(Memory::from_text(text.as_bytes()), Err(MemoryProblem::Header));
    }
}
