//! Messages of every kind and several lengths, for tests of what moving them costs.

use ringway_verbs::{Access, Completion, Device, Operation, QueuePairNumber, ReceiveRequest, Status};

use super::{Fixture, Harness, Memory, Side, request};

/// Bytes of the longest message.
const LONGEST: u64 = 300_000;

/// A connected pair of queue pairs and memory for what goes from the left one to the right.
#[derive(Debug)]
pub struct Traffic {
    queue_pairs: [QueuePairNumber; 2],
    from: Memory,
    into: Memory,
}

impl Traffic {
    /// With registered memory on both sides.
    pub fn new<H: Harness>(fixture: &mut Fixture<H>, queue_pairs: [QueuePairNumber; 2]) -> Self {
        let [from, into] = Side::BOTH.map(|side| fixture.memory(side, 1 << 20, Access::ALL));
        Self { queue_pairs, from, into }
    }

    /// Sends, writes and reads, one message after the other; allocates nothing itself.
    pub fn round<H: Harness>(&self, harness: &mut H) {
        let [left, right] = self.queue_pairs;
        let remote = self.into.remote(0);
        let operations = [
            Operation::Send { immediate: Some(1) },
            Operation::Write { remote },
            Operation::WriteWithImmediate { remote, immediate: 2 },
            Operation::Read { remote },
        ];
        for length in [16, 5000, LONGEST] {
            for operation in operations {
                let is_received =
                    matches!(operation, Operation::Send { .. } | Operation::WriteWithImmediate { .. });
                if is_received {
                    let receive = ReceiveRequest { id: 1, local: self.into.slice(0, LONGEST) };
                    harness.device(Side::Right).post_receive(right, &receive).expect("posted");
                }
                let post = request(2, operation, &[self.from.slice(0, length)]);
                harness.device(Side::Left).post_send(left, &post).expect("posted");
                complete(harness, 1 + usize::from(is_received));
            }
        }
    }
}

/// Polls until so many requests are done.
fn complete<H: Harness>(harness: &mut H, mut missing: usize) {
    while missing > 0 {
        for side in Side::BOTH {
            let now = harness.now();
            let mut batch = [Completion::EMPTY; 4];
            let count = harness.device(side).poll(now, &mut batch);
            harness.device(side).flush();
            assert!(batch[..count].iter().all(|completion| completion.status == Status::Success));
            missing -= count;
        }
    }
}
