//! Once warm, nothing allocates on the data path.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on must fail"
)]

mod common;

use allocation_counter::{measure, opt_out};
use common::oracle::{Job, collectives};
use common::{Setup, World};
use ringway_engine::{EngineConfig, LocalRank, PointToPoint, Request, Token};
use ringway_plan::Tuning;
use ringway_sim::SimDevice;
use ringway_verbs::{
    Access, Capabilities, Completion, ConnectError, Device, Endpoint, LocalKey, MemoryKeys, PostError,
    QueuePairConfig, QueuePairError, QueuePairNumber, QueuePairState, ReceiveRequest, RegisterError,
    RemoteKey, Role, Time, WorkRequest,
};

/// Allocations of what the engine does, and not of the test's own bookkeeping.
fn counted<T>(act: impl FnOnce() -> T) -> (T, u64) {
    let mut result = None;
    let allocations = measure(|| result = Some(act())).count_total;
    (result.expect("it was done"), allocations)
}

fn uncounted<T>(act: impl FnOnce() -> T) -> T {
    let mut result = None;
    opt_out(|| result = Some(act()));
    result.expect("it was done")
}

/// The simulated device allocates for its own sake, which is not counted.
#[derive(Debug)]
struct Quiet<'a>(&'a mut SimDevice);

impl Device for Quiet<'_> {
    type Region = <SimDevice as Device>::Region;

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn register(&mut self, region: Self::Region, access: Access) -> Result<MemoryKeys, RegisterError> {
        self.0.register(region, access)
    }

    fn deregister(&mut self, key: LocalKey) -> Result<(), RegisterError> {
        self.0.deregister(key)
    }

    fn is_busy(&self, key: LocalKey) -> bool {
        self.0.is_busy(key)
    }

    fn remote_key(&self, queue_pair: QueuePairNumber, key: LocalKey) -> Option<RemoteKey> {
        self.0.remote_key(queue_pair, key)
    }

    fn create_queue_pair(&mut self, config: QueuePairConfig) -> Result<QueuePairNumber, QueuePairError> {
        self.0.create_queue_pair(config)
    }

    fn endpoint(&self, queue_pair: QueuePairNumber) -> Result<Endpoint, QueuePairError> {
        self.0.endpoint(queue_pair)
    }

    fn connect(
        &mut self,
        queue_pair: QueuePairNumber,
        peer: &Endpoint,
        role: Role,
    ) -> Result<(), ConnectError> {
        self.0.connect(queue_pair, peer, role)
    }

    fn state(&self, queue_pair: QueuePairNumber) -> Option<QueuePairState> {
        self.0.state(queue_pair)
    }

    fn fail_queue_pair(&mut self, queue_pair: QueuePairNumber) {
        self.0.fail_queue_pair(queue_pair);
    }

    fn destroy_queue_pair(&mut self, queue_pair: QueuePairNumber) -> Result<(), QueuePairError> {
        self.0.destroy_queue_pair(queue_pair)
    }

    fn post_send(&mut self, queue_pair: QueuePairNumber, request: &WorkRequest) -> Result<(), PostError> {
        uncounted(|| self.0.post_send(queue_pair, request))
    }

    fn post_receive(
        &mut self,
        queue_pair: QueuePairNumber,
        request: &ReceiveRequest,
    ) -> Result<(), PostError> {
        uncounted(|| self.0.post_receive(queue_pair, request))
    }

    fn flush(&mut self) {
        uncounted(|| self.0.flush());
    }

    fn poll(&mut self, now: Time, completions: &mut [Completion]) -> usize {
        uncounted(|| self.0.poll(now, completions))
    }

    fn deadline(&self) -> Option<Time> {
        self.0.deadline()
    }

    fn event_descriptor(&self) -> Option<i32> {
        self.0.event_descriptor()
    }

    fn arm(&mut self) -> bool {
        self.0.arm()
    }
}

/// Turns of all nodes until nothing is outstanding; returns what they allocated.
fn settle(world: &mut World) -> u64 {
    let mut allocated = 0;
    for _ in 0..20_000 {
        let mut busy = false;
        for node in &mut world.nodes {
            let now = Time(world.now);
            let mut device = Quiet(&mut node.device.as_mut().unwrap().inner);
            let mut completions = [Completion::EMPTY; 16];
            let n = device.poll(now, &mut completions);
            allocated += counted(|| {
                node.engine.complete(now, &completions[..n], &mut device, &mut node.memory);
                node.engine.advance(now, &mut device, &mut node.memory);
                while let Some(finished) = node.engine.next_finished() {
                    assert!(finished.outcome.is_ok());
                }
            })
            .1;
            busy |= node.engine.has_work();
        }
        world.now += 1_000;
        if !busy {
            return allocated;
        }
    }
    panic!("a hang");
}

fn messages(world: &mut World, round: u64) -> u64 {
    let mut allocated = 0;
    let ranks = world.layout.ranks();
    for from in 0..ranks {
        let to = (from + 1) % ranks;
        for (length, at) in [(8_u64, 0_u64), (5_000, 10_000), (100_000, 100_000)] {
            let send = PointToPoint::Send { peer: to, tag: at, buffer: world.buffer(from, at, length) };
            let buffer = world.buffer(to, (1 << 20) + at, length);
            let receive = PointToPoint::Receive { peer: None, tag: at, buffer };
            let mut both = [(from, send), (to, receive)];
            if round.is_multiple_of(2) {
                both.reverse();
            }
            for (rank, request) in both {
                let (node, local) = (world.layout.node_of(rank) as usize, world.layout.local_index(rank));
                let (now, node) = (Time(world.now), &mut world.nodes[node]);
                let id = node.ids[0];
                let submit = || {
                    let request = Request::PointToPoint(request);
                    node.engine.submit(id, LocalRank(local), Token(0), request, now)
                };
                let (taken, more) = counted(submit);
                assert_eq!(taken, Ok(()));
                allocated += more;
            }
        }
    }
    allocated + settle(world)
}

#[test]
fn the_data_path_does_not_allocate() {
    for layout in [&[0_u32, 0][..], &[0, 1, 1, 2]] {
        measured(layout, &Setup { region: 4 << 20, ..Setup::new(layout) });
    }
}

#[test]
fn listed_plans_do_not_allocate() {
    let layout = [0, 1, 1, 2];
    let configure: fn(&mut EngineConfig) = |config| config.plans = common::listed(&[3], &Tuning::default());
    measured(&layout, &Setup { region: 4 << 20, configure, ..Setup::new(&layout) });
}

fn measured(layout: &[u32], setup: &Setup) {
    let mut world = World::new(setup);
    let ranks = layout.len() as u32;
    let (mut cold, mut warm) = (0, 0);
    let mut last = String::new();
    for round in 0..8 {
        let mut allocated = 0;
        for operation in collectives() {
            for count in [1, 20_000] {
                let job = Job::new(operation, count, ranks, 1);
                job.prepare(&world);
                for rank in 0..ranks {
                    job.call(&mut world, 0, rank);
                }
                let more = settle(&mut world);
                if more > 0 {
                    last = format!("{operation} x{count} in round {round}");
                }
                allocated += more;
            }
        }
        let more = messages(&mut world, round);
        if more > 0 {
            last = format!("messages in round {round}");
        }
        let total = if round < 4 { &mut cold } else { &mut warm };
        *total += allocated + more;
    }
    assert!(cold > 0, "{layout:?}: nothing is counted");
    assert_eq!(warm, 0, "{layout:?}: last {last}");
}
