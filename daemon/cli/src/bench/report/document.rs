//! What a report says, before it is HTML or Markdown. All text is plain: whoever renders it escapes it.

/// A page.
#[derive(Debug)]
pub(super) struct Document {
    pub(super) title: String,
    pub(super) subtitle: String,
    pub(super) sections: Vec<Section>,
}

#[derive(Debug)]
pub(super) struct Section {
    pub(super) title: &'static str,
    pub(super) blocks: Vec<Block>,
}

#[derive(Debug)]
pub(super) enum Block {
    Text(String),
    List(Vec<String>),
    Tiles(Vec<Tile>),
    /// Pictures, each an SVG element that the page's style sheet colours. Markdown has none: the tables say the same.
    Figures(Vec<String>),
    Table(Table),
}

/// A number that matters.
#[derive(Debug)]
pub(super) struct Tile {
    pub(super) value: String,
    pub(super) label: String,
    pub(super) note: String,
}

#[derive(Debug)]
pub(super) struct Table {
    pub(super) caption: String,
    pub(super) head: Vec<Column>,
    pub(super) rows: Vec<Vec<String>>,
    /// Shown when it is asked for.
    pub(super) is_folded: bool,
}

#[derive(Debug, Clone)]
pub(super) struct Column {
    pub(super) name: String,
    pub(super) align: Align,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Align {
    Left,
    Right,
}

impl Table {
    /// A table whose first so many columns are words, the others numbers.
    pub(super) fn new(caption: impl Into<String>, words: usize, head: &[&str]) -> Self {
        let column = |(index, name): (usize, &&str)| Column {
            name: (*name).to_owned(),
            align: if index < words { Align::Left } else { Align::Right },
        };
        let head = head.iter().enumerate().map(column).collect();
        Self { caption: caption.into(), head, rows: Vec::new(), is_folded: false }
    }

    pub(super) fn with(mut self, rows: impl IntoIterator<Item = Vec<String>>) -> Self {
        self.rows.extend(rows);
        self
    }

    /// Its last column is words as well.
    pub(super) fn with_words_last(mut self) -> Self {
        self.head.iter_mut().last().into_iter().for_each(|column| column.align = Align::Left);
        self
    }

    pub(super) fn folded(mut self) -> Self {
        self.is_folded = true;
        self
    }
}

impl Section {
    pub(super) const fn new(title: &'static str) -> Self {
        Self { title, blocks: Vec::new() }
    }

    pub(super) fn text(&mut self, text: impl Into<String>) {
        self.blocks.push(Block::Text(text.into()));
    }

    pub(super) fn list(&mut self, points: Vec<String>) {
        if !points.is_empty() {
            self.blocks.push(Block::List(points));
        }
    }

    pub(super) fn figures(&mut self, figures: impl IntoIterator<Item = String>) {
        let figures: Vec<String> = figures.into_iter().collect();
        if !figures.is_empty() {
            self.blocks.push(Block::Figures(figures));
        }
    }

    pub(super) fn table(&mut self, table: Table) {
        if !table.rows.is_empty() {
            self.blocks.push(Block::Table(table));
        }
    }

    /// Itself, if it says anything.
    pub(super) fn if_any(self) -> Option<Self> {
        (!self.blocks.is_empty()).then_some(self)
    }
}
