//! `bench.html`: one file that needs nothing else. It is well-formed XML too, which tests check.

use super::{
    colours,
    document::{Align, Block, Document, Table, Tile},
    plot::escape,
};

const STYLE: &str = include_str!("page.css");

/// The whole file.
pub(super) fn render(document: &Document) -> String {
    let title = escape(&document.title);
    let mut body = format!("<header><h1>{title}</h1><p>{}</p></header>\n", escape(&document.subtitle));
    for section in &document.sections {
        let blocks: String = section.blocks.iter().map(render_block).collect();
        body += &format!("<section>\n<h2>{}</h2>\n{blocks}</section>\n", escape(section.title));
    }
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
         <meta name=\"color-scheme\" content=\"light dark\"/>\n\
         <title>{title}</title>\n<style>\n{}{STYLE}</style>\n</head>\n<body>\n{body}</body>\n</html>\n",
        colours::of_page()
    )
}

fn render_block(block: &Block) -> String {
    match block {
        Block::Text(text) => format!("<p>{}</p>\n", escape(text)),
        Block::List(points) => {
            let points: String = points.iter().map(|point| format!("<li>{}</li>\n", escape(point))).collect();
            format!("<ul>\n{points}</ul>\n")
        }
        Block::Tiles(tiles) => {
            format!("<div class=\"tiles\">\n{}</div>\n", tiles.iter().map(render_tile).collect::<String>())
        }
        Block::Figures(figures) => {
            let figures: String = figures.iter().map(|svg| format!("<figure>{svg}</figure>\n")).collect();
            format!("<div class=\"figures\">\n{figures}</div>\n")
        }
        Block::Table(table) => render_table(table),
    }
}

fn render_tile(tile: &Tile) -> String {
    format!(
        "<div class=\"tile\"><b>{}</b><span>{}</span><small>{}</small></div>\n",
        escape(&tile.value),
        escape(&tile.label),
        escape(&tile.note)
    )
}

fn render_table(table: &Table) -> String {
    let class = |align: Align| if align == Align::Right { " class=\"number\"" } else { "" };
    let head: String = table
        .head
        .iter()
        .map(|column| format!("<th{}>{}</th>", class(column.align), escape(&column.name)))
        .collect();
    let row = |cells: &Vec<String>| {
        let cells = table.head.iter().zip(cells);
        let cells: String =
            cells.map(|(column, cell)| format!("<td{}>{}</td>", class(column.align), escape(cell))).collect();
        format!("<tr>{cells}</tr>\n")
    };
    let rows: String = table.rows.iter().map(row).collect();
    let caption = escape(&table.caption);
    // Whoever has no mouse can scroll it as well.
    let scroll = format!(
        "<div class=\"scroll\" tabindex=\"0\" role=\"group\" aria-label=\"{}\"><table>\n<thead><tr>{head}</tr></thead>\n\
         <tbody>\n{rows}</tbody>\n</table></div>\n",
        if caption.is_empty() { "numbers" } else { &caption }
    );
    match (table.is_folded, caption.is_empty()) {
        (true, _) => format!("<details><summary>{caption}</summary>\n{scroll}</details>\n"),
        (false, true) => scroll,
        (false, false) => format!("<p class=\"caption\">{caption}</p>\n{scroll}"),
    }
}
