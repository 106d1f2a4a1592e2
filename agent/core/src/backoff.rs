use std::time::Duration;

/// How long to wait before something that failed is tried again: doubled each time up to a cap, then spread over its
/// upper half so that many failures of one cause do not come back at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The longest wait before the second try.
    pub first: Duration,
    /// The longest wait at all.
    pub cap: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { first: Duration::from_millis(50), cap: Duration::from_mins(1) }
    }
}

impl Backoff {
    /// The wait after the `failures`th failure in a row (from 1), for a `random` number of the caller: between half of
    /// the doubled time and all of it.
    pub fn delay(&self, failures: u32, random: u64) -> Duration {
        let doublings = failures.saturating_sub(1).min(31);
        let longest = self.first.saturating_mul(1 << doublings).min(self.cap);
        let half = longest / 2;
        let spread = u64::try_from(longest.saturating_sub(half).as_nanos()).unwrap_or(u64::MAX);
        half + Duration::from_nanos(random % spread.saturating_add(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BACKOFF: Backoff = Backoff { first: Duration::from_millis(100), cap: Duration::from_secs(10) };

    #[test]
    fn doubles_up_to_the_cap() {
        assert_eq!(BACKOFF.delay(1, 0), Duration::from_millis(50));
        assert_eq!(BACKOFF.delay(2, 0), Duration::from_millis(100));
        assert_eq!(BACKOFF.delay(8, 0), Duration::from_secs(5));
        assert_eq!(BACKOFF.delay(u32::MAX, 0), Duration::from_secs(5));
    }

    #[test]
    fn is_spread_over_the_upper_half() {
        let delays: Vec<_> = (0..1000).map(|i| BACKOFF.delay(1, u64::wrapping_mul(i, 0x9E37_79B9_7F4A_7C15))).collect();
        assert!(delays.iter().all(|delay| (Duration::from_millis(50)..=Duration::from_millis(100)).contains(delay)));
        assert!(delays.iter().any(|delay| *delay < Duration::from_millis(60)));
        assert!(delays.iter().any(|delay| *delay > Duration::from_millis(90)));
    }
}
