//! Whether the right bytes came. Both sides fill their memory in the same way ([`crate::fill`]), each from a seed of its
//! own; the peer's is found by the first bytes that come.

use ringway_mem::Window;
use ringway_verbs::Device;

use crate::{
    error::Failure,
    fill::{self, CRandom},
    layout::Steps,
    options::Verb,
    session::Session,
};

/// How much is enough to know a seed by.
const SAMPLE: usize = 64;
/// How little is too little.
const SAMPLE_LEAST: usize = 2;

/// What is known of the peer's memory.
#[derive(Debug, Default)]
pub(crate) struct Contents {
    theirs: Option<Vec<u8>>,
    /// What is compared, here so that nothing is allocated for each message.
    copy: Vec<u8>,
}

/// A message that came: which one, and where on the peer it came from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Came {
    pub(crate) index: usize,
    pub(crate) message: u64,
    pub(crate) from: u64,
}

impl Contents {
    /// The peer's memory, which is of this length, once some of its bytes are known.
    fn learn(&mut self, filled: u32, length: u64, from: u64, sample: &[u8]) -> Result<&[u8], Failure> {
        if self.theirs.is_none() {
            let sample = sample.get(..SAMPLE.min(sample.len())).unwrap_or_default();
            let found = fill::find(filled, length as usize, from as usize, sample);
            self.theirs = Some(found.filter(|_| sample.len() >= SAMPLE_LEAST).ok_or(Failure::Unknown)?);
        }
        Ok(self.theirs.as_deref().unwrap_or_default())
    }

    /// Compares what lies in a window with what the peer has, and clears it for the next.
    fn check(&mut self, filled: u32, length: u64, came: Came, window: &Window<'_>) -> Result<(), Failure> {
        let mut copy = core::mem::take(&mut self.copy);
        copy.resize(window.length(), 0);
        window.read(&mut copy);
        let theirs = self.learn(filled, length, came.from, &copy)?;
        let expected = theirs.get(came.from as usize..).unwrap_or_default();
        same(came, &copy, expected)?;
        copy.fill(0);
        window.write(&copy);
        self.copy = copy;
        Ok(())
    }
}

fn same(came: Came, found: &[u8], expected: &[u8]) -> Result<(), Failure> {
    let Came { index, message, .. } = came;
    // The peer may be waiting: comparing one by one is for what differs.
    if expected.get(..found.len()) == Some(found) {
        return Ok(());
    }
    match found.iter().zip(expected).enumerate().find(|(_, (found, expected))| found != expected) {
        Some((at, (found, expected))) => {
            Err(Failure::Content { index, message, at: at as u64, found: *found, expected: *expected })
        }
        None => Ok(()),
    }
}

impl Session {
    /// Before the peer's memory is worked out, which takes long: what it waits for goes out.
    fn send_what_is_owed(&mut self) {
        if self.contents.theirs.is_none() {
            self.device.arm();
        }
    }

    /// Checks a message that lies at `at`, if that is wanted, and clears the place.
    pub(crate) fn check(&mut self, came: Came, at: u64, bytes: u64) -> Result<(), Failure> {
        if !self.options.check {
            return Ok(());
        }
        self.send_what_is_owed();
        let window = self.mapping.window(at, bytes).ok_or(Failure::Unknown)?;
        self.contents.check(self.filled, self.layout.length(), came, &window)
    }

    /// Checks what the peer has written, if that is wanted, up to the last byte, which is polled: zeros, with which perftest
    /// fills its memory in this test, or what other tests have there. As the peer may be at longer messages already, nothing
    /// is cleared.
    pub(crate) fn check_polled(&mut self, message: u64, bytes: u64) -> Result<(), Failure> {
        if !self.options.check || bytes < SAMPLE_LEAST as u64 {
            return Ok(());
        }
        let window = self.mapping.window(self.layout.receiving(0), bytes).ok_or(Failure::Unknown)?;
        let mut found = vec![0; window.length()];
        window.read(&mut found);
        if found.iter().all(|byte| *byte == 0) {
            return Ok(());
        }
        let from = self.layout.sending(0);
        let theirs = self.contents.learn(self.filled, self.layout.length(), from, &found)?;
        same(Came { index: 0, message, from }, &found, theirs.get(from as usize..).unwrap_or_default())
    }

    /// Checks what an atomic brought: the word as filled, changed so many times.
    pub(crate) fn check_fetched(&mut self, came: Came, at: u64, steps: Steps) -> Result<(), Failure> {
        if !self.options.check {
            return Ok(());
        }
        self.send_what_is_owed();
        let mut found = [0; 8];
        self.mapping.window(at, 8).ok_or(Failure::Unknown)?.read(&mut found);
        let theirs = self.contents.learn(self.filled, self.layout.length(), came.from, &found)?;
        let initial = word(theirs, came.from);
        let times = came.message / steps.places(u64::MAX);
        same(came, &found, &after(self.options.test.verb, initial, times).to_le_bytes())
    }

    /// Checks what the peer, which is done, has made of this side's memory.
    pub(crate) fn check_served(&mut self, bytes: u64, messages: u64) -> Result<(), Failure> {
        let (verb, layout) = (self.options.test.verb, self.layout);
        let steps = layout.steps(bytes);
        let (places, each) = (steps.places(messages), steps.places(u64::MAX));
        let mine =
            if verb.is_atomic() { CRandom::bytes(self.filled, layout.length() as usize) } else { Vec::new() };
        for index in 0..self.connections.len() {
            for place in 0..places {
                let (to, from) =
                    (layout.receiving(index) + steps.at(place), layout.sending(index) + steps.at(place));
                let came = Came { index, message: place, from };
                if !verb.is_atomic() {
                    self.check(came, to, bytes)?;
                    continue;
                }
                let mut found = [0; 8];
                self.mapping.window(to, 8).ok_or(Failure::Unknown)?.read(&mut found);
                let times = (messages - place).div_ceil(each);
                same(came, &found, &after(verb, word(&mine, to), times).to_le_bytes())?;
            }
        }
        Ok(())
    }
}

/// The word at this place.
fn word(bytes: &[u8], at: u64) -> u64 {
    let word = bytes.get(at as usize..).and_then(<[u8]>::first_chunk);
    word.copied().map_or(0, u64::from_le_bytes)
}

/// What perftest's atomics make of a word.
const fn after(verb: Verb, initial: u64, times: u64) -> u64 {
    match verb {
        Verb::FetchAdd => initial.wrapping_add(times),
        // Zero becomes zero.
        _ => initial,
    }
}
