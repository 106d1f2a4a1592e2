//! Keeping the verifier's work small.

use devgate_abi::{Decision, State, Tally, load};

/// Hides values from the verifier, which else follows a loop once for each combination of values that it knows, and gives
/// up. Outside of loops there is nothing to hide.
///
/// What is carried from one round of a loop to the next must look the same to it in each. Linux 6.1 in particular takes
/// for different what is known and what is not.
#[derive(Clone, Copy)]
pub(crate) struct Hide<'a>(pub(crate) &'a State);

impl Hide<'_> {
    /// The same word. What is added to it is always zero, and read anew each time: the verifier learns from a comparison
    /// what it can of everything that was made from the same word.
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
