//! Keeping the verifier's work small.

use devgate_abi::{Decision, State, Tally, load};

/// Hides a word's value from the verifier, which else follows the program once for each value that it knows a word to
/// have, and gives up.
#[derive(Clone, Copy)]
pub(crate) struct Hide<'a>(pub(crate) &'a State);

impl Hide<'_> {
    /// The same word. What is added to it is always zero, and read anew each time: of a value that is used twice, the
    /// verifier learns from the first comparison.
    #[inline(always)]
    pub(crate) fn word(self, word: u64) -> u64 {
        word ^ load(&self.0.zero)
    }

    #[inline(always)]
    pub(crate) fn bool(self, value: bool) -> bool {
        self.word(u64::from(value)) != 0
    }

    #[inline(always)]
    pub(crate) fn decision(self, decision: Decision) -> Decision {
        Decision::from_bits(self.word(u64::from(decision.bits())) as u32)
    }

    #[inline(always)]
    pub(crate) fn tally(self, tally: Tally) -> Tally {
        Tally::from_bits(self.word(tally.bits()))
    }
}
