//! When steps happen, counted in steps that must happen before.

use std::collections::BTreeMap;

use ringway_plan::{Action, trace::Trace};

/// Of every step of every node, how many must happen one after the other before it.
#[derive(Debug)]
pub(super) struct Levels {
    of: Vec<Vec<u32>>,
    /// Of every message, both ends: (node, step) that sends and that receives.
    pub(super) messages: Vec<((u32, usize), (u32, usize))>,
}

impl Levels {
    /// What was traced has no circles, so that every step has a level.
    pub(super) fn of(plan: &Trace) -> Self {
        let nodes = 0..plan.layout().nodes();
        let mut levels: Vec<Vec<u32>> = nodes.clone().map(|node| vec![0; plan.steps(node).len()]).collect();
        let mut sends = BTreeMap::new();
        let mut messages = Vec::new();
        for node in nodes.clone() {
            for (step, traced) in plan.steps(node).iter().enumerate() {
                if let Action::Send { peer, tag, .. } = traced.step.action {
                    sends.insert((node, peer, tag), step);
                }
            }
        }
        let mut progress = true;
        while progress {
            progress = false;
            for node in nodes.clone() {
                for (step, traced) in plan.steps(node).iter().enumerate() {
                    let own = levels.get(node as usize).map_or(&[][..], Vec::as_slice);
                    let waits = traced.step.after.iter().flat_map(Clone::clone);
                    let mut level =
                        waits.filter_map(|step| own.get(step as usize)).max().map_or(0, |l| l + 1);
                    if let Action::Receive { peer, tag, .. } = traced.step.action
                        && let Some(send) = sends.get(&(peer, node, tag))
                    {
                        let sent = levels.get(peer as usize).and_then(|steps| steps.get(*send));
                        level = level.max(sent.map_or(0, |level| level + 1));
                    }
                    if let Some(known) = levels.get_mut(node as usize).and_then(|steps| steps.get_mut(step)) {
                        progress |= *known != level;
                        *known = level;
                    }
                }
            }
        }
        for node in nodes {
            for (step, traced) in plan.steps(node).iter().enumerate() {
                if let Action::Receive { peer, tag, .. } = traced.step.action
                    && let Some(send) = sends.get(&(peer, node, tag))
                {
                    messages.push(((peer, *send), (node, step)));
                }
            }
        }
        Self { of: levels, messages }
    }

    /// A step's level.
    pub(super) fn level(&self, node: u32, step: usize) -> u32 {
        self.of.get(node as usize).and_then(|steps| steps.get(step)).copied().unwrap_or(0)
    }

    /// The level after the last one.
    pub(super) fn end(&self) -> u32 {
        self.of.iter().flatten().max().map_or(0, |level| level + 1)
    }
}
