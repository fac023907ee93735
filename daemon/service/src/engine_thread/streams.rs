//! Operations in the order of a GPU's streams: words in a client's memory say when a submission may be taken, and are told
//! when its operation has ended (`ringway_abi::stream`).

use std::sync::Arc;

use ringway_abi::stream::{BYTES, DONE, READY, SLOT_BYTES, is_reached, slot, value};
use ringway_mem::{Mapping, Window};

use super::EngineThread;
use crate::session::SessionKey;

/// A rank's words.
#[derive(Debug)]
pub(super) struct StreamWords {
    /// Of a region of the client's, which may be released meanwhile.
    mapping: Arc<Mapping>,
    offset: u64,
}

impl StreamWords {
    fn slot(&self, token: u32) -> Option<Window<'_>> {
        self.mapping.window(self.offset.checked_add(slot(token))?, SLOT_BYTES)
    }

    /// Whether the caller's stream has come to an operation.
    pub(super) fn is_ready(&self, token: u32) -> bool {
        let word = self.slot(token).and_then(|slot| slot.load_word(READY as usize));
        word.is_some_and(|word| is_reached(word, value(token)))
    }

    /// Lets the caller's stream go on.
    pub(super) fn tell(&self, token: u32) {
        if let Some(slot) = self.slot(token) {
            slot.store_word(DONE as usize, value(token));
        }
    }
}

impl EngineThread {
    /// The words that a session says are at a byte of one of its regions.
    pub(super) fn stream_words(
        &self,
        session: SessionKey,
        (handle, offset): (u64, u64),
    ) -> Option<StreamWords> {
        let region = self.regions.get(handle).filter(|region| region.session == session)?;
        let mapping = Arc::clone(region.memory.host()?);
        let inside = offset.checked_add(BYTES).is_some_and(|end| end <= mapping.length() as u64);
        (inside && offset.is_multiple_of(SLOT_BYTES)).then_some(StreamWords { mapping, offset })
    }
}
