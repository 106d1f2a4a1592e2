//! Hashes of inputs, so that what did not change is not built again.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

/// A SHA-256 over a sequence of values, each with its length before it: no two sequences look alike.
#[derive(Debug, Default)]
pub(crate) struct Hash(Sha256);

impl Hash {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Adds one value.
    pub(crate) fn add(mut self, value: impl AsRef<[u8]>) -> Self {
        let value = value.as_ref();
        self.0.update((value.len() as u64).to_le_bytes());
        self.0.update(value);
        self
    }

    /// Adds the name (without `base`) and the content of a file.
    pub(crate) fn add_file(self, base: &Path, path: &Path) -> Result<Self> {
        let content = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        let name = path.strip_prefix(base).unwrap_or(path);
        Ok(self.add(name.as_os_str().as_encoded_bytes()).add(content))
    }

    /// All digits, in hexadecimal.
    pub(crate) fn full(self) -> String {
        hexadecimal(&self.0.finalize())
    }

    /// Enough digits for the name of a folder.
    pub(crate) fn short(self) -> String {
        hexadecimal(&self.0.finalize()[..8])
    }
}

/// The SHA-256 of some bytes, as `sha256sum` prints it.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    hexadecimal(&Sha256::digest(bytes))
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sha256_is_that_of_sha256sum() {
        assert_eq!(sha256(b"abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }

    #[test]
    fn values_are_kept_apart() {
        assert_ne!(Hash::new().add("ab").add("c").full(), Hash::new().add("a").add("bc").full());
    }
}
