//! The bare ring: one producer, one consumer, entries as long as a submission. It trusts its peer, checks nothing and completes
//! nothing; it is laid out like the fastest known ones, with the indices 128 bytes apart and the peer's cached. What anything
//! that protects and answers costs is to be seen beside it. A client's ring may take less for one entry at a time: its consumer
//! looks at the entry itself, so that one cache line moves, where here an index moves as well.

use std::{
    hint::spin_loop,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Instant,
};

/// Entries of a ring; a power of two.
const CAPACITY: usize = 256;
/// 64-bit words of an entry.
const WORDS: usize = 8;

#[derive(Debug)]
#[repr(align(128))]
struct Index(AtomicU64);

#[derive(Debug)]
#[repr(align(64))]
struct Entry([AtomicU64; WORDS]);

/// One direction.
#[derive(Debug)]
pub(super) struct BareRing {
    entries: Vec<Entry>,
    head: Index,
    tail: Index,
}

/// One side's position, and what it knows of the other's.
#[derive(Debug, Default)]
struct Cursor {
    position: u64,
    peer: u64,
}

impl BareRing {
    pub(super) fn new() -> Self {
        let entry = || Entry([const { AtomicU64::new(0) }; WORDS]);
        let index = || Index(AtomicU64::new(0));
        Self { entries: (0..CAPACITY).map(|_| entry()).collect(), head: index(), tail: index() }
    }

    fn entry(&self, position: u64) -> Option<&Entry> {
        self.entries.get(position as usize % CAPACITY)
    }

    fn push(&self, cursor: &mut Cursor, words: &[u64; WORDS]) {
        while cursor.position - cursor.peer >= CAPACITY as u64 {
            cursor.peer = self.head.0.load(Ordering::Acquire);
        }
        if let Some(entry) = self.entry(cursor.position) {
            entry.0.iter().zip(words).for_each(|(to, from)| to.store(*from, Ordering::Relaxed));
        }
        cursor.position += 1;
        self.tail.0.store(cursor.position, Ordering::Release);
    }

    fn pop(&self, cursor: &mut Cursor) -> Option<[u64; WORDS]> {
        if cursor.peer == cursor.position {
            cursor.peer = self.tail.0.load(Ordering::Acquire);
        }
        if cursor.peer == cursor.position {
            return None;
        }
        let entry = self.entry(cursor.position)?;
        let mut words = [0; WORDS];
        words.iter_mut().zip(&entry.0).for_each(|(to, from)| *to = from.load(Ordering::Relaxed));
        cursor.position += 1;
        self.head.0.store(cursor.position, Ordering::Release);
        Some(words)
    }
}

/// Gives back every entry, until it is told to stop.
pub(super) fn echo(there: &BareRing, back: &BareRing, stop: &AtomicBool) {
    let (mut taken, mut given) = (Cursor::default(), Cursor::default());
    while !stop.load(Ordering::Relaxed) {
        match there.pop(&mut taken) {
            Some(words) => back.push(&mut given, &words),
            None => spin_loop(),
        }
    }
}

/// Half the time of each round trip, in nanoseconds.
pub(super) fn round_trips(there: &BareRing, back: &BareRing, count: u64) -> Vec<f64> {
    let (mut given, mut taken) = (Cursor::default(), Cursor::default());
    let mut times = Vec::with_capacity(count as usize);
    let mut last = Instant::now();
    for number in 0..count {
        there.push(&mut given, &[number; WORDS]);
        while back.pop(&mut taken).is_none() {
            spin_loop();
        }
        let now = Instant::now();
        times.push((now - last).as_nanos() as f64 / 2.0);
        last = now;
    }
    times
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_come_once_and_in_order() {
        let ring = BareRing::new();
        let count = 10 * CAPACITY as u64;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut cursor = Cursor::default();
                (0..count).for_each(|number| ring.push(&mut cursor, &[number; WORDS]));
            });
            let mut cursor = Cursor::default();
            for number in 0..count {
                let words = loop {
                    match ring.pop(&mut cursor) {
                        Some(words) => break words,
                        None => std::thread::yield_now(),
                    }
                };
                assert_eq!(words, [number; WORDS]);
            }
            assert_eq!(ring.pop(&mut cursor), None);
        });
    }
}
