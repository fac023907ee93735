//! A plan as a picture: nodes across, time down, a box for each step in its blocks' colour, an arrow for each message.

use std::{collections::BTreeMap, fmt::Write as _};

use ringway_plan::{
    Action,
    trace::{Trace, Traced},
};

use super::{shown::Shown, words};

/// A box, and what lies between boxes, in pixels.
const BOX: (u32, u32) = (54, 20);
const BESIDE: u32 = 6;
/// From one moment to the next, and how much more where several messages leave a node at once, so that they fan out.
const ROW: u32 = 46;
const FAN: u32 = 22;
/// Left of the nodes, above them, and around everything.
const AXIS: u32 = 44;
const HEAD: u32 = 78;
const EDGE: u32 = 16;
/// Between two nodes.
const GAP: u32 = 26;
/// Colours; plans with more blocks use them again.
const COLOURS: u32 = 24;
/// Entries of the legend in a line, and the width of one.
const LEGEND: u32 = 74;
/// Of a character of a box or of the legend.
const CHARACTER: u32 = 8;
/// The characters for which boxes and the legend's entries have room anyway: `3 \u{2192} 2`, and `3`.
const USUAL: (u32, u32) = (7, 2);
/// In the legend, where blocks share colours.
const MORE: &str = ", \u{2026}";

/// Where everything is.
struct Places {
    /// Of every node, the left edge and the lanes, which are steps that may happen at the same time.
    columns: Vec<(u32, u32)>,
    /// The lane of each step, by node and step.
    lanes: BTreeMap<(u32, usize), u32>,
    width: u32,
    /// Of a box.
    box_width: u32,
    /// From one moment to the next.
    row: u32,
    /// Where the legend begins.
    bottom: u32,
}

impl Places {
    fn of(plan: &Shown) -> Self {
        let (mut columns, mut lanes, mut x) = (Vec::new(), BTreeMap::new(), EDGE + AXIS);
        let all = (0..plan.nodes()).flat_map(|node| plan.steps(node));
        let longest = all.map(|(_, traced)| mark(&plan.trace, traced).chars().count()).max().unwrap_or(0);
        let box_width = BOX.0 + CHARACTER * u32::try_from(longest).unwrap_or(0).saturating_sub(USUAL.0);
        for node in 0..plan.nodes() {
            let mut taken: BTreeMap<u32, u32> = BTreeMap::new();
            for (step, traced) in plan.steps(node) {
                let next = taken.entry(traced.time).or_insert(0);
                lanes.insert((node, step), *next);
                *next += 1;
            }
            let most = taken.values().max().copied().unwrap_or(1);
            columns.push((x, most));
            x += most * (box_width + BESIDE) + GAP;
        }
        let title = CHARACTER * u32::try_from(plan.title().chars().count()).unwrap_or(0);
        let width = (x - GAP + EDGE).max(560).max(title + 2 * EDGE);
        let most = columns.iter().map(|column: &(u32, u32)| column.1).max().unwrap_or(1);
        let row = ROW + FAN * most.saturating_sub(2).min(4);
        Self { columns, lanes, width, box_width, row, bottom: HEAD + plan.end() * row + 12 }
    }

    /// The left upper corner of a step's box.
    fn corner(&self, (node, step, traced): (u32, usize, &Traced)) -> (u32, u32) {
        let column = self.columns.get(node as usize).map_or(0, |column| column.0);
        let lane = self.lanes.get(&(node, step)).copied().unwrap_or(0);
        (column + lane * (self.box_width + BESIDE) + BESIDE / 2, HEAD + traced.time * self.row)
    }
}

/// The picture, for light and dark pages, and how many pixels wide it is.
pub(super) fn svg(plan: &Shown) -> (String, u32) {
    let trace = &plan.trace;
    let places = Places::of(plan);
    let colours = trace.blocks.min(COLOURS);
    let longest = (0..colours).map(|block| words::block(trace, block).len()).max().unwrap_or(0);
    let longest = longest + if trace.blocks > colours { MORE.chars().count() } else { 0 };
    let entry = LEGEND + CHARACTER * u32::try_from(longest).unwrap_or(0).saturating_sub(USUAL.1);
    let in_line = ((places.width - 2 * EDGE) / entry).max(1);
    let height = places.bottom + 46 + colours.div_ceil(in_line) * 24 + EDGE;
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ = write!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {w} {height}\" width=\"{w}\" height=\"{height}\" \
         role=\"img\"><title>{}</title>\n<style>{}</style>\n<rect class=\"page\" width=\"{w}\" height=\"{height}\"/>\n",
        plan.headline(),
        style(colours),
        w = places.width,
    );
    frame(&mut out, plan, &places);
    let step = |(node, step): (u32, u32)| {
        let step = step as usize;
        Some((node, step, trace.steps(node).get(step)?))
    };
    for [from, to] in &trace.messages {
        if let (Some(from), Some(to)) = (step(*from), step(*to)) {
            arrow(&mut out, from.2, places.box_width / 2, [from, to].map(|step| places.corner(step)));
        }
    }
    for node in 0..plan.nodes() {
        for (step, traced) in plan.steps(node) {
            draw(&mut out, plan, &places, (node, step, traced));
        }
    }
    legend(&mut out, trace, (in_line, entry), places.bottom);
    out.push_str("</svg>\n");
    (out, places.width)
}

fn style(colours: u32) -> String {
    let mut text = String::from(
        "text{font:12px system-ui,sans-serif;fill:#1f2328}.page{fill:#fff}.band{fill:#f4f6f8}.grid{stroke:#d8dee4}\
         .soft{fill:#59636e}.head{font-weight:600}.box text{text-anchor:middle;font-size:11px}\
         .box rect{stroke-width:1.2}.finish rect{stroke-width:2.6}path{fill:none;stroke-width:1.5}.tip{stroke:none}",
    );
    let mut dark = String::from(
        "text{fill:#e6edf3}.page{fill:#0d1117}.band{fill:#161b22}.grid{stroke:#30363d}.soft{fill:#9198a1}",
    );
    for colour in 0..colours {
        // Neighbours in the list are far apart on the circle where there are many.
        let hue = if colours <= 8 { colour * 360 / colours } else { colour * 137 % 360 };
        let rules = |fill: &str, line: &str| {
            format!(
                ".c{colour} rect{{fill:hsl({hue},{fill});stroke:hsl({hue},{line})}}.c{colour} path{{stroke:hsl({hue},{line})}}\
                 .c{colour} .tip{{fill:hsl({hue},{line})}}"
            )
        };
        text.push_str(&rules("75%,86%", "60%,42%"));
        dark.push_str(&rules("42%,26%", "60%,62%"));
    }
    let _ = write!(
        text,
        ".none rect{{fill:none;stroke:#818b98}}.none path{{stroke:#818b98}}.none .tip{{fill:#818b98}}@media(prefers-color-scheme:dark){{{dark}}}"
    );
    text
}

/// What the plan is, the nodes' columns and the lines of time.
fn frame(out: &mut String, plan: &Shown, places: &Places) {
    let _ = write!(
        out,
        "<text class=\"head\" x=\"{EDGE}\" y=\"24\">{}</text>\n<text class=\"soft\" x=\"{EDGE}\" \
         y=\"56\">time</text>\n",
        plan.title(),
    );
    for (node, (x, lanes)) in places.columns.iter().enumerate() {
        let (width, height) = (lanes * (places.box_width + BESIDE), places.bottom - HEAD + 22);
        let _ = writeln!(
            out,
            "<rect class=\"band\" x=\"{x}\" y=\"{}\" width=\"{width}\" height=\"{height}\" rx=\"6\"/><text class=\"head\" \
             text-anchor=\"middle\" x=\"{}\" y=\"56\">node {node}</text>",
            HEAD - 38,
            x + width / 2
        );
    }
    for time in 0..plan.end() {
        let y = HEAD + time * places.row + BOX.1 / 2;
        let _ = writeln!(
            out,
            "<text class=\"soft\" x=\"{EDGE}\" y=\"{}\">{time}</text><line class=\"grid\" x1=\"{}\" x2=\"{}\" y1=\"{y}\" \
             y2=\"{y}\"/>",
            y + 4,
            EDGE + AXIS - 14,
            places.width - EDGE
        );
    }
}

/// The class of a step's colour: that of the first of its blocks.
fn colour(traced: &Traced) -> String {
    traced.blocks.first().map_or_else(|| "none".to_owned(), |block| format!("c{}", block % COLOURS))
}

/// What a step's box says.
fn mark(trace: &Trace, traced: &Traced) -> String {
    let action = &traced.step.action;
    let first = words::first_blocks(trace, &traced.blocks);
    match action {
        Action::Nothing => "wait".to_owned(),
        Action::Send { peer, .. } => format!("{first} \u{2192} {peer}"),
        Action::Receive { peer, .. } => format!("{first} \u{2190} {peer}"),
        Action::Reduce { finish: false, .. } | Action::Fold { .. } => format!("{first} +"),
        Action::Reduce { finish: true, .. } | Action::Scan { .. } => format!("{first} ="),
        Action::Copy { .. } | Action::Swap { .. } => format!("{first} {}", words::what(action)),
    }
}

/// From the lower edge of one box to the upper edge of another.
fn arrow(out: &mut String, traced: &Traced, middle: u32, [from, to]: [(u32, u32); 2]) {
    let (x1, y1) = (from.0 + middle, from.1 + BOX.1);
    let (x2, y2) = (to.0 + middle, to.1);
    let (bend, tip) = ((y2 - y1) / 4, y2 - 6);
    let _ = writeln!(
        out,
        "<g class=\"{}\"><path d=\"M{x1} {y1}C{x1} {} {x2} {} {x2} {tip}\"/><path class=\"tip\" d=\"M{x2} {y2}l-4 -7h8z\"/></g>",
        colour(traced),
        y1 + bend,
        tip - bend
    );
}

fn draw(out: &mut String, plan: &Shown, places: &Places, (node, step, traced): (u32, usize, &Traced)) {
    let (x, y) = places.corner((node, step, traced));
    let (colour, what) = (colour(traced), words::what(&traced.step.action));
    let (blocks, from) = (words::blocks(&plan.trace, &traced.blocks), words::from(&traced.step.action));
    let (into, after) = (words::into(&traced.step.action), words::waits(&plan.waits(node, traced)));
    let mark = mark(&plan.trace, traced);
    let says =
        |word: &str, what: &str| if what.is_empty() { String::new() } else { format!(" {word} {what}") };
    let (width, height) = (places.box_width, BOX.1);
    let _ = writeln!(
        out,
        "<g class=\"box {colour} {what}\"><title>step {step}: {what}{}{}{}{}</title><rect x=\"{x}\" y=\"{y}\" width=\"{width}\" \
         height=\"{height}\" rx=\"4\"/><text x=\"{}\" y=\"{}\">{mark}</text></g>",
        says("block", &blocks),
        says("from", &from),
        says("into", &into),
        says("after", &after),
        x + width / 2,
        y + 14,
    );
}

fn legend(out: &mut String, trace: &Trace, (in_line, entry): (u32, u32), top: u32) {
    let _ = writeln!(
        out,
        "<text class=\"soft\" x=\"{EDGE}\" y=\"{}\">{}block \u{2192} node: send &#160; block \u{2190} node: receive &#160; +: \
         combine &#160; =: combine, final &#160; \u{2026}: and others</text>",
        top + 36,
        if trace.pair(0).is_some() { "block 0:1: from rank 0 for rank 1 &#160; " } else { "" },
    );
    let colours = trace.blocks.min(COLOURS);
    for colour in 0..colours {
        let (x, y) = (EDGE + colour % in_line * entry, top + 46 + colour / in_line * 24);
        let more = if trace.blocks > colours { MORE } else { "" };
        let _ = writeln!(
            out,
            "<g class=\"c{colour}\"><rect x=\"{x}\" y=\"{y}\" width=\"12\" height=\"12\" rx=\"2\"/><text x=\"{}\" y=\"{}\">block \
             {}{more}</text></g>",
            x + 17,
            y + 11,
            words::block(trace, colour),
        );
    }
}
