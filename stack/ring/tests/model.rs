//! The ring's algorithms against a queue, and against a peer that writes anything. Runs under Miri as well.
#![cfg(not(loom))]
#![expect(clippy::expect_used, reason = "helpers of tests may panic")]

mod memory;

use std::{collections::VecDeque, sync::atomic::Ordering, thread};

use memory::Memory;
use proptest::{prelude::*, test_runner::FileFailurePersistence};
use ringway_ring::{Consumer, Geometry, GeometryError, PeerFault, Producer, PushError, layout};

/// Miri is slow and has no files.
fn config() -> ProptestConfig {
    let cases = if cfg!(miri) { 2 } else { 512 };
    let files = FileFailurePersistence::SourceParallel("proptest-regressions");
    let failure_persistence = if cfg!(miri) { None } else { Some(Box::new(files) as Box<_>) };
    ProptestConfig { cases, failure_persistence, ..ProptestConfig::default() }
}

#[derive(Debug, Clone)]
enum Step {
    Push([u64; 4]),
    Publish,
    Pop,
    PopBatch(usize),
    Release,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => any::<[u64; 4]>().prop_map(Step::Push),
        2 => Just(Step::Publish),
        2 => Just(Step::Pop),
        1 => (0usize..12).prop_map(Step::PopBatch),
        2 => Just(Step::Release),
    ]
}

/// What a consumer sees of an entry: the ring keeps the low half of the last word.
fn seen(mut entry: [u64; 4]) -> [u64; 4] {
    entry[3] &= !0xffff_ffff;
    entry
}

/// Where a ring's life begins: at the start, or shortly before the phase wraps (the last lap's phases in place).
fn ring(capacity: usize, start: u64) -> (Memory<4>, Producer<Memory<4>, 4>, Consumer<Memory<4>, 4>) {
    let memory = Memory::new(capacity);
    memory.consumed.store(start, Ordering::Relaxed);
    for position in start.saturating_sub(capacity as u64)..start {
        let slot = usize::try_from(position % capacity as u64).expect("below the capacity");
        memory.entries[slot][3].store((position + 1) & 0xffff_ffff, Ordering::Relaxed);
    }
    (memory.clone(), Producer::resume(memory.clone(), start), Consumer::resume(memory, start))
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_ring_is_a_bounded_queue_with_batches(
        bits in 0u32..4,
        start in prop_oneof![Just(0u64), (1u64 << 32) - 20..(1u64 << 32) + 2],
        steps in prop::collection::vec(step(), 0..120),
    ) {
        let capacity = 1usize << bits;
        let (_memory, mut producer, mut consumer) = ring(capacity, start);
        let (mut staged, mut queue, mut unreleased) = (Vec::new(), VecDeque::new(), 0);
        for step in steps {
            match step {
                Step::Push(entry) => {
                    let full = staged.len() + queue.len() + unreleased == capacity;
                    let expected = if full { Err(PushError::Full) } else { Ok(()) };
                    prop_assert_eq!(producer.push(&entry), expected);
                    if !full {
                        staged.push(seen(entry));
                    }
                }
                Step::Publish => {
                    producer.publish();
                    queue.extend(staged.drain(..));
                }
                Step::Pop => {
                    prop_assert_eq!(consumer.is_ready(), !queue.is_empty());
                    let expected: Option<[u64; 4]> = queue.pop_front();
                    prop_assert_eq!(consumer.pop(), Ok(expected));
                    unreleased += usize::from(expected.is_some());
                }
                Step::PopBatch(most) => {
                    let mut batch = [[0; 4]; 12];
                    let count = consumer.pop_batch(&mut batch[..most]).expect("an honest producer");
                    prop_assert_eq!(count, most.min(queue.len()));
                    let expected: Vec<_> = queue.drain(..count).collect();
                    prop_assert_eq!(&batch[..count], &expected[..]);
                    unreleased += count;
                }
                Step::Release => {
                    consumer.release();
                    unreleased = 0;
                }
            }
            prop_assert_eq!(producer.staged(), staged.len() as u64);
            prop_assert_eq!(consumer.unreleased(), unreleased as u64);
        }
        prop_assert_eq!(producer.free_for(u64::MAX).expect("honest"),
            (capacity - staged.len() - queue.len() - unreleased) as u64);
    }

    #[test]
    fn whatever_the_peer_writes_a_consumer_takes_at_most_one_ring_between_releases(
        bits in 0u32..4,
        writes in prop::collection::vec(
            (any::<prop::sample::Index>(), 0usize..4, prop_oneof![any::<u64>(), 0u64..40], any::<bool>()), 0..200),
    ) {
        let capacity = 1usize << bits;
        let (memory, _producer, mut consumer) = ring(capacity, 0);
        let mut taken = 0;
        for (slot, word, value, release) in writes {
            slot.get(&memory.entries)[word].store(value, Ordering::Relaxed);
            memory.consumed.store(value, Ordering::Relaxed);
            let mut batch = [[0; 4]; 64];
            taken += consumer.pop_batch(&mut batch).unwrap_or(0);
            prop_assert!(taken <= capacity);
            if release {
                consumer.release();
                taken = 0;
            }
        }
    }

    #[test]
    fn whatever_the_peer_writes_a_producer_keeps_at_most_one_ring_outstanding(
        bits in 0u32..4,
        claims in prop::collection::vec(prop_oneof![any::<u64>(), 0u64..40], 0..100),
    ) {
        let capacity = 1u64 << bits;
        let (memory, mut producer, _consumer) = ring(1 << bits, 0);
        // The highest claim that was possible when it was looked at.
        let mut believed = 0;
        for claim in claims {
            memory.consumed.store(claim, Ordering::Relaxed);
            let published = producer.position();
            let possible = claim >= believed && claim <= published;
            match producer.free_for(u64::MAX) {
                Ok(free) => {
                    prop_assert!(possible);
                    believed = claim;
                    prop_assert_eq!(free, capacity - (published - believed));
                }
                Err(PeerFault::Consumed { claimed, least, most }) => {
                    prop_assert!(!possible);
                    prop_assert_eq!((claimed, least, most), (claim, believed, published));
                }
                Err(other) => prop_assert!(false, "{other}"),
            }
            let _ = producer.send(&[claim; 4]);
            prop_assert!(producer.position() - believed <= capacity);
        }
    }

    #[test]
    fn a_geometry_lays_everything_out_apart(a in any::<u32>(), b in any::<u32>(), slab in any::<u32>(), bits in 0u32..18) {
        for (submissions, completions) in [(a, b), (1 << bits, 1 << (bits / 2))] {
            match Geometry::new(submissions, completions, slab) {
                Ok(geometry) => {
                    prop_assert!(submissions.is_power_of_two() && completions.is_power_of_two());
                    let slab_end = geometry.slab_offset() + slab as usize * 8;
                    prop_assert_eq!(geometry.slab_offset(), layout::SUBMISSIONS + submissions as usize * 64);
                    prop_assert!(slab_end <= geometry.client_bytes() && geometry.client_bytes() < slab_end + 4096);
                    let end = layout::COMPLETIONS + completions as usize * 32;
                    prop_assert!(end <= geometry.daemon_bytes() && geometry.daemon_bytes() < end + 4096);
                }
                Err(GeometryError::Entries(n)) => prop_assert!(!n.is_power_of_two() || n > layout::MAX_ENTRIES),
                Err(GeometryError::Slab(n)) => prop_assert!(n > layout::MAX_SLAB_WORDS),
            }
        }
    }
}

#[test]
fn faults_are_values() {
    let (memory, mut producer, mut consumer) = ring(2, 0);
    memory.consumed.store(1, Ordering::Relaxed);
    producer.push(&[0; 4]).expect("the count is not looked at yet");
    producer.push(&[0; 4]).expect("nor now");
    let fault = PeerFault::Consumed { claimed: 1, least: 0, most: 0 };
    assert_eq!(producer.push(&[0; 4]), Err(PushError::Peer(fault)), "nothing was published");
    memory.entries[0][3].store(77, Ordering::Relaxed);
    let fault = PeerFault::Phase { position: 0, found: 77, expected: 1 };
    assert!(consumer.is_ready());
    assert_eq!(consumer.pop(), Err(fault));
    assert_eq!(consumer.pop_batch(&mut [[0; 4]; 2]), Err(fault));
}

#[test]
fn two_threads_pass_everything_in_order() {
    let count: u64 = if cfg!(miri) { 40 } else { 200_000 };
    let (_memory, mut producer, mut consumer) = ring(8, 0);
    let writer = thread::spawn(move || {
        let mut next = 0;
        while next < count {
            // Batches of one to five.
            let batch = (next % 5 + 1).min(count - next);
            if producer.free_for(batch).expect("an honest consumer") < batch {
                thread::yield_now();
                continue;
            }
            for value in next..next + batch {
                producer.push(&[value, !value, value, value << 32]).expect("room");
            }
            producer.publish();
            next += batch;
        }
    });
    let mut next = 0;
    while next < count {
        let mut batch = [[0; 4]; 4];
        let got = consumer.pop_batch(&mut batch).expect("an honest producer");
        for entry in &batch[..got] {
            assert_eq!(*entry, [next, !next, next, next << 32]);
            next += 1;
        }
        consumer.release();
        if got == 0 {
            thread::yield_now();
        }
    }
    writer.join().expect("writer");
}
