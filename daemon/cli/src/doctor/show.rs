//! Findings as text for people.

use super::finding::{Finding, Status};

/// The column in which text begins.
const INDENT: usize = 26;
/// The columns of a line; commands are never broken, so that they can be copied.
const WIDTH: usize = 118;

/// A line or a few for each finding, and the last one, the verdict, set apart.
pub(super) fn table(findings: &[Finding], colours: bool) -> String {
    let mut lines = Vec::new();
    let (verdict, checks) = findings.split_last().map_or((None, findings), |(last, rest)| (Some(last), rest));
    for finding in checks {
        let head = format!("{} {:<19}", painted(finding.status, colours), printable(finding.check));
        block(&head, INDENT, finding, &mut lines);
    }
    if let Some(verdict) = verdict {
        lines.push(String::new());
        block("", 0, &spoken(verdict), &mut lines);
    }
    lines.join("\n")
}

/// The verdict as a sentence.
fn spoken(verdict: &Finding) -> Finding {
    let why = verdict.why.as_ref().map_or_else(String::new, |why| format!("; {why}"));
    let found = format!("Between nodes `auto` would pick {}{why}", verdict.found);
    Finding { found, why: None, ..verdict.clone() }
}

fn block(head: &str, indent: usize, finding: &Finding, lines: &mut Vec<String>) {
    let space = " ".repeat(indent);
    let wrapped = |text: &str| wrapped(&printable(text), WIDTH.saturating_sub(indent));
    let mut texts = wrapped(&finding.found).into_iter();
    lines.push(format!("{head}{}", texts.next().unwrap_or_default()));
    let why = finding.why.iter().flat_map(|why| wrapped(why));
    let mend = finding.mend.iter().map(|command| format!("$ {}", printable(command)));
    lines.extend(texts.chain(why).chain(mend).map(|text| format!("{space}{text}")));
}

/// Parts of the text are names that others chose: what would steer a terminal is left out.
fn printable(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).collect()
}

fn painted(status: Status, colours: bool) -> String {
    let name = format!("{:<6}", status.name());
    let colour = match status {
        Status::Ok => 32,
        Status::Note => 36,
        Status::Warn => 33,
        Status::Fail => 31,
        Status::Absent => 2,
    };
    if colours { format!("\x1b[{colour}m{name}\x1b[0m") } else { name }
}

/// Lines of so many characters, broken between words.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_begins_in_one_column_and_commands_stay_whole() {
        let command = format!("echo {}", "long ".repeat(40));
        let long = Finding::new("a", Status::Warn, "word ".repeat(40).trim()).why("costly").mend(&command);
        let shown =
            table(&[Finding::ok("clock", "tsc"), long, Finding::ok("auto", "tcp").why("x: no")], false);
        let lines: Vec<&str> = shown.lines().collect();
        let column =
            |line: &str| line.find("word").or(line.find("costly")).or(line.find("$ ")).or(line.find("tsc"));
        let (verdict, checks) = lines.split_last().expect("lines");
        for line in checks.iter().filter(|line| !line.is_empty()) {
            assert_eq!(column(line), Some(INDENT), "{shown}");
        }
        assert_eq!(*verdict, "Between nodes `auto` would pick tcp; x: no");
        assert!(
            shown.contains(&command) && shown.lines().all(|line| line.len() <= WIDTH || line.contains("$ "))
        );
    }

    #[test]
    fn what_steers_terminals_is_left_out() {
        let shown = table(&[Finding::ok("x", "a\x1b[31mb\nc"), Finding::ok("auto", "tcp")], false);
        assert!(!shown.contains('\x1b') && shown.contains("a[31mbc"));
        assert!(table(&[Finding::ok("x", "a"), Finding::ok("auto", "tcp")], true).contains("\x1b[32mok"));
    }
}
