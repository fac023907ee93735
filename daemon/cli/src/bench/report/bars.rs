//! Horizontal bars from zero, as SVG: of costs, and of times that are made of parts.

use super::plot::{self, Keys, Look, WIDTH, escape, shortened, text_width};

const TOP: f64 = 28.0;
const BAR_LINE: f64 = 20.0;
const BAR_HEIGHT: f64 = 13.0;
/// Parts narrower than this have no room for their number.
const NUMBER_WIDTH: f64 = 13.0;

/// What is shorter cannot be drawn to scale.
const LENGTH_MIN: f64 = 1e-12;

/// A bar.
#[derive(Debug)]
pub(super) struct Bar {
    pub(super) label: String,
    pub(super) parts: Vec<Part>,
    /// What it amounts to, beside it.
    pub(super) value: String,
}

/// A part of a bar, which begins where the one before it ends.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) length: f64,
    pub(super) look: Look,
    /// What a table calls it.
    pub(super) number: Option<usize>,
    pub(super) told: String,
}

/// Bars with one scale; `None` where none has a length.
pub(super) fn figure(title: &str, bars: &[Bar], groups: &[Keys]) -> Option<String> {
    let is_drawable = |bar: &&Bar| bar.parts.iter().all(|p| p.length.is_finite() && p.length >= 0.0);
    let bars: Vec<&Bar> = bars.iter().filter(is_drawable).collect();
    let length = |bar: &&Bar| bar.parts.iter().map(|part| part.length).sum::<f64>();
    let longest = bars.iter().map(length).fold(0.0, f64::max);
    if !(LENGTH_MIN..f64::INFINITY).contains(&longest) {
        return None;
    }
    let widest = |texts: &mut dyn Iterator<Item = f64>| texts.fold(0.0, f64::max);
    let labels = widest(&mut bars.iter().map(|bar| text_width(&shortened(&bar.label)))) + 10.0;
    let values = widest(&mut bars.iter().map(|bar| text_width(&bar.value))) + 8.0;
    let scale = (WIDTH - labels - values).max(60.0) / longest;
    let mut drawn = plot::title(title);
    for (index, bar) in bars.iter().enumerate() {
        let y = TOP + index as f64 * BAR_LINE;
        let end = labels + length(bar) * scale;
        let text_y = y + BAR_HEIGHT - 2.0;
        let label = escape(&shortened(&bar.label));
        drawn +=
            &format!("<text x=\"{:.1}\" y=\"{text_y}\" text-anchor=\"end\">{label}</text>", labels - 6.0);
        drawn += &draw_parts(bar, labels, y, scale);
        drawn += &format!(
            "<text class=\"faint\" x=\"{:.1}\" y=\"{text_y}\">{}</text>\n",
            end + 6.0,
            escape(&bar.value)
        );
    }
    let height = TOP + bars.len() as f64 * BAR_LINE + 4.0;
    let (keys, keys_height) = plot::legend(groups, WIDTH);
    drawn += &format!("<g transform=\"translate(0 {height})\">{keys}</g>\n");
    Some(plot::svg(title, WIDTH, height + keys_height + 4.0, &drawn))
}

fn draw_parts(bar: &Bar, left: f64, y: f64, scale: f64) -> String {
    let (mut drawn, mut x) = (String::new(), left);
    for (index, part) in bar.parts.iter().enumerate() {
        let width = part.length * scale;
        let class = match (part.number, index % 2) {
            (None, _) => "bar",
            (Some(_), 0) => "part",
            (Some(_), _) => "part odd",
        };
        drawn += &format!(
            "<g class=\"{}\"><rect class=\"{class}\" x=\"{x:.1}\" y=\"{y}\" width=\"{width:.1}\" height=\"{BAR_HEIGHT}\">\
             <title>{}</title></rect>",
            part.look.class(),
            escape(&part.told)
        );
        if let Some(number) =
            part.number.filter(|number| width >= NUMBER_WIDTH.max(text_width(&number.to_string())))
        {
            drawn += &format!(
                "<text class=\"within\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{number}</text>",
                x + width / 2.0,
                y + BAR_HEIGHT - 2.5
            );
        }
        drawn += "</g>";
        x += width;
    }
    drawn
}
