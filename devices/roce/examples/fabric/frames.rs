//! Bare frames over a link, of which nothing is written and looked at but that they come.
#![allow(dead_code, reason = "not every example uses all of it")]

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use ringway_roce::{Link, Path};
use ringway_verbs::Time;

/// When an answer is taken for lost, and what was sent for having arrived.
pub(crate) const PATIENCE: Duration = Duration::from_millis(50);
/// Headers of Ethernet, IPv4 and UDP.
pub(crate) const OUTER_BYTES: usize = 14 + 20 + 8;
/// What UDP carries of a message of 8 bytes: header, bytes, CRC.
pub(crate) const SMALL_BYTES: usize = 12 + 8 + 4;
/// Frames sent between two calls.
const BURST: usize = 32;

/// Of so many frames of a message of 8 bytes, each of which the other side answers with one like it.
pub(crate) fn half_round_trips<L: Link + ?Sized>(
    [one, other]: [&mut L; 2],
    [path, back]: [&Path; 2],
    rounds: usize,
) -> Vec<Duration> {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let mut answers = 0;
                other.poll(Time(0), &mut |_| answers += 1);
                for _ in 0..answers {
                    // Without room for it the answer is lost.
                    let _ = other.send(back, SMALL_BYTES, &mut |_, memory| memory.fill(1));
                    other.flush();
                }
            }
        });
        let mut times = Vec::with_capacity(rounds);
        for _ in 0..rounds {
            let start = Instant::now();
            one.send(path, SMALL_BYTES, &mut |_, memory| memory.fill(1)).unwrap();
            one.flush();
            while one.poll(Time(0), &mut |_| ()) == 0 && start.elapsed() < PATIENCE {}
            times.push(start.elapsed() / 2);
        }
        done.store(true, Ordering::Relaxed);
        times
    })
}

/// What became of frames that one side sent without a pause.
pub(crate) struct Flood {
    pub(crate) sent: u64,
    pub(crate) received: usize,
    pub(crate) time: Duration,
}

/// Sends frames of which UDP carries `length` bytes, until that is enough by their number and the time since the first.
pub(crate) fn flood<L: Link + ?Sized>(
    [one, other]: [&mut L; 2],
    path: &Path,
    length: usize,
    is_enough: impl Fn(u64, Duration) -> bool,
) -> Flood {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            let mut packets = 0;
            while !done.load(Ordering::Relaxed) {
                packets += other.poll(Time(0), &mut |_| ());
            }
            packets
        });
        let (before, start) = (one.counters().sent, Instant::now());
        while !is_enough(one.counters().sent - before, start.elapsed()) {
            for _ in 0..BURST {
                if one.send(path, length, &mut |_, memory| memory.fill(1)).is_err() {
                    break;
                }
            }
            one.flush();
        }
        let time = start.elapsed();
        thread::sleep(PATIENCE);
        done.store(true, Ordering::Relaxed);
        Flood { sent: one.counters().sent - before, received: receiver.join().unwrap(), time }
    })
}
