//! What is known of links before they are measured, and which rules are wished for.

use super::Constants;
use crate::{PlanSettings, Rule};

/// The constants of the links between some hosts.
#[derive(Debug, Clone, PartialEq)]
pub struct SavedLinks {
    /// What the device between them speaks.
    pub device: String,
    /// The hosts, sorted, one entry for each node; `None` for any.
    pub hosts: Option<Vec<String>>,
    /// What their links and processors take.
    pub constants: Constants,
}

/// A rule for communicators of so many nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SavedRule {
    /// The nodes.
    pub nodes: u32,
    /// The rule.
    pub rule: Rule,
}

/// Constants and rules from files and from earlier measurements.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Saved {
    /// Constants; of those for the same device and hosts the last counts.
    pub links: Vec<SavedLinks>,
    /// Rules. Those of an operation replace what would be made for it, up to the most bytes that they are for.
    pub rules: Vec<SavedRule>,
}

impl Saved {
    /// The most links that are remembered; the oldest are forgotten.
    pub const LINKS_MAX: usize = 1024;

    /// What is known of the links between these hosts, sorted; what names them goes before what is for any.
    #[must_use]
    pub fn constants(&self, device: &str, hosts: &[String]) -> Option<&Constants> {
        let of_device = || self.links.iter().rev().filter(|links| links.device == device);
        of_device()
            .find(|links| links.hosts.as_deref() == Some(hosts))
            .or_else(|| of_device().find(|links| links.hosts.is_none()))
            .map(|links| &links.constants)
    }

    /// The same between so many hosts of which the names are not known: what is for any, or else what names as many.
    #[must_use]
    pub fn likely_constants(&self, device: &str, nodes: u32) -> Option<&Constants> {
        let as_many = |links: &&SavedLinks| links.hosts.as_ref().is_some_and(|it| it.len() == nodes as usize);
        let of_device = || self.links.iter().rev().filter(|links| links.device == device);
        of_device()
            .find(|links| links.hosts.is_none())
            .or_else(|| of_device().find(as_many))
            .map(|links| &links.constants)
    }

    /// Remembers what was measured between these hosts, sorted.
    pub fn learn(&mut self, device: &str, hosts: Vec<String>, constants: Constants) {
        self.links.retain(|links| links.device != device || links.hosts.as_ref() != Some(&hosts));
        if self.links.len() >= Self::LINKS_MAX {
            self.links.remove(0);
        }
        self.links.push(SavedLinks { device: device.to_owned(), hosts: Some(hosts), constants });
    }

    /// The rules that are wished for instead of those made, where there are some for so many nodes; in order.
    #[must_use]
    pub fn over(&self, nodes: u32, made: Vec<Rule>) -> Vec<Rule> {
        let wished = || self.rules.iter().filter(|saved| saved.nodes == nodes).map(|saved| saved.rule);
        let mut rules = made;
        rules.retain(|rule| {
            wished().all(|wish| wish.operation != rule.operation || wish.bytes_max < rule.bytes_max)
        });
        rules.extend(wished());
        rules.sort_by_key(|rule| (rule.operation, rule.bytes_max));
        let wished: Vec<Rule> = wished().collect();
        within_bounds(rules, &wished)
    }
}

/// No more rules of one operation than there may be. Of those made for more bytes than are wished for the first ones go: what
/// comes after one holds for its bytes as well.
fn within_bounds(rules: Vec<Rule>, wished: &[Rule]) -> Vec<Rule> {
    let mut bounded = Vec::with_capacity(rules.len());
    for of_one in rules.chunk_by(|a, b| a.operation == b.operation) {
        let mut excess = of_one.len().saturating_sub(PlanSettings::RULES_MAX);
        bounded.extend(of_one.iter().filter(|rule| {
            let goes = excess > 0 && !wished.contains(rule);
            excess -= usize::from(goes);
            !goes
        }));
    }
    bounded
}
