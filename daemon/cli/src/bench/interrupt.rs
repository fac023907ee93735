//! Ctrl-C: what has been measured is kept.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// Whether somebody wants this to end.
#[derive(Debug, Clone, Default)]
pub(super) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Hears of it from now on; a second signal ends the program at once.
    pub(super) fn listen() -> Result<Self, String> {
        let this = Self::default();
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            // In this order: the first signal finds the flag down.
            signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&this.0))
                .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&this.0)))
                .map_err(|e| format!("cannot listen for signals: {e}"))?;
        }
        Ok(this)
    }

    /// Has it end: nothing more can be measured.
    pub(super) fn raise(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub(super) fn came(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
