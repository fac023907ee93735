//! What the command line says of stragglers and failed links: names and numbers, separated by commas.

use ringway_plan::simulate::Broken;

/// Nodes that are slower, and how many times.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Straggler {
    Node(u32, f64),
    /// This share of all.
    Share(f64, f64),
}

/// A link that has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FailedLink(pub(super) Broken);

/// The values of some names, each given once at most.
struct Fields<'a>(Vec<(&'a str, &'a str)>);

impl<'a> Fields<'a> {
    fn of(text: &'a str, form: &str) -> Result<Self, String> {
        let field = |field: &'a str| field.split_once('=');
        let fields: Option<Vec<_>> = text.split(',').map(field).collect();
        fields.map(Self).ok_or_else(|| format!("`{text}` is not of the form {form}"))
    }

    fn take<T: std::str::FromStr>(&mut self, name: &str) -> Result<Option<T>, String> {
        let Some(at) = self.0.iter().position(|(other, _)| *other == name) else { return Ok(None) };
        let (_, value) = self.0.remove(at);
        value.parse().map(Some).map_err(|_| format!("{name}: `{value}` is not a number that it can be"))
    }

    fn end(self, form: &str) -> Result<(), String> {
        self.0.first().map_or(Ok(()), |(name, _)| Err(format!("`{name}` has no place in {form}")))
    }
}

/// Reads `node=3,slowdown=4` or `share=0.05,slowdown=2`.
pub(super) fn parse_straggler(text: &str) -> Result<Straggler, String> {
    const FORM: &str = "node=N,slowdown=X or share=0.05,slowdown=X";
    let mut fields = Fields::of(text, FORM)?;
    let (node, share) = (fields.take("node")?, fields.take::<f64>("share")?);
    let factor = fields.take("slowdown")?.unwrap_or(2.0);
    fields.end(FORM)?;
    if !(1.0..=1e6).contains(&factor) {
        return Err(format!("slowdown: {factor} is not a factor from 1 to 1000000"));
    }
    match (node, share) {
        (Some(node), None) => Ok(Straggler::Node(node, factor)),
        (None, Some(share)) if (0.0..=1.0).contains(&share) => Ok(Straggler::Share(share, factor)),
        (None, Some(share)) => Err(format!("share: {share} is not from 0 to 1")),
        _ => Err(format!("`{text}` is not of the form {FORM}")),
    }
}

/// Reads `leaf=0,spine=1`, `node=3` (both with `rail=R`), or `node=3,to=5`.
pub(super) fn parse_link(text: &str) -> Result<FailedLink, String> {
    const FORM: &str = "leaf=N,spine=N or node=N, either with rail=N, or node=N,to=N";
    let mut fields = Fields::of(text, FORM)?;
    let names = ["leaf", "spine", "node", "to", "rail"];
    let mut values = [None; 5];
    for (name, value) in names.into_iter().zip(&mut values) {
        *value = fields.take::<u32>(name)?;
    }
    fields.end(FORM)?;
    let link = match values {
        [Some(leaf), Some(spine), None, None, rail] => Broken::Trunk { leaf, spine, rail: rail.unwrap_or(0) },
        [None, None, Some(node), None, rail] => Broken::Port { node, rail: rail.unwrap_or(0) },
        [None, None, Some(node), Some(to), None] => Broken::Pair(node, to),
        _ => return Err(format!("`{text}` is not of the form {FORM}")),
    };
    Ok(FailedLink(link))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        assert_eq!(parse_straggler("node=3,slowdown=4"), Ok(Straggler::Node(3, 4.0)));
        assert_eq!(parse_straggler("slowdown=1.5,share=0.05"), Ok(Straggler::Share(0.05, 1.5)));
        let link = |text| parse_link(text).map(|link| link.0);
        assert_eq!(link("leaf=1,spine=2"), Ok(Broken::Trunk { leaf: 1, spine: 2, rail: 0 }));
        assert_eq!(link("node=7,rail=1"), Ok(Broken::Port { node: 7, rail: 1 }));
        assert_eq!(link("node=7,to=8"), Ok(Broken::Pair(7, 8)));
    }

    #[test]
    fn what_is_wrong_is_told() {
        for (text, part) in [
            ("", "not of the form"),
            ("node=x,slowdown=2", "node: `x`"),
            ("node=1,share=0.5", "not of the form"),
            ("share=2", "0 to 1"),
            ("node=1,slowdown=0.5", "1 to 1000000"),
            ("node=1,speed=2", "`speed`"),
        ] {
            let told = parse_straggler(text).expect_err(text);
            assert!(told.contains(part), "{text}: {told}");
        }
        for text in ["spine=1", "node=1,leaf=2", "node=1,to=2,rail=0", "node=-1", "rail=0"] {
            assert!(parse_link(text).is_err(), "{text}");
        }
    }
}
