//! Which losses have been written already.

use std::collections::HashMap;

use crate::executors::enforcer::Losses;

/// Remembers, for each container, the losses that were written.
#[derive(Debug, Default)]
pub(super) struct LossBook {
    written: HashMap<u64, (u64, u64)>,
}

impl LossBook {
    /// What has been lost since the last call. Containers that are not managed any more are forgotten.
    pub(super) fn news(&mut self, now: impl Iterator<Item = Losses>) -> Vec<Losses> {
        let before = std::mem::take(&mut self.written);
        let mut news = Vec::new();
        for Losses { cgroup, limited, lost } in now {
            if limited == 0 && lost == 0 {
                continue;
            }
            let (limited_before, lost_before) = before.get(&cgroup).copied().unwrap_or_default();
            let new = Losses {
                cgroup,
                limited: limited.saturating_sub(limited_before),
                lost: lost.saturating_sub(lost_before),
            };
            if new.limited > 0 || new.lost > 0 {
                news.push(new);
            }
            self.written.insert(cgroup, (limited, lost));
        }
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn losses(cgroup: u64, limited: u64, lost: u64) -> Losses {
        Losses { cgroup, limited, lost }
    }

    // Fault: agent/src/audit/losses.rs
    // - limited: limited.saturating_sub(limited_before),
    // + limited,
    #[test]
    fn each_loss_is_told_once() {
        let mut book = LossBook::default();
        assert_eq!(book.news([losses(7, 3, 0), losses(8, 0, 0)].into_iter()), [losses(7, 3, 0)]);
        assert_eq!(book.news([losses(7, 3, 0)].into_iter()), []);
        assert_eq!(book.news([losses(7, 5, 1)].into_iter()), [losses(7, 2, 1)]);
    }
}
