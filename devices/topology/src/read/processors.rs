//! CPUs, cores, packages and caches (Documentation/ABI/stable/sysfs-devices-system-cpu).

use std::collections::BTreeMap;

use super::named;
use crate::{CacheKind, Caches, IndexSet, Package, Tree, limits};

const CPUS: &str = "sys/devices/system/cpu";

/// The CPUs that run.
pub(super) fn online(tree: &Tree) -> IndexSet {
    let listed = tree.text(&format!("{CPUS}/online")).and_then(|list| list.parse::<IndexSet>().ok());
    let number = |name: String| name.strip_prefix("cpu")?.parse::<u32>().ok();
    let found = || tree.names(CPUS).into_iter().filter_map(number).collect();
    let most = u32::try_from(limits::CPUS).unwrap_or(u32::MAX);
    let possible: IndexSet = (0..most).collect();
    listed.unwrap_or_else(found).intersection(&possible)
}

/// A list of CPUs without those that are not among these.
fn some(tree: &Tree, path: &str, of: &IndexSet) -> Option<IndexSet> {
    Some(tree.text(path)?.parse::<IndexSet>().ok()?.intersection(of))
}

pub(super) fn packages(tree: &Tree, online: &IndexSet) -> Vec<Package> {
    let model = model(tree);
    let mut packages: BTreeMap<u32, Vec<IndexSet>> = BTreeMap::new();
    let mut left = online.clone();
    for cpu in online.iter() {
        if !left.contains(cpu) {
            continue;
        }
        let folder = format!("{CPUS}/cpu{cpu}/topology");
        let list = |name| some(tree, &format!("{folder}/{name}"), &left).filter(|list| list.contains(cpu));
        // The second name is that of kernels before 5.3.
        let core = list("core_cpus_list").or_else(|| list("thread_siblings_list"));
        let core = core.unwrap_or_else(|| [cpu].into_iter().collect());
        left = left.without(&core);
        // Some of Arm's kernels say -1.
        let package = tree.number(&format!("{folder}/physical_package_id"));
        let id = package.and_then(|id| u32::try_from(id).ok()).unwrap_or(0);
        packages.entry(id).or_default().push(core);
    }
    packages.into_iter().map(|(id, cores)| Package { id, model: model.clone(), cores }).collect()
}

/// All processors of a host are of one model. Arm's kernels do not name it.
fn model(tree: &Tree) -> Option<String> {
    let text = tree.text("proc/cpuinfo")?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    named(line.split_once(':')?.1.to_owned())
}

pub(super) fn caches(tree: &Tree, online: &IndexSet) -> Vec<Caches> {
    let mut kinds: BTreeMap<(u8, CacheKind, u64), (IndexSet, Vec<IndexSet>)> = BTreeMap::new();
    for cpu in online.iter() {
        let folder = format!("{CPUS}/cpu{cpu}/cache");
        for index in tree.names(&folder).iter().filter(|name| name.starts_with("index")) {
            let Some(key) = cache(tree, &format!("{folder}/{index}")) else { continue };
            if kinds.len() >= limits::CACHE_KINDS && !kinds.contains_key(&key) {
                continue;
            }
            let (taken, each) = kinds.entry(key).or_default();
            if taken.contains(cpu) {
                continue;
            }
            let shared = some(tree, &format!("{folder}/{index}/shared_cpu_list"), online);
            let own = || [cpu].into_iter().collect();
            let cpus = shared.filter(|list| list.contains(cpu)).unwrap_or_else(own).without(taken);
            *taken = taken.union(&cpus);
            each.push(cpus);
        }
    }
    let caches = |((level, kind, bytes), (_, each))| Caches { level, kind, bytes, each };
    kinds.into_iter().map(caches).collect()
}

fn cache(tree: &Tree, folder: &str) -> Option<(u8, CacheKind, u64)> {
    let kind = match tree.text(&format!("{folder}/type"))?.as_str() {
        "Data" => CacheKind::Data,
        "Instruction" => CacheKind::Instruction,
        "Unified" => CacheKind::Unified,
        _ => return None,
    };
    let level = u8::try_from(tree.number(&format!("{folder}/level"))?).ok()?;
    Some((level, kind, bytes(&tree.text(&format!("{folder}/size"))?)?))
}

/// Sizes read `32768K`.
fn bytes(text: &str) -> Option<u64> {
    let (number, unit) = match text.as_bytes().last()? {
        b'K' => (text.trim_end_matches('K'), 1 << 10),
        b'M' => (text.trim_end_matches('M'), 1 << 20),
        _ => (text, 1),
    };
    number.parse::<u64>().ok()?.checked_mul(unit)
}
