//! Pictures with logarithmic axes, as SVG. Colours come from a style sheet, so that they follow the reader's preference.

use super::{
    super::result::Polling,
    axis::{Axis, Quantity},
    colours,
    view::{Family, Route},
};

/// Width of a picture: small enough that its text can be read where the page is 400 pixels wide.
pub(super) const WIDTH: f64 = 420.0;
/// Height of a plot without its legend.
pub(super) const HEIGHT: f64 = 300.0;
const LEFT: f64 = 66.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 28.0;
/// At most what a character takes on average, in the fonts that the style sheet names.
const CHARACTER_WIDTH: f64 = 7.2;
const LEGEND_LINE: f64 = 20.0;
/// Longer names end in an ellipsis.
const NAME_WIDTH: f64 = 24.0 * CHARACTER_WIDTH;
/// How much wider the letters of titles are.
const TITLE_SCALE: f64 = 1.2;

/// Outlines of markers around the origin.
const SHAPES: [&str; 8] = [
    "M-3.6 0a3.6 3.6 0 1 0 7.2 0a3.6 3.6 0 1 0-7.2 0z",
    "M-3.2-3.2h6.4v6.4h-6.4z",
    "M0-4.6l4.6 4.6l-4.6 4.6l-4.6-4.6z",
    "M-4.4 3.6h8.8l-4.4-7.6z",
    "M-4.4-3.6h8.8l-4.4 7.6z",
    "M-1.3-4.2h2.6v2.9h2.9v2.6h-2.9v2.9h-2.6v-2.9h-2.9v-2.6h2.9z",
    "M-4.4-1.4l4.4-3.2l4.4 3.2l-1.7 5.2h-5.4z",
    "M-4.2-2.4l1.8-1.8l2.4 2.4l2.4-2.4l1.8 1.8l-2.4 2.4l2.4 2.4l-1.8 1.8l-2.4-2.4l-2.4 2.4l-1.8-1.8l2.4-2.4z",
];

/// How something is drawn: every path has its colour and its marker, every way of waiting its dashes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Look {
    /// Classes of the style sheet.
    class: String,
    shape: usize,
}

impl Look {
    /// Of a path. The two sides of the kernel have no colour and few markers in common.
    pub(super) fn of(route: &Route<'_>, polling: Polling) -> Self {
        let (family, colours, first_shape) = match route.family {
            Family::Bypass => ("bypass", 4, 0),
            Family::Kernel => ("kernel", 4, 4),
            Family::Other => ("other", 1, 2),
        };
        let class = format!("{family} {family}-{} {}", route.index % colours, polling.name());
        Self { class, shape: (first_shape + route.index) % SHAPES.len() }
    }

    /// Of a way of waiting, whatever the path.
    pub(super) fn waiting(class: &str, polling: Polling) -> Self {
        Self { class: format!("{class} {}", polling.name()), shape: 0 }
    }

    /// One of several that have nothing to do with paths: so many that all differ in colour or in marker.
    pub(crate) fn nth(number: usize) -> Self {
        const COLOURS: [&str; 9] = [
            "bypass bypass-0",
            "kernel kernel-0",
            "bypass bypass-1",
            "kernel kernel-2",
            "bypass bypass-3",
            "kernel kernel-1",
            "bypass bypass-2",
            "kernel kernel-3",
            "other other-0",
        ];
        let class = COLOURS.get(number % COLOURS.len()).unwrap_or(&COLOURS[0]);
        Self::waiting(class, Polling::Spin).shaped(number)
    }

    pub(super) fn shaped(self, shape: usize) -> Self {
        Self { shape: shape % SHAPES.len(), ..self }
    }

    pub(super) fn class(&self) -> &str {
        &self.class
    }
}

/// A point on a plot.
#[derive(Debug, Clone)]
pub(crate) struct Mark {
    pub(crate) x: f64,
    pub(crate) y: f64,
    pub(crate) spread: Option<[f64; 2]>,
    /// Another marker than the line's.
    pub(crate) shape: Option<usize>,
    /// What is told where the pointer rests on it.
    pub(crate) told: String,
}

#[derive(Debug, Clone)]
pub(crate) struct Line {
    pub(crate) look: Look,
    pub(crate) marks: Vec<Mark>,
}

/// Lines over two logarithmic axes.
#[derive(Debug)]
pub(crate) struct Plot {
    title: String,
    x: Axis,
    y: Axis,
    lines: Vec<Line>,
}

impl Plot {
    /// What can be shown of these lines; `None` if nothing can.
    pub(crate) fn of(title: &str, lines: Vec<Line>, over: Quantity, of: Quantity) -> Option<Self> {
        let can_show = |mark: &Mark| over.can_show(mark.x) && of.can_show(mark.y);
        let mut lines = lines;
        lines.iter_mut().for_each(|line| line.marks.retain(can_show));
        lines.retain(|line| !line.marks.is_empty());
        let marks = || lines.iter().flat_map(|line| &line.marks);
        let x = Axis::of(marks().map(|mark| mark.x), over)?;
        let y = Axis::of(marks().flat_map(|mark| mark.spread.into_iter().flatten().chain([mark.y])), of)?;
        Some(Self { title: title.to_owned(), x, y, lines })
    }

    /// Its elements, [`WIDTH`] by [`HEIGHT`].
    pub(super) fn draw(&self) -> String {
        let lines: String = self.lines.iter().map(|line| self.draw_line(line)).collect();
        format!("{}{}{lines}", title(&self.title), self.draw_axes())
    }

    fn place(&self, x: f64, y: f64) -> (f64, f64) {
        let across = LEFT + self.x.share(x) * (WIDTH - LEFT - RIGHT);
        (across, HEIGHT - BOTTOM - self.y.share(y) * (HEIGHT - TOP - BOTTOM))
    }

    fn draw_axes(&self) -> String {
        let (bottom, right) = (HEIGHT - BOTTOM, WIDTH - RIGHT);
        let mut grid = format!("M{LEFT} {TOP}H{right}V{bottom}H{LEFT}Z");
        let mut labels = String::new();
        for tick in &self.x.ticks {
            let (x, _) = self.place(tick.at, self.y.low);
            grid += &format!("M{x:.1} {TOP}V{bottom}");
            // What stands at the right end keeps within the picture.
            let x = x.min(WIDTH - text_width(&tick.label) / 2.0);
            labels += &format!(
                "<text class=\"faint\" x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                bottom + 17.0,
                escape(&tick.label)
            );
        }
        for tick in &self.y.ticks {
            let (_, y) = self.place(self.x.low, tick.at);
            grid += &format!("M{LEFT} {y:.1}H{right}");
            labels += &format!(
                "<text class=\"faint\" x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                LEFT - 6.0,
                y + 4.0,
                escape(&tick.label)
            );
        }
        format!("<path class=\"grid\" d=\"{grid}\"/>{labels}\n")
    }

    fn draw_line(&self, line: &Line) -> String {
        let places: Vec<(f64, f64)> = line.marks.iter().map(|mark| self.place(mark.x, mark.y)).collect();
        let points: Vec<String> = places.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let mut drawn = format!(
            "<g class=\"{}\"><polyline class=\"line\" points=\"{}\"/>",
            line.look.class,
            points.join(" ")
        );
        for (mark, (x, y)) in line.marks.iter().zip(places) {
            if let Some([least, most]) = mark.spread {
                let ((_, low), (_, high)) = (self.place(mark.x, least), self.place(mark.x, most));
                drawn += &format!("<path class=\"whisker\" d=\"M{x:.1} {low:.1}V{high:.1}\"/>");
            }
            let shape = mark.shape.unwrap_or(line.look.shape);
            drawn += &marker(shape, x, y, &format!("<title>{}</title>", escape(&mark.told)));
        }
        drawn + "</g>\n"
    }
}

fn marker(shape: usize, x: f64, y: f64, inner: &str) -> String {
    let outline = SHAPES.get(shape % SHAPES.len()).unwrap_or(&SHAPES[0]);
    format!("<path class=\"mark\" transform=\"translate({x:.1} {y:.1})\" d=\"{outline}\">{inner}</path>")
}

/// A picture's title, at its top.
pub(super) fn title(text: &str) -> String {
    let text = fitted(text, (WIDTH - 4.0) / TITLE_SCALE);
    format!("<text class=\"title\" x=\"4\" y=\"16\">{}</text>", escape(&text))
}

/// Some of what a legend explains, beginning on a line of its own.
#[derive(Debug)]
pub(crate) struct Keys {
    pub(crate) heading: &'static str,
    pub(crate) entries: Vec<Key>,
}

#[derive(Debug)]
pub(crate) struct Key {
    pub(crate) look: Look,
    pub(crate) sample: Sample,
    pub(crate) label: String,
}

/// What a legend shows beside a label.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sample {
    Line,
    Marker,
    Bar,
}

/// A legend so wide, in columns that are as wide as its longest label, and how high it is.
pub(super) fn legend(groups: &[Keys], width: f64) -> (String, f64) {
    const INDENT: f64 = 8.0;
    const SAMPLE: f64 = 38.0;
    let groups: Vec<&Keys> = groups.iter().filter(|keys| !keys.entries.is_empty()).collect();
    let keys = groups.iter().flat_map(|group| &group.entries);
    let longest = keys.map(|key| text_width(&shortened(&key.label))).fold(0.0, f64::max);
    let heading = groups.iter().map(|group| text_width(group.heading)).fold(0.0, f64::max) + INDENT;
    let column = SAMPLE + longest + 10.0;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small number of columns")]
    let columns = (((width - heading - INDENT) / column) as usize).max(1);
    let (mut drawn, mut y) = (String::new(), 0.0);
    for group in groups {
        drawn += &format!(
            "<text class=\"faint\" x=\"{INDENT}\" y=\"{}\">{}</text>",
            y + 14.0,
            escape(group.heading)
        );
        for line in group.entries.chunks(columns) {
            for (index, key) in line.iter().enumerate() {
                let x = heading + INDENT + index as f64 * column;
                let label = escape(&shortened(&key.label));
                drawn += &format!("<text x=\"{:.1}\" y=\"{}\">{label}</text>", x + SAMPLE - 4.0, y + 14.0);
                drawn += &sample(key, x, y + 10.0);
            }
            y += LEGEND_LINE;
        }
    }
    (drawn, y)
}

fn sample(key: &Key, x: f64, y: f64) -> String {
    let inner = match key.sample {
        Sample::Line => {
            let line = format!("<path class=\"line\" d=\"M{x:.1} {y}h28\"/>");
            line + &marker(key.look.shape, x + 14.0, y, "")
        }
        Sample::Marker => marker(key.look.shape, x + 14.0, y, ""),
        Sample::Bar => format!("<path class=\"bar\" d=\"M{x:.1} {}h28v10h-28z\"/>", y - 5.0),
    };
    format!("<g class=\"{}\">{inner}</g>\n", key.look.class)
}

/// A picture of its own, coloured by the page it is in.
pub(super) fn svg(label: &str, width: f64, height: f64, inner: &str) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"chart\" viewBox=\"0 0 {width} {height:.0}\" role=\"img\" \
         aria-label=\"{}\">\n{inner}</svg>",
        escape(label)
    )
}

/// A plot with its legend below.
pub(super) fn figure(plot: &Plot, groups: &[Keys]) -> String {
    let (keys, keys_height) = legend(groups, WIDTH);
    let inner = format!("{}<g transform=\"translate(0 {HEIGHT})\">{keys}</g>\n", plot.draw());
    svg(&plot.title, WIDTH, HEIGHT + keys_height + 4.0, &inner)
}

/// A file with pictures side by side over one legend, on a ground of its own: whoever shows it may show it on any.
pub(crate) fn picture(heading: &str, plots: &[Plot], groups: &[Keys]) -> String {
    const EDGE: f64 = 16.0;
    let top = EDGE + 26.0;
    let width = plots.len().max(1) as f64 * WIDTH + 2.0 * EDGE;
    let (keys, keys_height) = legend(groups, width - 2.0 * EDGE);
    let plots_height = if plots.is_empty() { 0.0 } else { HEIGHT };
    let height = top + plots_height + keys_height + EDGE;
    let mut inner = format!(
        "<rect class=\"ground\" width=\"{width}\" height=\"{height}\" rx=\"8\"/>\n\
         <text class=\"title\" x=\"{}\" y=\"{}\">{}</text>\n",
        EDGE + 4.0,
        EDGE + 14.0,
        escape(&fitted(heading, (width - 2.0 * EDGE) / TITLE_SCALE))
    );
    for (index, plot) in plots.iter().enumerate() {
        let x = EDGE + index as f64 * WIDTH;
        inner += &format!("<g transform=\"translate({x} {top})\">{}</g>\n", plot.draw());
    }
    inner += &format!("<g transform=\"translate({EDGE} {})\">{keys}</g>\n", top + plots_height);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"chart\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"{0}\">\n<title>{0}</title>\n\
         <style>\n{1}</style>\n{inner}</svg>\n",
        escape(heading),
        colours::of_picture()
    )
}

/// How much room a text takes, at most.
pub(super) fn text_width(text: &str) -> f64 {
    text.chars().count() as f64 * CHARACTER_WIDTH
}

/// As much of a text as there is room for.
pub(super) fn fitted(text: &str, width: f64) -> String {
    if text_width(text) <= width {
        return text.to_owned();
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a small number of characters"
    )]
    let characters = (width / CHARACTER_WIDTH) as usize;
    text.chars().take(characters.saturating_sub(1)).chain(['…']).collect()
}

/// As much of a name as there is room for, in a legend or beside a bar.
pub(super) fn shortened(name: &str) -> String {
    fitted(name, NAME_WIDTH)
}

/// Text that is neither markup nor has characters that XML forbids.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '"' => escaped += "&quot;",
            '\'' => escaped += "&#39;",
            '\n' | '\t' => escaped.push(' '),
            '\u{fffe}' | '\u{ffff}' => escaped.push('\u{fffd}'),
            character if character.is_control() => escaped.push('\u{fffd}'),
            character => escaped.push(character),
        }
    }
    escaped
}
