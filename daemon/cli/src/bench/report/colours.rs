//! What pictures look like, on light and on dark pages.

/// The colours: what they are called, and what they are on light and on dark pages.
const PALETTE: [(&str, &str, &str); 15] = [
    ("ink", "#1b1f24", "#e6edf3"),
    ("faint", "#57606a", "#9aa4af"),
    ("grid", "#d8dee4", "#30363d"),
    ("ground", "#ffffff", "#0d1117"),
    ("raised", "#f6f8fa", "#161b22"),
    ("wake", "#8b949e", "#7d8590"),
    ("bypass-0", "#0060a8", "#58a6ff"),
    ("bypass-1", "#00805f", "#3fca9c"),
    ("bypass-2", "#1899d6", "#9bdcff"),
    ("bypass-3", "#6a3fb5", "#b694ff"),
    ("kernel-0", "#c44e00", "#ff8a4c"),
    ("kernel-1", "#9a6b00", "#f2c14e"),
    ("kernel-2", "#b8357f", "#f48fc4"),
    ("kernel-3", "#7a4b26", "#c9a07a"),
    ("other-0", "#57606a", "#9aa4af"),
];

/// How the parts of pictures are drawn, by those names.
const CHART: &str = include_str!("chart.css");

/// For a page with pictures, where style sheets of the page's own name the colours as well.
pub(super) fn of_page() -> String {
    let named = |is_dark: bool| -> String {
        let named = PALETTE
            .iter()
            .map(|(name, light, dark)| format!("  --{name}: {};\n", if is_dark { dark } else { light }));
        format!(":root {{\n{}}}\n", named.collect::<String>())
    };
    format!("{}{DARK} {{\n{}}}\n{CHART}", named(false), named(true))
}

/// For a picture that stands alone. Most programs that show such, but for browsers, know no names for colours, and draw black.
pub(super) fn of_picture() -> String {
    let drawn = |is_dark: bool| {
        PALETTE.iter().fold(CHART.to_owned(), |rules, (name, light, dark)| {
            rules.replace(&format!("var(--{name})"), if is_dark { dark } else { light })
        })
    };
    format!("{}{DARK} {{\n{}}}\n", drawn(false), drawn(true))
}

const DARK: &str = "@media (prefers-color-scheme: dark)";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_of_its_own_names_no_colours() {
        assert!(!of_picture().contains("var("));
        assert!(of_page().contains("--ink: #1b1f24;") && of_page().contains("--ink: #e6edf3;"));
    }

    #[test]
    fn rules_name_colours_that_are_there() {
        let named = |name: &str| PALETTE.iter().any(|(known, ..)| *known == name);
        let names = CHART.split("var(--").skip(1).filter_map(|rest| rest.split(')').next());
        assert_eq!(names.filter(|name| !named(name)).collect::<Vec<_>>(), Vec::<&str>::new());
    }
}
