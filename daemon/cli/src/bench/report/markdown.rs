//! `bench.md`.

use super::document::{Align, Block, Document, Table};

/// The whole file.
pub(super) fn render(document: &Document) -> String {
    let mut text = format!("# {}\n\n{}\n\n", escape(&document.title), escape(&document.subtitle));
    text += "![Half round trip and bandwidth over the size of messages](bench.svg)\n";
    for section in &document.sections {
        text += &format!("\n## {}\n", escape(section.title));
        for block in &section.blocks {
            text += &render_block(block);
        }
    }
    text
}

fn render_block(block: &Block) -> String {
    match block {
        Block::Text(text) => format!("\n{}\n", escape(text)),
        Block::List(points) => {
            let lines: Vec<String> = points.iter().map(|point| format!("- {}\n", escape(point))).collect();
            format!("\n{}", lines.concat())
        }
        Block::Tiles(tiles) => {
            let line = |(value, label, note)| {
                format!("- **{}** {}: {}\n", escape(value), escape(label), escape(note))
            };
            let lines: Vec<String> =
                tiles.iter().map(|tile| line((&tile.value, &tile.label, &tile.note))).collect();
            format!("\n{}", lines.concat())
        }
        Block::Figures(_) => String::new(),
        Block::Table(table) => render_table(table),
    }
}

/// A table whose columns are aligned in the file as well.
fn render_table(table: &Table) -> String {
    let head: Vec<String> = table.head.iter().map(|column| escape(&column.name)).collect();
    let rows: Vec<Vec<String>> =
        table.rows.iter().map(|row| row.iter().map(|cell| escape(cell)).collect()).collect();
    // Markdown wants three dashes, of which one may be the colon that aligns.
    let width_of = |index: usize| {
        let cells = rows.iter().chain([&head]).filter_map(|row| row.get(index));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0).max(3)
    };
    let widths: Vec<usize> = (0..head.len()).map(width_of).collect();
    let line = |cells: &[String]| {
        let padded = table.head.iter().zip(&widths).enumerate().map(|(index, (column, width))| {
            let cell = cells.get(index).map_or("", String::as_str);
            match column.align {
                Align::Left => format!(" {cell:<width$} |"),
                Align::Right => format!(" {cell:>width$} |"),
            }
        });
        format!("|{}\n", padded.collect::<String>())
    };
    let rule = table.head.iter().zip(&widths).map(|(column, width)| match column.align {
        Align::Left => format!(" {} |", "-".repeat(*width)),
        Align::Right => format!(" {}: |", "-".repeat(width - 1)),
    });
    let rule = format!("|{}\n", rule.collect::<String>());
    let caption =
        if table.caption.is_empty() { String::new() } else { format!("\n{}:\n", escape(&table.caption)) };
    let body: String = rows.iter().map(|row| line(row)).collect();
    format!("{caption}\n{}{rule}{body}", line(&head))
}

/// Text in which nothing is taken for Markdown or HTML, on one line.
fn escape(text: &str) -> String {
    let characters: Vec<char> = text.chars().collect();
    let mut escaped = String::with_capacity(text.len());
    for (index, character) in characters.iter().enumerate() {
        let is_word = |at: Option<usize>| {
            at.and_then(|at| characters.get(at)).is_some_and(|character| character.is_alphanumeric())
        };
        match character {
            // Underscores within words, as in names, mean nothing.
            '_' if is_word(index.checked_sub(1)) && is_word(Some(index + 1)) => escaped.push('_'),
            '\\' | '`' | '*' | '_' | '[' | ']' | '|' | '#' | '~' => escaped.extend(['\\', *character]),
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '&' => escaped += "&amp;",
            character if character.is_control() => escaped.push(' '),
            character => escaped.push(*character),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_align() {
        let table = Table::new("Two", 1, &["path", "p50"]).with([
            vec!["tcp-epoll".to_owned(), "4.8 us".to_owned()],
            vec!["a|b".to_owned(), "190 ns".to_owned()],
        ]);
        let expected = "\nTwo:\n\n\
            | path      |    p50 |\n\
            | --------- | -----: |\n\
            | tcp-epoll | 4.8 us |\n\
            | a\\|b      | 190 ns |\n";
        assert_eq!(render_table(&table), expected);
    }

    #[test]
    fn nothing_is_taken_for_markup() {
        assert_eq!(escape("all_to_all _x_ <b> a|b\n# c"), "all_to_all \\_x\\_ &lt;b&gt; a\\|b \\# c");
    }
}
