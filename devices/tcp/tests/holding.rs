//! Acknowledgements that wait because more seems to come: they go when it does not.
#![expect(clippy::unwrap_used, reason = "the parts of a test")]

#[macro_use]
mod drivers;
mod victim;

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use ringway_mem::Mapping;
use ringway_tcp::TcpDriver;
use ringway_tcp::frame::{Frame, HEADER_LENGTH};
use ringway_verbs::{Access, Completion, Device, Time};
use victim::Victim;

const LENGTH: usize = 16 << 10;
/// How long an acknowledgement may wait, in nanoseconds.
const REPLY_NS: u64 = 20_000;

/// A device that holds an acknowledgement, its peer and the time.
struct Holding {
    victim: Victim,
    stream: TcpStream,
    now: u64,
}

impl Holding {
    /// The peer has sent a message and the beginning of another, of which the device has not read all.
    fn new(driver: TcpDriver) -> Self {
        let (mut victim, mut stream) = Victim::attacked(driver);
        let mapping = Arc::new(Mapping::private(LENGTH).unwrap());
        let keys = victim.device.register(mapping, Access::ALL).unwrap();
        let write = |immediate| {
            let frame = Frame::Write {
                length: LENGTH as u64,
                remote: victim::remote(keys, 0),
                immediate,
                asks: true,
            };
            let mut bytes = victim::header(frame).to_vec();
            bytes.resize(HEADER_LENGTH + LENGTH, 1);
            bytes
        };
        // After a long message little is read ahead.
        stream.write_all(&write(None)).unwrap();
        victim.until("it is here", |victim| victim.counter("bytes_received") >= LENGTH as u64);
        (0..10).for_each(|_| victim.turn());
        stream.set_nonblocking(true).unwrap();
        let now = u64::try_from(victim.start.elapsed().as_nanos()).unwrap();
        let mut holding = Self { victim, stream, now };
        while holding.has_answer() {}
        let mut more = write(Some(7));
        more.extend_from_slice(write(None).get(..HEADER_LENGTH + 2048).unwrap());
        holding.stream.write_all(&more).unwrap();
        let polls = (0..100).find(|_| holding.poll() > 0);
        assert!(polls.is_some(), "the message did not come");
        assert!(!holding.has_answer(), "it was acknowledged alone");
        holding
    }

    fn poll(&mut self) -> usize {
        self.victim.device.poll(Time(self.now), &mut [Completion::EMPTY; 1])
    }

    /// Whether the device has sent something since.
    fn has_answer(&mut self) -> bool {
        let mut bytes = [0; HEADER_LENGTH];
        match self.stream.read(&mut bytes) {
            Ok(count) => count > 0,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                false
            }
        }
    }
}

with_each_driver!(goes_after_some_polls, goes_after_some_time, goes_before_the_caller_sleeps);

fn goes_after_some_polls(driver: TcpDriver) {
    let mut holding = Holding::new(driver);
    let polls = (1..100).find(|_| {
        holding.poll();
        holding.has_answer()
    });
    assert!(polls.is_some_and(|polls| polls <= 4), "{polls:?} polls");
}

fn goes_after_some_time(driver: TcpDriver) {
    let mut holding = Holding::new(driver);
    holding.now += REPLY_NS;
    holding.poll();
    assert!(holding.has_answer());
}

fn goes_before_the_caller_sleeps(driver: TcpDriver) {
    let mut holding = Holding::new(driver);
    holding.victim.device.arm();
    assert!(holding.has_answer());
    let mut holding = Holding::new(driver);
    if holding.victim.device.block(Some(Duration::from_millis(1))) {
        // It may have found something to poll, and left it to that to hand over what it began.
        holding.poll();
        assert!(holding.has_answer());
    }
}
