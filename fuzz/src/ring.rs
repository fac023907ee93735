//! Rings whose other side writes whatever it likes, whenever it likes.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use ringway_ring::{Consumer, Producer, PushError, Storage};

use crate::Reader;

const CAPACITY: u64 = 4;
const WORDS: usize = 4;

/// A ring's memory that both this side and the input's bytes write.
#[derive(Debug, Clone)]
struct Memory(Arc<[AtomicU64; CAPACITY as usize * WORDS + 1]>);

impl Memory {
    fn new() -> Self {
        Self(Arc::new(std::array::from_fn(|_| AtomicU64::new(0))))
    }

    /// Any word of the entries, or the consumed count.
    fn word(&self, index: usize) -> &AtomicU64 {
        &self.0[index % self.0.len()]
    }
}

impl Storage<WORDS> for Memory {
    type Word<'a> = &'a AtomicU64;

    fn capacity(&self) -> u64 {
        CAPACITY
    }

    fn entry(&self, position: u64, word: usize) -> &AtomicU64 {
        let slot = usize::try_from(position % CAPACITY).unwrap_or(0);
        &self.0[slot * WORDS + word]
    }

    fn consumed(&self) -> &AtomicU64 {
        &self.0[self.0.len() - 1]
    }
}

/// The peer's steps and ours: at most a ring's worth of entries come out between two releases, what comes out is what
/// lay there, and only the consumer moves its count.
pub fn consumer(bytes: &[u8]) {
    let memory = Memory::new();
    let mut reader = Reader(bytes);
    let mut consumer = Consumer::<Memory, WORDS>::new(memory.clone());
    if reader.u8() == 0xff {
        consumer = Consumer::resume(memory.clone(), reader.u64() >> 1);
    }
    while !reader.is_empty() {
        let before = consumer.position();
        match reader.u8() % 6 {
            0 => memory.word(usize::from(reader.u8())).store(reader.u64(), Ordering::Relaxed),
            // An entry as an honest producer would publish it, anywhere.
            1 => {
                let [ahead, payload] = reader.bytes();
                let position = before.wrapping_add(u64::from(ahead % 5));
                memory.entry(position, 0).store(u64::from(payload), Ordering::Relaxed);
                let phase = position.wrapping_add(1) & 0xffff_ffff;
                memory.entry(position, WORDS - 1).store(phase | u64::from(payload) << 32, Ordering::Relaxed);
            }
            2 | 3 => {
                let ready = consumer.is_ready();
                let first = memory.entry(before, 0).load(Ordering::Relaxed);
                match consumer.pop() {
                    Ok(Some(entry)) => {
                        assert!(ready && entry[0] == first && entry[WORDS - 1].trailing_zeros() >= 32);
                        assert_eq!(consumer.position(), before + 1);
                    }
                    Ok(None) => assert!(!ready && consumer.position() == before),
                    Err(_) => assert!(ready && consumer.position() == before),
                }
            }
            4 => {
                let mut batch = [[0; WORDS]; 6];
                let count = consumer.pop_batch(&mut batch).unwrap_or(0) as u64;
                assert_eq!(consumer.position(), before + count);
            }
            _ => {
                let told = consumer.unreleased() > 0;
                consumer.release();
                let count = memory.consumed().load(Ordering::Relaxed);
                assert!(!told || count == consumer.position(), "{count} was told");
                assert_eq!(consumer.unreleased(), 0);
            }
        }
        assert!(consumer.unreleased() <= CAPACITY, "{} entries without a release", consumer.unreleased());
    }
}

/// Honest traffic, phases from the future and the past, a consumed count that jumps.
#[must_use]
pub fn consumer_samples() -> Vec<Vec<u8>> {
    let honest = [1, 0, 7, 2, 5];
    let write = |word: u8, value: u64| [&[0, word][..], &value.to_le_bytes()].concat();
    vec![
        [&[0][..], &honest.repeat(9)].concat(),
        [&[0][..], &[1, 0, 1, 1, 1, 2, 1, 2, 3, 1, 3, 4, 1, 4, 5, 4, 4, 5, 4]].concat(),
        [&[0][..], &write(3, 2), &[2, 2]].concat(),
        [&[0][..], &honest, &write(7, 1), &[2, 4]].concat(),
        [&[0][..], &honest, &write(16, u64::MAX), &honest].concat(),
        [&[0][..], &write(3, 0xffff_ffff_0000_0001), &[2, 2, 3]].concat(),
        [&[0xff][..], &(0xffff_ffff_u64 << 1).to_le_bytes(), &honest.repeat(3)].concat(),
        [&[0xff][..], &u64::MAX.to_le_bytes(), &honest.repeat(3)].concat(),
        Vec::new(),
    ]
}

/// The peer claims to have consumed whatever it likes: the producer believes only what can be, never overwrites what
/// was not consumed, and never stages more than the ring holds.
pub fn producer(bytes: &[u8]) {
    let memory = Memory::new();
    let mut reader = Reader(bytes);
    let mut producer = Producer::<Memory, WORDS>::new(memory.clone());
    // What an honest consumer could have consumed at most, and what was believed.
    let (mut published, mut believed) = (0_u64, 0_u64);
    while !reader.is_empty() {
        match reader.u8() % 5 {
            0 => memory.consumed().store(reader.u64(), Ordering::Relaxed),
            1 => memory.consumed().store(u64::from(reader.u8()), Ordering::Relaxed),
            2 | 3 => {
                let claimed = memory.consumed().load(Ordering::Relaxed);
                let position = producer.position();
                match producer.push(&[claimed; WORDS]) {
                    Ok(()) => {
                        if position - believed >= CAPACITY {
                            assert!((believed + 1..=published).contains(&claimed), "{claimed} was believed");
                            believed = claimed;
                        }
                        assert_eq!(producer.position(), position + 1);
                    }
                    Err(PushError::Full) => assert_eq!(position.wrapping_sub(claimed), CAPACITY),
                    Err(_) => assert!(claimed < believed || claimed > published),
                }
                // A refresh may have moved what is believed without room to show for it.
                if let Ok(free) = producer.free() {
                    assert!(free <= CAPACITY);
                    believed = producer.position() + free - CAPACITY;
                }
            }
            _ => {
                producer.publish();
                published = producer.position();
            }
        }
        assert!(producer.staged() <= CAPACITY);
    }
}

/// Honest traffic, claims from the future, claims that go back.
#[must_use]
pub fn producer_samples() -> Vec<Vec<u8>> {
    let claim = |value: u64| [&[0][..], &value.to_le_bytes()].concat();
    let fill = [2, 2, 2, 2, 4];
    vec![
        [&fill[..], &[1, 4], &fill, &[1, 8], &fill].concat(),
        [&fill[..], &[2, 1, 5, 2]].concat(),
        [&fill[..], &[1, 3, 2, 4, 1, 2, 2, 2, 2, 2]].concat(),
        [&[2, 2][..], &[1, 1, 2, 2, 2]].concat(),
        [&fill[..], &claim(u64::MAX), &[2]].concat(),
        [&fill[..], &claim(1 << 32), &[2]].concat(),
        Vec::new(),
    ]
}
