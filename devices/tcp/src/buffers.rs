//! What one operation sends or receives: staging bytes, and places in mappings that it keeps alive.

use ringway_mem::Span;

use crate::vectors::{MAX_VECTORS, Vectors};

/// Headers and small payloads of one batch.
const INLINE_LENGTH: usize = 16 << 10;
/// Payloads up to this length are copied next to their header: cheaper than one more piece to gather.
pub(crate) const SMALL_PAYLOAD: u64 = 1024;
/// The most payload bytes one operation moves, so that each system call stays short.
pub(crate) const MAX_PIECE: u64 = 256 << 10;
/// Bytes read ahead of what is known to come.
pub(crate) const STAGING_LENGTH: usize = 8 << 10;
/// Headers and payloads that one batch can always take more of.
const RESERVE: usize = crate::frame::HEADER_LENGTH + SMALL_PAYLOAD as usize;

#[derive(Debug)]
enum Part {
    Inline { start: usize, length: usize },
    Memory(Span),
}

impl Part {
    const fn length(&self) -> u64 {
        match self {
            Self::Inline { length, .. } => *length as u64,
            Self::Memory(span) => span.length,
        }
    }
}

/// Frames on their way out in one system call.
#[derive(Debug)]
pub(crate) struct SendBatch {
    inline: Box<[u8]>,
    used: usize,
    parts: Vec<Part>,
    /// Parts before this one are sent.
    first: usize,
    /// Of payload that was not copied.
    bytes: u64,
    /// The number of the first request of which it may have a part.
    pub(crate) first_request: u64,
    vectors: Vectors,
}

impl SendBatch {
    pub(crate) fn new() -> Box<Self> {
        Box::new(Self {
            inline: vec![0; INLINE_LENGTH].into_boxed_slice(),
            used: 0,
            parts: Vec::with_capacity(MAX_VECTORS),
            first: 0,
            bytes: 0,
            first_request: 0,
            vectors: Vectors::new(),
        })
    }

    pub(crate) fn clear(&mut self) {
        self.used = 0;
        self.parts.clear();
        self.first = 0;
        self.bytes = 0;
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.first >= self.parts.len()
    }

    /// Bytes of the longest piece that was not copied.
    pub(crate) fn longest_span(&self) -> u64 {
        let parts = self.parts.get(self.first..).unwrap_or_default();
        let spans = parts.iter().map(|part| if let Part::Memory(span) = part { span.length } else { 0 });
        spans.max().unwrap_or(0)
    }

    /// What is left to send, if that is one piece that was not copied.
    pub(crate) fn only_span(&self) -> Option<&Span> {
        match self.parts.get(self.first..)? {
            [Part::Memory(span)] => Some(span),
            _ => None,
        }
    }

    /// Bytes that are left to send.
    pub(crate) fn rest(&self) -> u64 {
        let parts = self.parts.get(self.first..).unwrap_or_default();
        parts.iter().map(Part::length).sum()
    }

    /// Whether another header with a small payload, or a header and two pieces, fits.
    pub(crate) fn has_room(&self) -> bool {
        self.used + RESERVE <= INLINE_LENGTH && self.parts.len() + 4 <= MAX_VECTORS && self.bytes < MAX_PIECE
    }

    /// How many more payload bytes this batch should take.
    pub(crate) const fn room(&self) -> u64 {
        MAX_PIECE.saturating_sub(self.bytes)
    }

    /// Adds bytes by copying them; `fill` writes them.
    fn add_inline(&mut self, length: usize, fill: impl FnOnce(&mut [u8])) {
        let start = self.used;
        let Some(place) = self.inline.get_mut(start..start + length) else { return };
        fill(place);
        self.used += length;
        if let Some(Part::Inline { start: last, length: grown }) = self.parts.last_mut()
            && *last + *grown == start
        {
            *grown += length;
        } else {
            self.parts.push(Part::Inline { start, length });
        }
    }

    /// Adds a header.
    pub(crate) fn add_bytes(&mut self, bytes: &[u8]) {
        self.add_inline(bytes.len(), |place| place.copy_from_slice(bytes));
    }

    /// Adds payload, by copying it when it is small; returns how many bytes were copied.
    pub(crate) fn add_span(&mut self, span: Span) -> u64 {
        if span.length == 0 {
            return 0;
        }
        let fits = self.used + span.length as usize <= INLINE_LENGTH;
        if span.length <= SMALL_PAYLOAD
            && fits
            && let Some(window) = span.window()
        {
            self.add_inline(window.length(), |place| {
                window.read(place);
            });
            return span.length;
        }
        self.bytes += span.length;
        self.parts.push(Part::Memory(span));
        0
    }

    /// Leaves out what has been sent.
    pub(crate) fn advance(&mut self, mut sent: u64) {
        while let Some(part) = self.parts.get_mut(self.first) {
            let length = part.length();
            if sent < length {
                match part {
                    Part::Inline { start, length } => {
                        *start += sent as usize;
                        *length -= sent as usize;
                    }
                    Part::Memory(span) => {
                        span.offset += sent;
                        span.length -= sent;
                    }
                }
                return;
            }
            sent -= length;
            self.first += 1;
        }
    }

    /// What is left to send, as a gather list into this batch's own bytes and the mappings it holds.
    pub(crate) fn vectors(&mut self) -> &mut Vectors {
        self.vectors.clear();
        let base = self.inline.as_mut_ptr();
        for part in self.parts.iter().skip(self.first) {
            match part {
                Part::Inline { start, length } => self.vectors.push(base.wrapping_add(*start), *length),
                Part::Memory(span) => {
                    // Checked when the span was made; a span is never outside its mapping.
                    if let Some(window) = span.window() {
                        self.vectors.push(window.as_ptr(), window.length());
                    }
                }
            }
        }
        &mut self.vectors
    }
}

/// Where the next bytes of a connection go: known places first, and then the staging bytes.
#[derive(Debug)]
pub(crate) struct ReceivePlan {
    staging: Box<[u8]>,
    /// Received and not looked at: `start..end`.
    start: usize,
    end: usize,
    places: [Option<Span>; 2],
    /// How many staging bytes follow the places.
    ahead: usize,
    vectors: Vectors,
}

impl ReceivePlan {
    pub(crate) fn new() -> Box<Self> {
        Box::new(Self {
            staging: vec![0; STAGING_LENGTH].into_boxed_slice(),
            start: 0,
            end: 0,
            places: [None, None],
            ahead: STAGING_LENGTH,
            vectors: Vectors::new(),
        })
    }

    /// Bytes received and not looked at.
    pub(crate) fn unread(&self) -> &[u8] {
        self.staging.get(self.start..self.end).unwrap_or_default()
    }

    /// Marks bytes as looked at.
    pub(crate) fn consume(&mut self, count: usize) {
        self.start = (self.start + count).min(self.end);
    }

    /// Sets the places for the next receive, and how many bytes are read ahead after them.
    pub(crate) fn aim(&mut self, places: [Option<Span>; 2], ahead: usize) {
        self.staging.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        self.ahead = ahead.min(self.staging.len() - self.end);
        self.places = places;
    }

    /// Bytes that are known to come.
    pub(crate) fn expects(&self) -> u64 {
        self.places.iter().flatten().map(|span| span.length).sum()
    }

    /// Takes note of received bytes; returns how many of them went to the places.
    pub(crate) fn received(&mut self, count: u64) -> u64 {
        let placed = self.expects();
        self.places = [None, None];
        let ahead = count.saturating_sub(placed);
        self.end = (self.end + ahead as usize).min(self.staging.len());
        count.min(placed)
    }

    /// The scatter list.
    pub(crate) fn vectors(&mut self) -> &mut Vectors {
        self.vectors.clear();
        for span in self.places.iter().flatten() {
            if let Some(window) = span.window().filter(|window| window.is_writable()) {
                self.vectors.push(window.as_ptr(), window.length());
            }
        }
        if self.ahead > 0 {
            self.vectors.push(self.staging.as_mut_ptr().wrapping_add(self.end), self.ahead);
        }
        &mut self.vectors
    }
}
