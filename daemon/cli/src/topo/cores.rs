//! Cores and their caches as branches: those that are alike together.

use ringway_topology::{CacheKind, Caches, IndexSet, Topology};

use super::text::{Branch, Kind, bytes, counted};

/// The cores that have these CPUs, by the largest cache that they share.
pub(super) fn branches(host: &Topology, cpus: &IndexSet) -> Vec<Branch> {
    let cores: Vec<&IndexSet> =
        host.packages.iter().flat_map(|package| &package.cores).filter(|core| core.is_within(cpus)).collect();
    let last = host.caches.iter().map(|caches| caches.level).max();
    let of_level = |caches: &&Caches| Some(caches.level) == last && caches.kind != CacheKind::Instruction;
    let mut rows: Vec<Row> = Vec::new();
    let mut left = cores;
    for caches in host.caches.iter().filter(of_level) {
        for one in &caches.each {
            let (inside, outside): (Vec<_>, Vec<_>) = left.into_iter().partition(|core| core.is_within(one));
            left = outside;
            if !inside.is_empty() {
                let label = format!("L{} {}", caches.level, bytes(caches.bytes));
                push(&mut rows, Row { count: 1, label, about: about(host, &inside, caches.level) });
            }
        }
    }
    if !left.is_empty() {
        let row = Row { count: 1, label: "cores".to_owned(), about: about(host, &left, u8::MAX) };
        push(&mut rows, row);
    }
    rows.into_iter().map(Row::branch).collect()
}

/// Caches that are alike, with cores that are alike.
#[derive(PartialEq, Eq)]
struct Row {
    count: u64,
    label: String,
    about: String,
}

fn push(rows: &mut Vec<Row>, row: Row) {
    match rows.last_mut() {
        Some(last) if last.label == row.label && last.about == row.about => last.count += 1,
        _ => rows.push(row),
    }
}

impl Row {
    fn branch(self) -> Branch {
        match self.count {
            1 => Branch::new(Kind::Plain, self.label, self.about),
            count => {
                Branch::new(Kind::Plain, format!("{count} x {}", self.label), format!("each {}", self.about))
            }
        }
    }
}

/// Such as `8 cores of 2 threads, each with L2 2 MiB, L1d 48 KiB, L1i 32 KiB`.
fn about(host: &Topology, cores: &[&IndexSet], below: u8) -> String {
    let mut kinds: Vec<(u64, u64, String)> = Vec::new();
    for core in cores {
        let (threads, own) = (core.len(), own_caches(host, core, below));
        match kinds.iter_mut().find(|kind| kind.1 == threads && kind.2 == own) {
            Some(kind) => kind.0 += 1,
            None => kinds.push((1, threads, own)),
        }
    }
    let text = |(count, threads, own): &(u64, u64, String)| {
        let threads = if *threads == 1 { String::new() } else { format!(" of {threads} threads") };
        let own = match (own.is_empty(), count) {
            (true, _) => String::new(),
            (false, 1) => format!(" with {own}"),
            (false, _) => format!(", each with {own}"),
        };
        format!("{}{threads}{own}", counted(*count, "core"))
    };
    kinds.iter().map(text).collect::<Vec<_>>().join("; ")
}

/// Caches below a level that a core has, the largest first.
fn own_caches(host: &Topology, core: &IndexSet, below: u8) -> String {
    let text = |caches: &Caches| {
        let cache = caches.each.iter().find(|cache| core.is_within(cache))?;
        let letter = match caches.kind {
            CacheKind::Data => "d",
            CacheKind::Instruction => "i",
            CacheKind::Unified => "",
        };
        let size = bytes(caches.bytes);
        let shared = if cache == core { "" } else { " shared" };
        Some(format!("L{}{letter} {size}{shared}", caches.level))
    };
    let mut caches: Vec<&Caches> = host.caches.iter().filter(|caches| caches.level < below).collect();
    caches.sort_by_key(|caches| std::cmp::Reverse(caches.level));
    caches.into_iter().filter_map(text).collect::<Vec<_>>().join(", ")
}
