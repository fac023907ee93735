//! Colours, sizes, and trees of lines in columns.

/// Whether there are colours.
#[derive(Debug, Clone, Copy)]
pub(super) struct Paint(pub(super) bool);

/// What a piece of text is, which is what its colour says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Plain,
    Faint,
    Strong,
    Memory,
    Nic,
    Gpu,
    Near,
    Middle,
    Far,
}

impl Paint {
    pub(super) fn text(self, kind: Kind, text: &str) -> String {
        let code = match kind {
            _ if !self.0 || text.is_empty() => return text.to_owned(),
            Kind::Plain => return text.to_owned(),
            Kind::Faint => "2",
            Kind::Strong => "1",
            Kind::Memory | Kind::Middle => "33",
            Kind::Nic => "36",
            Kind::Gpu | Kind::Near => "32",
            Kind::Far => "31",
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }
}

/// One line of a tree, and what hangs on it.
#[derive(Debug)]
pub(super) struct Branch {
    pub(super) kind: Kind,
    pub(super) label: String,
    pub(super) about: About,
    pub(super) children: Vec<Self>,
}

/// What stands beside a label.
#[derive(Debug)]
pub(super) enum About {
    Text(String),
    /// Where on PCI, by what link, and with which driver, in columns; then what a device of its kind has, in others.
    Device([String; 3], Vec<String>),
}

impl Branch {
    pub(super) fn new(kind: Kind, label: impl Into<String>, about: impl Into<String>) -> Self {
        Self { kind, label: label.into(), about: About::Text(about.into()), children: Vec::new() }
    }

    pub(super) fn with(self, children: Vec<Self>) -> Self {
        Self { children, ..self }
    }
}

/// The lines of what hangs on something that stands above them.
pub(super) fn tree(branches: &[Branch], paint: Paint) -> Vec<String> {
    let mut rows = Vec::new();
    flatten(branches, "", &mut rows);
    let left = rows.iter().map(|(prefix, branch)| width(prefix) + width(&branch.label)).max().unwrap_or(0);
    let columns = Columns::of(&rows);
    let line = |(prefix, branch): &(String, &Branch)| {
        let about = match &branch.about {
            About::Text(text) => text.clone(),
            About::Device(common, own) => columns.line(common, own, branch.kind),
        };
        let space = match about.is_empty() {
            true => String::new(),
            false => " ".repeat(left + 2 - width(prefix) - width(&branch.label)),
        };
        let (prefix, label) = (paint.text(Kind::Faint, prefix), paint.text(branch.kind, &branch.label));
        format!("{prefix}{label}{space}{about}")
    };
    rows.iter().map(line).collect()
}

fn flatten<'a>(branches: &'a [Branch], indent: &str, rows: &mut Vec<(String, &'a Branch)>) {
    for (index, branch) in branches.iter().enumerate() {
        let (own, below) =
            if index + 1 == branches.len() { ("└─ ", "   ") } else { ("├─ ", "│  ") };
        rows.push((format!("{indent}{own}"), branch));
        flatten(&branch.children, &format!("{indent}{below}"), rows);
    }
}

/// The widths of devices' columns: of those that all have, and of those of NICs.
struct Columns {
    common: [usize; 3],
    nic: Vec<usize>,
}

impl Columns {
    fn of(rows: &[(String, &Branch)]) -> Self {
        let mut columns = Self { common: [0; 3], nic: Vec::new() };
        for (_, branch) in rows {
            let About::Device(common, own) = &branch.about else { continue };
            for (most, text) in columns.common.iter_mut().zip(common) {
                *most = width(text).max(*most);
            }
            if branch.kind == Kind::Nic {
                columns.nic.resize(own.len().max(columns.nic.len()), 0);
                for (most, text) in columns.nic.iter_mut().zip(own) {
                    *most = width(text).max(*most);
                }
            }
        }
        columns
    }

    fn line(&self, common: &[String; 3], own: &[String], kind: Kind) -> String {
        let own_widths = if kind == Kind::Nic { self.nic.as_slice() } else { &[] };
        let widths = self.common.iter().copied();
        let own_widths = own_widths.iter().copied().chain(std::iter::repeat(usize::MAX));
        let cells = common.iter().zip(widths).chain(own.iter().zip(own_widths));
        // A column that nobody fills is none.
        let cells = cells.filter(|(_, most)| *most > 0).map(|(text, most)| match most {
            usize::MAX => text.clone(),
            most => padded(text, most),
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    }
}

pub(super) fn width(text: &str) -> usize {
    text.chars().count()
}

pub(super) fn padded(text: &str, to: usize) -> String {
    format!("{text}{}", " ".repeat(to.saturating_sub(width(text))))
}

/// `105 MiB`, `23.5 GiB`.
pub(super) fn bytes(count: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let fits = |power: &usize| count >= 1 << (10 * power);
    let power = (0..units.len()).rev().find(fits).unwrap_or(0);
    let value = count as f64 / (1_u64 << (10 * power)) as f64;
    let unit = units.get(power).copied().unwrap_or_default();
    short(value, unit)
}

/// `400 Gb/s`.
pub(super) fn bits(mbps: u64) -> String {
    match mbps {
        ..1000 => format!("{mbps} Mb/s"),
        1000..1_000_000 => short(mbps as f64 / 1e3, "Gb/s"),
        _ => short(mbps as f64 / 1e6, "Tb/s"),
    }
}

/// One decimal, if it says something.
fn short(value: f64, unit: &str) -> String {
    let text = format!("{value:.1}");
    format!("{} {unit}", text.strip_suffix(".0").unwrap_or(&text))
}

/// `1 core`, `2 cores`.
pub(super) fn counted(count: u64, what: &str) -> String {
    let s = if count == 1 { "" } else { "s" };
    format!("{count} {what}{s}")
}
