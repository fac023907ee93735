//! How many threads can run at a time: the affinity mask, bounded by the control group's CPU quota.

/// The CPUs this process may use, ascending; at least CPU 0.
pub(crate) fn allowed_cpus() -> Vec<usize> {
    let Ok(set) = rustix::thread::sched_getaffinity(None) else { return vec![0] };
    let cpus: Vec<_> = (0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect();
    if cpus.is_empty() { vec![0] } else { cpus }
}

/// How many threads of this process and its neighbours in the control group can run at a time.
pub(crate) fn parallelism() -> u32 {
    within_quota(allowed())
}

/// What tells the processors that an engine thread may use from others, on any host, and how many they are. Daemons that say
/// the same share them. 0 of them where that is not known.
pub(crate) fn processors_of(engine_cpu: Option<usize>) -> (u64, u32) {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: String = boot.chars().filter(char::is_ascii_hexdigit).take(16).collect();
    let Ok(boot) = u64::from_str_radix(&digits, 16) else { return (0, 0) };
    let cpus = engine_cpu.map_or_else(allowed_cpus, |cpu| vec![cpu]);
    let count = within_quota(u32::try_from(cpus.len()).unwrap_or(u32::MAX));
    let words: Vec<u64> = core::iter::once(boot).chain(cpus.into_iter().map(|cpu| cpu as u64)).collect();
    (ringway_types::digest_counts(&words), count)
}

fn allowed() -> u32 {
    u32::try_from(allowed_cpus().len()).unwrap_or(u32::MAX)
}

fn within_quota(cpus: u32) -> u32 {
    ringway_cell::processor_quota().map_or(cpus, |quota| cpus.min(quota)).max(1)
}

/// How many threads of this process, its neighbours in the control group and its clients can run at a time. Clients run
/// on other CPUs than a daemon that is bound to one.
pub(crate) fn parallelism_with_clients() -> u32 {
    let machine = ringway_cell::online_processors().unwrap_or(0);
    within_quota(machine.max(allowed()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_cpu_is_always_there() {
        assert!(parallelism() >= 1 && parallelism_with_clients() >= parallelism());
        assert!(!allowed_cpus().is_empty());
    }

    #[test]
    fn daemons_on_the_same_processors_say_so() {
        let (all, count) = processors_of(None);
        assert_eq!(processors_of(None), (all, count));
        assert_eq!(count, parallelism());
        let one = processors_of(Some(0));
        assert_eq!(one.1, 1);
        assert_ne!(one.0, processors_of(Some(1)).0);
    }
}
