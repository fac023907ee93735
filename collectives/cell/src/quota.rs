//! How much processor time the control group lets this process and its neighbours there have.

use std::{fs, path::Path};

/// The quota of this process's control group, or the tighter one of a group above it, in whole processors; `None` when there
/// is none.
#[must_use]
pub fn processor_quota() -> Option<u32> {
    let memberships = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    quota_cpus(&memberships, |path| fs::read_to_string(path).ok())
}

/// The tightest of the group's quotas and those above it, both hierarchies considered.
fn quota_cpus(memberships: &str, read: impl Fn(&Path) -> Option<String>) -> Option<u32> {
    memberships
        .lines()
        .filter_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            Some((fields.next()?, fields.next()?))
        })
        .filter_map(|(controllers, group)| {
            let (root, v2) = match controllers {
                "" => ("/sys/fs/cgroup", true),
                c if c.split(',').any(|c| c == "cpu") => ("/sys/fs/cgroup/cpu", false),
                _ => return None,
            };
            let folder = Path::new(root).join(group.trim_start_matches('/'));
            let groups = folder.ancestors().take_while(|folder| folder.starts_with(root));
            groups
                .filter_map(|folder| if v2 { v2_quota(folder, &read) } else { v1_quota(folder, &read) })
                .min()
        })
        .min()
}

fn v2_quota(folder: &Path, read: impl Fn(&Path) -> Option<String>) -> Option<u32> {
    let text = read(&folder.join("cpu.max"))?;
    let mut fields = text.split_whitespace();
    whole_cpus(fields.next()?.parse().ok()?, fields.next()?.parse().ok()?)
}

fn v1_quota(folder: &Path, read: impl Fn(&Path) -> Option<String>) -> Option<u32> {
    let value = |name| read(&folder.join(name))?.trim().parse::<i64>().ok();
    let (quota, period) = (value("cpu.cfs_quota_us")?, value("cpu.cfs_period_us")?);
    whole_cpus(u64::try_from(quota).ok()?, u64::try_from(period).ok()?)
}

fn whole_cpus(quota: u64, period: u64) -> Option<u32> {
    Some(u32::try_from(quota.checked_div(period)?).unwrap_or(u32::MAX).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tightest_quota_counts() {
        let files = |path: &Path| {
            let text = match path.to_str()? {
                "/sys/fs/cgroup/a/b/cpu.max" => "max 100000\n",
                "/sys/fs/cgroup/a/cpu.max" => "350000 100000\n",
                "/sys/fs/cgroup/cpu/x/cpu.cfs_quota_us" => "200000\n",
                "/sys/fs/cgroup/cpu/x/cpu.cfs_period_us" => "100000\n",
                "/sys/fs/cgroup/cpu/cpu.cfs_quota_us" => "-1\n",
                "/sys/fs/cgroup/cpu/cpu.cfs_period_us" => "100000\n",
                _ => return None,
            };
            Some(text.to_owned())
        };
        assert_eq!(quota_cpus("0::/a/b\n", files), Some(3));
        assert_eq!(quota_cpus("4:memory:/x\n1:cpu,cpuacct:/x\n0::/a/b\n", files), Some(2));
        assert_eq!(quota_cpus("0::/\n", files), None);
    }
}
