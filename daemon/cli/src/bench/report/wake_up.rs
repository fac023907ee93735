//! How much of a time is the wake-up, and how much the kernel's path.

use super::{
    super::result::{Polling, Test},
    charts,
    document::{Section, Table},
    unit,
    view::{Family, View, title},
};

/// One path at one size, spinning and blocking.
#[derive(Debug, Clone)]
pub(super) struct WakeUp<'a> {
    pub(super) path: &'a str,
    pub(super) family: Family,
    pub(super) spin_us: f64,
    pub(super) block_us: f64,
    /// The fastest bypass path, spinning.
    pub(super) bypass_us: Option<f64>,
}

impl WakeUp<'_> {
    /// What blocking adds.
    pub(super) fn wake_up_us(&self) -> f64 {
        self.block_us - self.spin_us
    }

    /// What going through the kernel adds, whoever spins.
    pub(super) fn kernel_us(&self) -> Option<f64> {
        let bypass_us = self.bypass_us.filter(|_| self.family == Family::Kernel)?;
        Some(self.spin_us - bypass_us)
    }
}

/// Every path that was measured both ways at this size.
pub(super) fn wake_ups<'a>(view: &'a View<'_>, test: Test, bytes: u64) -> Vec<WakeUp<'a>> {
    let fastest = view.ranking(test, bytes, Family::Bypass, Some(Polling::Spin));
    let bypass_us = fastest.first().map(|point| point.us());
    let parted = view.routes.iter().filter_map(|route| {
        let p50 = |polling| {
            let mut own = view.points(test).filter(|p| p.path == route.name && p.bytes == bytes);
            own.find(|p| p.polling == polling).map(|p| p.us())
        };
        let (spin_us, block_us) = (p50(Polling::Spin)?, p50(Polling::Block)?);
        Some(WakeUp { path: route.name, family: route.family, spin_us, block_us, bypass_us })
    });
    parted.collect()
}

/// What the difference between the fastest bypass path, spinning, and a blocking path through the kernel is made of.
pub(super) fn sentence(of: &WakeUp<'_>) -> Option<String> {
    let (bypass_us, kernel_us, wake_up_us) = (of.bypass_us?, of.kernel_us()?, of.wake_up_us());
    let apart = of.block_us - bypass_us;
    if apart <= 0.0 {
        let (block, bypass) = (unit::time(of.block_us), unit::time(bypass_us));
        return Some(format!(
            "{} blocks and still takes no longer ({block}) than the fastest bypass path ({bypass}).",
            of.path
        ));
    }
    let of_that = |us: f64| format!("{} ({})", unit::time(us), unit::share(us / apart));
    let parts = if kernel_us < 0.0 {
        format!(
            "The wake-up takes {}; spinning, the kernel's path is {} faster than the bypass",
            unit::time(wake_up_us),
            unit::time(-kernel_us)
        )
    } else if wake_up_us < 0.0 {
        format!(
            "The kernel's path takes {}; blocking saves {}",
            unit::time(kernel_us),
            unit::time(-wake_up_us)
        )
    } else {
        format!("The wake-up is {} of that, the kernel's path {}", of_that(wake_up_us), of_that(kernel_us))
    };
    let apart = unit::time(apart);
    Some(format!(
        "Between the fastest bypass path, spinning, and {}, blocking, lie {apart}. {parts}.",
        of.path
    ))
}

/// Both for every path.
pub(super) fn section(view: &View<'_>) -> Option<Section> {
    let mut section = Section::new("The wake-up and the kernel's path");
    let tests = [Test::Latency, Test::ClientLatency].into_iter();
    let parted: Vec<(String, Vec<WakeUp<'_>>)> = tests
        .filter_map(|test| {
            let bytes = view.small_size(test)?;
            Some((format!("{}, {}", title(test), unit::size(bytes)), wake_ups(view, test, bytes)))
        })
        .collect();
    section.figures(parted.iter().filter_map(|(heading, found)| charts::wake_ups(heading, found)));
    let fastest = |found: &[WakeUp<'_>]| {
        let through_kernel = found.iter().filter(|of| of.family == Family::Kernel);
        through_kernel.min_by(|a, b| a.spin_us.total_cmp(&b.spin_us)).and_then(sentence)
    };
    let told = parted.iter().filter_map(|(heading, found)| Some(format!("{heading}: {}", fastest(found)?)));
    section.list(told.collect());
    for (heading, found) in parted {
        let head = ["path", "spinning", "blocking", "wake-up", "of blocking", "kernel's path"];
        let rows = found.iter().map(|of| {
            let share = unit::ratio(of.wake_up_us(), of.block_us).map_or("-".to_owned(), unit::share);
            let kernel = of.kernel_us().map_or("-".to_owned(), unit::time);
            let [spin, block, wake_up] = [of.spin_us, of.block_us, of.wake_up_us()].map(unit::time);
            vec![of.path.to_owned(), spin, block, wake_up, share, kernel]
        });
        section.table(Table::new(heading, 1, &head).with(rows));
    }
    let mut section = section.if_any()?;
    section.text(
        "The wake-up is what a path takes longer when both ends sleep until the kernel wakes them than when they look \
         again and again. The kernel's path is what a path through the kernel takes longer than the fastest bypass path, \
         both spinning.",
    );
    if view.report.machine.is_virtual {
        section.text(
            "This machine is virtual, where wake-ups take several times as long as on bare metal: there the wake-up's \
             part would be smaller.",
        );
    }
    Some(section)
}
