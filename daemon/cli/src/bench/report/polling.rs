//! What polling costs.

use super::{
    super::result::{Polling, PollingPoint},
    charts::{self, CPU_SHARE_MIN},
    document::{Section, Table},
    fields::or_dash,
    unit,
    view::{POLLINGS, View},
};

fn idle_sentence(points: &[PollingPoint]) -> Option<String> {
    let told = POLLINGS.into_iter().filter_map(|mode| {
        let idle = points.iter().find(|p| p.polling == mode && p.load == 0.0)?;
        Some(format!("{} {}", mode.name(), unit::share(idle.daemon_cpus)))
    });
    let told = unit::list(&told.collect::<Vec<_>>());
    (!told.is_empty())
        .then(|| format!("While nobody calls, the daemon keeps this much of a processor busy: {told}."))
}

/// The load that there was, marked where it is not what it was to be.
fn achieved(point: &PollingPoint) -> String {
    let mark = if point.is_off() { " *" } else { "" };
    or_dash(point.achieved_load, unit::share) + mark
}

/// What a way of waiting adds to the time of calls, compared with spinning.
fn mode_sentence(points: &[PollingPoint], mode: Polling) -> Option<String> {
    let told = points.iter().filter(|p| p.polling == mode).filter_map(|p| {
        let spinning = points.iter().find(|other| other.polling == Polling::Spin && other.load == p.load)?;
        let ratio = unit::ratio(p.time_us?.p50, spinning.time_us?.p50)?;
        let missed = p.achieved_load.filter(|_| p.is_off());
        let missed = missed.map_or_else(String::new, |load| format!(" ({} achieved)", unit::share(load)));
        Some(format!("{} times at {} load{missed}", unit::number(ratio), unit::share(p.load)))
    });
    let told = unit::list(&told.collect::<Vec<_>>());
    (!told.is_empty()).then(|| format!("A call's p50 with {}, compared with spin: {told}.", mode.name()))
}

/// The curve with its numbers.
pub(super) fn section(view: &View<'_>) -> Option<Section> {
    let points = &view.report.polling;
    let mut section = Section::new("What polling costs");
    section.figures(charts::polling(view));
    let modes =
        [Polling::Adaptive, Polling::Block].into_iter().filter_map(|mode| mode_sentence(points, mode));
    section.list(idle_sentence(points).into_iter().chain(modes).collect());
    let head = ["waiting", "load", "achieved", "processor", "p50", "p99", "p99.9"];
    let rows = points.iter().map(|p| {
        let time = |of: fn(f64) -> String, us: Option<f64>| or_dash(us, of);
        vec![
            p.polling.name().to_owned(),
            unit::share(p.load),
            achieved(p),
            unit::share(p.daemon_cpus),
            time(unit::time, p.time_us.map(|t| t.p50)),
            time(unit::time, p.time_us.and_then(|t| t.p99)),
            time(unit::time, p.time_us.and_then(|t| t.p999)),
        ]
    });
    section.table(Table::new("A client that calls its daemon now and then", 1, &head).with(rows));
    let mut section = section.if_any()?;
    section.text(
        "The load is the share of as many calls as a spinning daemon answers one after the other: at each load all daemons are to \
         get as many calls a second, but at 100 %, where each gets one after the other. The processor's share is the \
         daemon's alone, which the caller's own waiting comes on top of.",
    );
    if points.iter().any(PollingPoint::is_off) {
        section.text(
            "A load that was missed by more than 20 % is marked with *: as many calls cannot be made where each takes so long.",
        );
    }
    if points.iter().any(|p| p.time_us.is_some() && p.daemon_cpus < CPU_SHARE_MIN) {
        section.text(format!("What is below {} of a processor is drawn there.", unit::share(CPU_SHARE_MIN)));
    }
    Some(section)
}
