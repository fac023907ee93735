//! Where the bypass does not pay: every point at which a path through the kernel is faster than a bypass path, or takes less of the
//! processors, beyond what rounds differ by themselves; and those at which the two are the same within that.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    super::{
        noise,
        result::{Point, Polling, Test},
    },
    document::{Section, Table},
    unit,
    view::{Family, POLLINGS, TESTS, View, cpu_s, speed, title},
};

/// Longer tables are folded.
const ROWS_SHOWN: usize = 12;

/// In what a path through the kernel is better, or the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Aspect {
    Speed,
    Processors,
}

const ASPECTS: [Aspect; 2] = [Aspect::Speed, Aspect::Processors];

impl Aspect {
    /// What the kernel's path then is.
    const fn words(self, is_better: bool) -> &'static str {
        match (self, is_better) {
            (Self::Speed, true) => "faster",
            (Self::Speed, false) => "the same in time",
            (Self::Processors, true) => "cheaper in CPU time",
            (Self::Processors, false) => "the same in CPU time",
        }
    }

    /// What each round found, by which two paths are told apart.
    fn values(self, point: &Point) -> Vec<f64> {
        match self {
            Self::Speed => point.times_us(),
            Self::Processors => point.rounds.iter().filter_map(|round| round.cpu_s_per_million).collect(),
        }
    }
}

/// Two paths in one test, waiting in the same way.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Pair<'a> {
    test: Test,
    polling: Polling,
    kernel: &'a str,
    bypass: &'a str,
    aspect: Aspect,
    /// The kernel's is better, rather than the same within the noise.
    is_better: bool,
}

/// What was compared, and where the bypass does not pay.
#[derive(Debug, Default)]
pub(super) struct Verdict<'a> {
    /// How often each bypass path was compared.
    compared: BTreeMap<(&'a str, Aspect), usize>,
    /// The sizes at which the kernel's path is better or the same, with how many times better it is.
    found: BTreeMap<Pair<'a>, BTreeMap<u64, f64>>,
}

impl<'a> Verdict<'a> {
    /// Compares every path through the kernel with every bypass path where all else is the same.
    pub(super) fn of(view: &View<'a>) -> Self {
        let mut verdict = Self::default();
        for test in TESTS {
            for bytes in view.sizes(test) {
                for polling in POLLINGS {
                    let side = |family| view.ranking(test, bytes, family, Some(polling));
                    let bypasses = side(Family::Bypass);
                    for kernel in side(Family::Kernel) {
                        bypasses.iter().for_each(|bypass| verdict.compare(kernel, bypass));
                    }
                }
            }
        }
        verdict
    }

    fn compare(&mut self, kernel: &'a Point, bypass: &'a Point) {
        let faster = unit::ratio(speed(kernel), speed(bypass));
        let cheaper =
            cpu_s(kernel).zip(cpu_s(bypass)).and_then(|(kernel, bypass)| unit::ratio(bypass, kernel));
        for (aspect, ratio) in [(Aspect::Speed, faster), (Aspect::Processors, cheaper)] {
            let Some(ratio) = ratio else { continue };
            *self.compared.entry((&bypass.path, aspect)).or_default() += 1;
            let differs = noise::differ(&aspect.values(kernel), &aspect.values(bypass));
            if !differs || ratio > 1.0 {
                let (test, polling, is_better) = (kernel.test, kernel.polling, differs);
                let pair =
                    Pair { test, polling, kernel: &kernel.path, bypass: &bypass.path, aspect, is_better };
                self.found.entry(pair).or_default().insert(kernel.bytes, ratio);
            }
        }
    }

    /// In how many comparisons the kernel's path is better, and in how many the same.
    fn counts(&self, aspect: Aspect, is_meant: impl Fn(&str) -> bool) -> [usize; 2] {
        [true, false].map(|is_better| {
            let own = self.found.iter().filter(|(pair, _)| {
                (pair.aspect, pair.is_better) == (aspect, is_better) && is_meant(pair.bypass)
            });
            own.map(|(_, at)| at.len()).sum()
        })
    }

    /// All of it in one sentence; `None` where nothing could be compared.
    pub(super) fn sentence(&self) -> Option<String> {
        let told = ASPECTS.into_iter().filter_map(|aspect| {
            let compared: usize =
                self.compared.iter().filter(|(key, _)| key.1 == aspect).map(|(_, n)| n).sum();
            let counts = self.counts(aspect, |_| true);
            (compared > 0).then(|| counted(aspect, counts, compared))
        });
        let told = unit::list(&told.collect::<Vec<_>>());
        (!told.is_empty()).then(|| {
            format!(
                "Of all comparisons of a kernel path with a bypass path (same test, size and way of waiting) the kernel \
                 path is {told}."
            )
        })
    }

    /// What it is for one bypass path, with where most speaks against it.
    fn path_sentence(&self, path: &str) -> Option<String> {
        let told = ASPECTS.into_iter().filter_map(|aspect| {
            let compared = self.compared.get(&(path, aspect))?;
            let own = self
                .found
                .iter()
                .filter(|(pair, _)| pair.bypass == path && pair.aspect == aspect && pair.is_better);
            let places = own.flat_map(|(pair, at)| at.iter().map(move |(bytes, ratio)| (pair, bytes, ratio)));
            let most =
                places.max_by(|a, b| a.2.total_cmp(b.2)).map_or_else(String::new, |(pair, bytes, ratio)| {
                    format!(
                        ", most so {} ({}, {}, {}): {} times",
                        pair.kernel,
                        title(pair.test),
                        pair.polling.name(),
                        unit::size(*bytes),
                        unit::number(*ratio)
                    )
                });
            let counts = self.counts(aspect, |bypass| bypass == path);
            Some(counted(aspect, counts, *compared) + &most)
        });
        let told = told.collect::<Vec<_>>().join("; ");
        (!told.is_empty()).then(|| format!("Against {path} a kernel path is {told}."))
    }
}

/// In words.
fn counted(aspect: Aspect, [better, same]: [usize; 2], compared: usize) -> String {
    let words = aspect.words(true);
    format!("{words} in {better} of {compared} (the same within the noise in {same})")
}

/// Runs of sizes that were measured one after the other: `8 B to 1 KiB, 1 MiB`.
fn size_runs(found: &BTreeMap<u64, f64>, measured: &BTreeSet<u64>) -> String {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    let mut goes_on = false;
    for bytes in measured {
        let is_found = found.contains_key(bytes);
        match runs.last_mut().filter(|_| goes_on && is_found) {
            Some((_, last)) => *last = *bytes,
            None if is_found => runs.push((*bytes, *bytes)),
            None => {}
        }
        goes_on = is_found;
    }
    let words = runs.into_iter().map(|(first, last)| {
        if first == last {
            unit::size(first)
        } else {
            format!("{} to {}", unit::size(first), unit::size(last))
        }
    });
    words.collect::<Vec<_>>().join(", ")
}

fn ratio_range(ratios: &BTreeMap<u64, f64>) -> String {
    let least = ratios.values().copied().fold(f64::INFINITY, f64::min);
    let most = ratios.values().copied().fold(0.0, f64::max);
    let (least, most) = (unit::number(least), unit::number(most));
    if least == most { format!("{least} times") } else { format!("{least} to {most} times") }
}

/// Where the fastest bypass path is no faster than the fastest path through the kernel, in words.
fn best_against_best(view: &View<'_>) -> Vec<String> {
    let mut told = Vec::new();
    for test in TESTS {
        for polling in POLLINGS {
            let (faster, same) = no_slower(view, test, polling);
            let names = |paths: &BTreeSet<String>| unit::list(&paths.iter().cloned().collect::<Vec<_>>());
            let sizes = |best: &Best| size_runs(&best.ratios, &view.sizes(test));
            let about = format!("{}, {}", title(test), polling.name());
            if !faster.ratios.is_empty() {
                told.push(format!(
                    "{about}: at {} the fastest kernel path ({}) is {} as fast as the fastest bypass path ({}).",
                    sizes(&faster),
                    names(&faster.kernels),
                    ratio_range(&faster.ratios),
                    names(&faster.bypasses)
                ));
            }
            if !same.ratios.is_empty() {
                told.push(format!(
                    "{about}: at {} the fastest kernel path ({}) and the fastest bypass path ({}) are the same within the noise.",
                    sizes(&same),
                    names(&same.kernels),
                    names(&same.bypasses)
                ));
            }
        }
    }
    told
}

/// The fastest paths of both sides where the kernel's is no slower, and how many times as fast it is, by size.
#[derive(Debug, Default)]
struct Best {
    ratios: BTreeMap<u64, f64>,
    kernels: BTreeSet<String>,
    bypasses: BTreeSet<String>,
}

/// Where it is faster, and where the two are the same.
fn no_slower(view: &View<'_>, test: Test, polling: Polling) -> (Best, Best) {
    let (mut faster, mut same) = (Best::default(), Best::default());
    for bytes in view.sizes(test) {
        let fastest = |family| view.ranking(test, bytes, family, Some(polling)).into_iter().next();
        let Some((kernel, bypass)) = fastest(Family::Kernel).zip(fastest(Family::Bypass)) else { continue };
        let Some(ratio) = unit::ratio(speed(kernel), speed(bypass)) else { continue };
        let differs = noise::differ(&kernel.times_us(), &bypass.times_us());
        let best = match (differs, ratio > 1.0) {
            (true, true) => &mut faster,
            (true, false) => continue,
            (false, _) => &mut same,
        };
        best.ratios.insert(bytes, ratio);
        best.kernels.insert(kernel.path.clone());
        best.bypasses.insert(bypass.path.clone());
    }
    (faster, same)
}

/// All of it.
pub(super) fn section(view: &View<'_>) -> Option<Section> {
    let verdict = Verdict::of(view);
    let mut section = Section::new("Where the bypass does not pay");
    section.text(verdict.sentence()?);
    let best = best_against_best(view);
    if best.is_empty() {
        section.text("At no size is the fastest kernel path as fast as the fastest bypass path.");
    }
    section.list(best);
    section.list(view.routes.iter().filter_map(|route| verdict.path_sentence(route.name)).collect());
    let head = ["test", "waiting", "kernel path", "bypass path", "the kernel path is", "at", "by"];
    let rows = verdict.found.iter().map(|(pair, ratios)| {
        vec![
            title(pair.test).to_owned(),
            pair.polling.name().to_owned(),
            pair.kernel.to_owned(),
            pair.bypass.to_owned(),
            pair.aspect.words(pair.is_better).to_owned(),
            size_runs(ratios, &view.sizes(pair.test)),
            ratio_range(ratios),
        ]
    });
    let table =
        Table::new("Every pair of paths of which the kernel's is no worse somewhere", head.len(), &head)
            .with(rows);
    section.table(if table.rows.len() > ROWS_SHOWN { table.folded() } else { table });
    Some(section)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_run_as_they_were_measured() {
        let measured = BTreeSet::from([8, 64, 1024, 4096, 1 << 20]);
        let at = |sizes: &[u64]| size_runs(&sizes.iter().map(|size| (*size, 1.0)).collect(), &measured);
        assert_eq!(at(&[8, 64, 4096, 1 << 20]), "8 B to 64 B, 4 KiB to 1 MiB");
        assert_eq!(at(&[64]), "64 B");
        assert_eq!(at(&[]), "");
    }
}
