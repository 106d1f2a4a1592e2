//! Where fields lie in the structures of the running kernel, read from its BTF
//! (`Documentation/bpf/btf.rst`, Linux 5.4 and newer with `CONFIG_DEBUG_INFO_BTF`).

use std::{fs, io, path::Path};

const MAGIC: u16 = 0xeb9f;
const KIND_STRUCT: u32 = 4;

/// The BTF of a kernel.
pub(super) struct KernelTypes {
    data: Vec<u8>,
    types: std::ops::Range<usize>,
    strings: usize,
}

impl KernelTypes {
    /// Reads `/sys/kernel/btf/vmlinux` or another file of its form.
    pub(super) fn read(path: &Path) -> io::Result<Self> {
        let data = fs::read(path)?;
        let header = |at: usize| word(&data, at).ok_or_else(malformed);
        if data.get(..2) != Some(&MAGIC.to_ne_bytes()) {
            return Err(malformed());
        }
        let start = header(4)? as usize;
        let types = start + header(8)? as usize;
        let types = types..types + header(12)? as usize;
        let strings = start + header(16)? as usize;
        Ok(Self { data, types, strings })
    }

    /// The offset in bytes of a field of a structure; `None` if there is no such structure or field, or if the field is
    /// one of bits.
    pub(super) fn offset_of(&self, structure: &str, field: &str) -> Option<u32> {
        let mut at = self.types.start;
        while at < self.types.end {
            let info = word(&self.data, at + 4)?;
            let (kind, count) = (info >> 24 & 0x1f, (info & 0xffff) as usize);
            if kind == KIND_STRUCT && self.name_is(at, structure)? {
                for member in 0..count {
                    let member = at + 12 + member * 12;
                    if self.name_is(member, field)? {
                        let bits = word(&self.data, member + 8)?;
                        let bits = if info >> 31 == 0 { bits } else { bits & 0xff_ffff };
                        return (bits % 8 == 0).then_some(bits / 8);
                    }
                }
            }
            at += 12 + trailer(kind, count)?;
        }
        None
    }

    fn name_is(&self, at: usize, name: &str) -> Option<bool> {
        let start = self.strings + word(&self.data, at)? as usize;
        let found = self.data.get(start..=start + name.len())?;
        Some(found.strip_prefix(name.as_bytes()) == Some(&[0]))
    }
}

/// How many bytes follow the first twelve of a type of this kind; `None` for one that we do not know.
fn trailer(kind: u32, count: usize) -> Option<usize> {
    Some(match kind {
        // Pointer, forward, typedef, volatile, const, restrict, function, float, type tag.
        2 | 7..=12 | 16 | 18 => 0,
        // Integer, variable, declaration tag.
        1 | 14 | 17 => 4,
        // Array.
        3 => 12,
        // Structure, union, section, 64-bit enumeration.
        4 | 5 | 15 | 19 => 12 * count,
        // Enumeration, function prototype.
        6 | 13 => 8 * count,
        _ => return None,
    })
}

fn word(data: &[u8], at: usize) -> Option<u32> {
    data.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes)
}

fn malformed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "not BTF of this machine's byte order")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `struct pair { int low; int high; }` after an integer type, as a compiler writes it.
    fn pair() -> Vec<u8> {
        let strings = b"\0int\0pair\0low\0high\0";
        let types: &[u32] = &[1, 1 << 24, 4, 0x20, 5, (4 << 24) | 2, 8, 10, 1, 0, 14, 1, 32];
        let mut data = Vec::new();
        data.extend(MAGIC.to_ne_bytes());
        data.extend([1, 0]);
        let types: Vec<u8> = types.iter().flat_map(|word| word.to_ne_bytes()).collect();
        for word in [24, 0, types.len() as u32, types.len() as u32, strings.len() as u32] {
            data.extend(word.to_ne_bytes());
        }
        data.extend(types);
        data.extend(strings);
        data
    }

    #[test]
    fn offsets_are_found_by_name() {
        let file = std::env::temp_dir().join(format!("devgate-btf-{}", std::process::id()));
        fs::write(&file, pair()).unwrap();
        let types = KernelTypes::read(&file).unwrap();
        fs::remove_file(&file).unwrap();
        assert_eq!(types.offset_of("pair", "low"), Some(0));
        assert_eq!(types.offset_of("pair", "high"), Some(4));
        assert_eq!(types.offset_of("pair", "hi"), None);
        assert_eq!(types.offset_of("pai", "low"), None);
    }

    #[test]
    fn garbage_is_refused() {
        assert!(KernelTypes::read(Path::new("/dev/null")).is_err());
    }
}
