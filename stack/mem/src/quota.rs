//! Limits on what a client, a user or the daemon may hold, of bytes or of things.

use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use thiserror::Error;

/// A charge that would pass the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("{wanted} more do not fit: {used} of {limit} are in use; release some, or raise the limit")]
pub struct QuotaExceeded {
    /// What was asked for.
    pub wanted: u64,
    /// What is in use.
    pub used: u64,
    /// The limit.
    pub limit: u64,
}

/// A limit and what is used of it. Threads may charge at once.
#[derive(Debug)]
pub struct Quota {
    limit: u64,
    used: AtomicU64,
}

impl Quota {
    /// A limit of which nothing is used.
    #[must_use]
    pub fn new(limit: u64) -> Arc<Self> {
        Arc::new(Self { limit, used: AtomicU64::new(0) })
    }

    /// The limit.
    #[must_use]
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// What is in use.
    #[must_use]
    pub fn used(&self) -> u64 {
        // Nothing else is ordered by this count.
        self.used.load(Ordering::Relaxed)
    }

    /// What can still be charged.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.limit.saturating_sub(self.used())
    }

    /// Takes `amount` until the charge is dropped.
    ///
    /// # Errors
    /// [`QuotaExceeded`] when it does not fit; nothing is charged then.
    pub fn charge(self: &Arc<Self>, amount: u64) -> Result<Charge, QuotaExceeded> {
        let fits = |used: u64| used.checked_add(amount).filter(|&sum| sum <= self.limit);
        match self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits) {
            Ok(_) => Ok(Charge { quota: Arc::clone(self), amount }),
            Err(used) => Err(QuotaExceeded { wanted: amount, used, limit: self.limit }),
        }
    }
}

/// A part of a quota that is in use; dropping it gives it back.
#[derive(Debug)]
#[must_use = "dropping a charge gives it back"]
pub struct Charge {
    quota: Arc<Quota>,
    amount: u64,
}

impl Charge {
    /// What is charged.
    #[must_use]
    pub const fn amount(&self) -> u64 {
        self.amount
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.quota.used.fetch_sub(self.amount, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_sum_of_charges_never_passes_the_limit(
            limit in 0u64..1000,
            steps in prop::collection::vec((any::<bool>(), prop_oneof![0u64..400, Just(u64::MAX)]), 0..100),
        ) {
            let quota = Quota::new(limit);
            let mut held = Vec::new();
            for (take, amount) in steps {
                let used: u64 = held.iter().map(Charge::amount).sum();
                prop_assert_eq!(quota.used(), used);
                if take {
                    match quota.charge(amount) {
                        Ok(charge) => held.push(charge),
                        Err(error) => {
                            prop_assert!(used.saturating_add(amount) > limit);
                            prop_assert_eq!(error, QuotaExceeded { wanted: amount, used, limit });
                        }
                    }
                } else {
                    held.pop();
                }
            }
            drop(held);
            prop_assert_eq!((quota.used(), quota.left()), (0, limit));
        }
    }
}
