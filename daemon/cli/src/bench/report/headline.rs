//! What to know if one knows nothing else.

use super::{
    super::result::{Point, Polling, Spread, Test},
    document::{Block, Section, Tile},
    unit,
    verdict::Verdict,
    view::{Family, View, is_rate, title},
    wake_up,
};

/// At the small size: the two fastest bypass paths, the fastest path through the kernel, and the same blocking.
fn latencies<'a>(view: &View<'a>) -> Vec<&'a Point> {
    let Some(bytes) = view.small_size(Test::Latency) else { return Vec::new() };
    let ranking = |family, polling| view.ranking(Test::Latency, bytes, family, Some(polling));
    let spinning = ranking(Family::Kernel, Polling::Spin).into_iter().next();
    let blocking = ranking(Family::Kernel, Polling::Block);
    let same_path =
        blocking.iter().find(|point| spinning.is_some_and(|spinning| spinning.path == point.path));
    let bypasses = ranking(Family::Bypass, Polling::Spin).into_iter().take(2);
    bypasses.chain(spinning).chain(same_path.or(blocking.first()).copied()).collect()
}

/// At the large size: the fastest of each side of the kernel.
fn bandwidths<'a>(view: &View<'a>) -> Vec<&'a Point> {
    let Some(bytes) = view.large_size(Test::Bandwidth) else { return Vec::new() };
    let fastest = |family| view.ranking(Test::Bandwidth, bytes, family, None).into_iter().next();
    [Family::Bypass, Family::Kernel].into_iter().filter_map(fastest).collect()
}

fn value(point: &Point) -> String {
    if is_rate(point.test) { unit::rate(point.goodput_gb_s) } else { unit::time(point.us()) }
}

fn tile(view: &View<'_>, point: &Point) -> Tile {
    let side = match view.family(&point.path) {
        Family::Bypass => "past the kernel",
        Family::Kernel => "through the kernel",
        Family::Other => "",
    };
    let what = if is_rate(point.test) { "goodput" } else { "half round trip" };
    let waiting = match point.polling {
        Polling::Spin => "spinning",
        Polling::Adaptive => "adaptive",
        Polling::Block => "blocking",
    };
    let note = [&format!("{what}, {}", unit::size(point.bytes)), side];
    let note: Vec<&str> = note.into_iter().filter(|part| !part.is_empty()).collect();
    Tile { value: value(point), label: format!("{}, {waiting}", point.path), note: note.join(", ") }
}

/// How the first of these compares with the others.
fn ratios(points: &[&Point]) -> Option<String> {
    let (first, others) = points.split_first()?;
    let name = |point: &Point| format!("{} ({})", point.path, point.polling.name());
    let told = others.iter().filter_map(|other| {
        let told = if is_rate(first.test) {
            let ratio = unit::ratio(first.goodput_gb_s, other.goodput_gb_s)?;
            format!("{} times as much as {}", unit::number(ratio), name(other))
        } else {
            let ratio = unit::ratio(other.us(), first.us())?;
            format!("{} {} times as long", name(other), unit::number(ratio))
        };
        Some(told)
    });
    let told = unit::list(&told.collect::<Vec<_>>());
    let verb = if is_rate(first.test) { "moves" } else { "takes" };
    let heading = format!("{}, {}", title(first.test), unit::size(first.bytes));
    (!told.is_empty()).then(|| format!("{heading}: {} {verb} {}, {told}.", name(first), value(first)))
}

/// The section, `None` where neither latencies nor bandwidths were measured.
pub(super) fn section(view: &View<'_>) -> Option<Section> {
    let (latencies, bandwidths) = (latencies(view), bandwidths(view));
    let tiles: Vec<Tile> = latencies.iter().chain(&bandwidths).map(|point| tile(view, point)).collect();
    if tiles.is_empty() {
        return None;
    }
    let mut section = Section::new("In short");
    section.blocks.push(Block::Tiles(tiles));
    let mut points: Vec<String> = [ratios(&latencies), ratios(&bandwidths)].into_iter().flatten().collect();
    points.extend(hand_over(view, &latencies));
    points.extend(wake_up(view, &latencies));
    points.extend(Verdict::of(view).sentence());
    section.list(points);
    Some(section)
}

fn hand_over(view: &View<'_>, latencies: &[&Point]) -> Option<String> {
    let hand_over = view.report.hand_over_ns?;
    let told = unit::hand_over(&hand_over);
    let floor = format!(
        "A cache line takes {told} from one processor to another: nothing between two processes takes less."
    );
    let ratio = latencies.first().and_then(|p| {
        if let Some(Spread { least, median, most }) = view.report.lines_of_shm
            && p.path == "shm"
        {
            let [least, median, most] = [least, median, most].map(unit::number);
            let what = format!("{} at {}", p.path, unit::size(p.bytes));
            return Some(format!(
                " {what} takes {median} times as long as it took just before and after ({least} to {most})."
            ));
        }
        let ratio = unit::ratio(p.us() * 1e3, hand_over.median)?;
        Some(format!(" {} at {} takes {} times as long.", p.path, unit::size(p.bytes), unit::number(ratio)))
    });
    Some(floor + &ratio.unwrap_or_default())
}

fn wake_up(view: &View<'_>, latencies: &[&Point]) -> Option<String> {
    let blocking = latencies.iter().find(|p| p.polling == Polling::Block)?;
    let found = wake_up::wake_ups(view, Test::Latency, blocking.bytes);
    wake_up::sentence(found.iter().find(|of| of.path == blocking.path)?)
}
