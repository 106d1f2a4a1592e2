use std::fmt::Write;

use hmac_sha256::Hash;

/// A hash that is the same on every machine and in every version, of parts that cannot run into each other.
#[derive(Clone)]
pub(crate) struct StableHash(Hash);

impl Default for StableHash {
    fn default() -> Self {
        Self(Hash::new())
    }
}

impl StableHash {
    pub(crate) fn text(mut self, text: &str) -> Self {
        self.0.update((text.len() as u64).to_le_bytes());
        self.0.update(text);
        self
    }

    pub(crate) fn number(mut self, number: u64) -> Self {
        self.0.update(number.to_le_bytes());
        self
    }

    /// The first 64 bits.
    pub(crate) fn bits64(self) -> u64 {
        self.0.finalize().iter().take(8).fold(0, |bits, byte| bits << 8 | u64::from(*byte))
    }

    /// The first 32 bits.
    pub(crate) fn bits32(self) -> u32 {
        (self.bits64() >> 32) as u32
    }

    /// The first `bytes` bytes in hexadecimal.
    pub(crate) fn hex(self, bytes: usize) -> String {
        self.0.finalize().iter().take(bytes).fold(String::new(), |mut hex, byte| {
            let _ = write!(hex, "{byte:02x}");
            hex
        })
    }
}

/// One hash of two, quick: for hashes that were made once and are combined often. The order counts.
pub(crate) fn combined(one: u64, other: u64) -> u64 {
    // The finalizer of splitmix64.
    let mut bits = one.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ other;
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^ (bits >> 31)
}
