//! What all queue pairs of a device share.

use std::collections::VecDeque;

use ringway_mem::RegionTable;
use ringway_verbs::{Completions, Time};

use crate::{RoceConfig, memory::Registered, timers::Timers};

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: RoceConfig,
    pub(crate) memory: Registered,
    pub(crate) completions: Completions,
    /// Queue pairs with something to do, by index, each once.
    pub(crate) active: VecDeque<u16>,
    pub(crate) timers: Timers,
    /// A queue pair changed its state since the caller last asked to block: it gets another turn to see it.
    pub(crate) changed: bool,
    pub(crate) now: Time,
    /// When this side last went on after standing still.
    pub(crate) resumed: Time,
    pub(crate) failures: u64,
}

impl Shared {
    pub(crate) fn new(config: RoceConfig) -> Self {
        Self {
            memory: Registered::new(RegionTable::new(config.max_regions)),
            config,
            completions: Completions::default(),
            active: VecDeque::new(),
            timers: Timers::default(),
            changed: false,
            now: Time(0),
            resumed: Time(0),
            failures: 0,
        }
    }
}
