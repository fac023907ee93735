//! Limits of time that begin with the next look at the clock.

use crate::Time;

/// When something must be over. Devices learn the time when they are polled, and what is asked of them between two polls may
/// come long after the first: its time begins with the second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deadline {
    /// So many nanoseconds after the next look at the clock.
    After(u64),
    /// Then.
    At(Time),
}

impl Deadline {
    /// A look at the clock: whether it is over.
    pub const fn is_over(&mut self, now: Time) -> bool {
        if let Self::After(ns) = *self {
            *self = Self::At(Time(now.0.saturating_add(ns)));
        }
        matches!(*self, Self::At(at) if at.0 <= now.0)
    }

    /// When to look at the clock: at once, where it has not begun.
    #[must_use]
    pub const fn look_at(self) -> Time {
        match self {
            Self::After(_) => Time(0),
            Self::At(at) => at,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_begins_with_the_first_look() {
        let mut deadline = Deadline::After(10);
        assert_eq!(deadline.look_at(), Time(0));
        assert!(!deadline.is_over(Time(1000)));
        assert_eq!(deadline.look_at(), Time(1010));
        assert!(!deadline.is_over(Time(1009)));
        assert!(deadline.is_over(Time(1010)));
    }

    #[test]
    fn one_that_is_always_over_and_one_that_never_is() {
        assert!(Deadline::At(Time(0)).is_over(Time(0)));
        let mut never = Deadline::After(u64::MAX);
        assert!(!never.is_over(Time(5)));
        assert!(!never.is_over(Time(u64::MAX - 1)));
    }
}
