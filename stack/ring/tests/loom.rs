//! Every interleaving of small cases, under a memory model weaker than that of any machine we run on:
//! `RUSTFLAGS="--cfg loom" cargo test -p ringway-ring --release --test loom`.
//!
//! Loom does not let a load see a store that comes later in another thread, so it cannot tell whether the consumer's
//! count needs its release store; that rests on the argument that a slot is read before its count is given back.
#![cfg(loom)]
#![expect(clippy::expect_used, reason = "helpers of tests may panic")]

mod memory;

use std::sync::Arc;

use loom::{
    sync::{Condvar, Mutex},
    thread,
};
use memory::{AtomicU64, Memory};
use ringway_ring::{Consumer, Producer, PushError, wake};

fn ring(capacity: usize) -> (Producer<Memory<2>, 2>, Consumer<Memory<2>, 2>) {
    let memory = Memory::new(capacity);
    (Producer::new(memory.clone()), Consumer::new(memory))
}

/// An entry whose words would not match were it torn or read too early.
fn entry(value: u64) -> [u64; 2] {
    [value + 100, (value + 1) << 32]
}

#[test]
fn entries_arrive_whole_and_in_order_through_a_full_ring() {
    loom::model(|| {
        let (mut producer, mut consumer) = ring(1);
        let writer = thread::spawn(move || {
            for value in 0..2 {
                while producer.send(&entry(value)) == Err(PushError::Full) {
                    thread::yield_now();
                }
            }
        });
        for value in 0..2 {
            let got = loop {
                match consumer.pop().expect("an honest producer") {
                    Some(got) => break got,
                    None => thread::yield_now(),
                }
            };
            assert_eq!(got, entry(value));
            consumer.release();
        }
        writer.join().expect("writer");
    });
}

#[test]
fn a_batch_appears_whole_or_not_at_all() {
    loom::model(|| {
        let (mut producer, mut consumer) = ring(4);
        let writer = thread::spawn(move || {
            for value in 0..3 {
                producer.push(&entry(value)).expect("room");
            }
            producer.publish();
        });
        let mut batch = [[0; 2]; 4];
        let got = consumer.pop_batch(&mut batch).expect("an honest producer");
        assert!(got == 0 || got == 3, "one release store publishes all");
        for (value, got) in (0..).zip(&batch[..got]) {
            assert_eq!(*got, entry(value));
        }
        writer.join().expect("writer");
    });
}

#[test]
fn a_slot_is_not_written_again_before_it_was_read() {
    loom::model(|| {
        let (mut producer, mut consumer) = ring(2);
        producer.push(&entry(0)).expect("room");
        producer.push(&entry(1)).expect("room");
        producer.publish();
        let writer = thread::spawn(move || {
            // May be refused, may not: what is read below is right in both cases.
            let _ = producer.send(&entry(2));
        });
        let mut batch = [[0; 2]; 2];
        assert_eq!(consumer.pop_batch(&mut batch), Ok(2));
        assert_eq!(batch, [entry(0), entry(1)]);
        consumer.release();
        if let Some(got) = consumer.pop().expect("an honest producer") {
            assert_eq!(got, entry(2));
        }
        writer.join().expect("writer");
    });
}

/// Something to block on: an eventfd, as loom knows it.
#[derive(Default)]
struct Event {
    rung: Mutex<bool>,
    bell: Condvar,
}

impl Event {
    fn ring(&self) {
        *self.rung.lock().expect("lock") = true;
        self.bell.notify_one();
    }

    /// A wake-up that was lost would block forever here, which loom reports as a deadlock.
    fn wait(&self) {
        let mut rung = self.rung.lock().expect("lock");
        while !*rung {
            rung = self.bell.wait(rung).expect("wait");
        }
        *rung = false;
    }
}

#[test]
fn no_wake_up_of_the_daemon_is_lost() {
    loom::model(|| {
        let (mut producer, mut consumer) = ring(2);
        let flag = Arc::new(AtomicU64::new(0));
        let event = Arc::new(Event::default());
        let (their_flag, their_event) = (Arc::clone(&flag), Arc::clone(&event));
        let client = thread::spawn(move || {
            producer.send(&entry(0)).expect("room");
            if wake::armed(&&*their_flag) != 0 {
                their_event.ring();
            }
        });
        wake::arm(&&*flag, 1);
        if !consumer.is_ready() {
            event.wait();
        }
        wake::disarm(&&*flag);
        assert_eq!(consumer.pop(), Ok(Some(entry(0))));
        client.join().expect("client");
    });
}

/// A futex: blocks while a word has a value.
#[derive(Default)]
struct Futex {
    lock: Mutex<()>,
    bell: Condvar,
}

impl Futex {
    fn wait(&self, word: &AtomicU64, expected: u32) {
        let guard = self.lock.lock().expect("lock");
        // As the kernel does it: compared under the lock that a wake-up takes.
        if word.load(loom::sync::atomic::Ordering::SeqCst) == u64::from(expected) {
            drop(self.bell.wait(guard).expect("wait"));
        }
    }

    fn wake(&self) {
        let _guard = self.lock.lock().expect("lock");
        self.bell.notify_all();
    }
}

#[test]
fn no_wake_up_of_the_client_is_lost() {
    loom::model(|| {
        let (mut producer, mut consumer) = ring(2);
        let (flag, sequence) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let futex = Arc::new(Futex::default());
        let theirs = (Arc::clone(&flag), Arc::clone(&sequence), Arc::clone(&futex));
        let daemon = thread::spawn(move || {
            let (flag, sequence, futex) = theirs;
            let mut current = 0;
            for value in 0..2 {
                producer.send(&entry(value)).expect("room");
                if wake::advance_sequence(&&*sequence, &mut current, &&*flag) {
                    futex.wake();
                }
            }
        });
        for value in 0..2 {
            let got = loop {
                if let Some(got) = consumer.pop().expect("an honest daemon") {
                    break got;
                }
                let expected = wake::arm_sequence(&&*sequence, &&*flag);
                if !consumer.is_ready() {
                    futex.wait(&sequence, expected);
                }
                wake::disarm(&&*flag);
            };
            assert_eq!(got, entry(value));
        }
        daemon.join().expect("daemon");
    });
}
