//! How many processors the workers of a cell have together: a rank, or a daemon, may be bound to one while the others run
//! elsewhere.

/// How many processors the machine has, as Linux lists those that are online; `None` when it does not say.
#[must_use]
pub fn online_processors() -> Option<u32> {
    count_listed(&std::fs::read_to_string("/sys/devices/system/cpu/online").ok()?)
}

/// How many numbers a list like `0-3,8` has.
fn count_listed(list: &str) -> Option<u32> {
    list.trim().split(',').try_fold(0_u32, |sum, range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        sum.checked_add(last.checked_sub(first)?)?.checked_add(1)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_counted() {
        assert_eq!(count_listed("0-3,8\n"), Some(5));
        assert_eq!(count_listed("0"), Some(1));
        assert_eq!((count_listed(""), count_listed("3-1"), count_listed("0-x")), (None, None, None));
    }
}
