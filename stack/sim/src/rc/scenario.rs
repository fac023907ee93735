//! What a seed means.

use ringway_rc::{Configuration, Failure, ReceiveAttributes, Retries, SendAttributes};
use ringway_verbs::{Access, QueuePairNumber, Status};
use ringway_wire::{self as wire, PathMtu, Psn, RnrTimer};

use super::{
    Counts, Faults, NodeMemory, PacketNetwork,
    stream::{Misdeed, Places, SOURCE, Stream, WINDOW, WORDS},
    world::{Counter, End, Settings, World},
};
use crate::Random;

/// Everything must be finished by then, in virtual nanoseconds.
const LIMIT_NS: u64 = 60_000_000_000;
/// The same where a rule is broken: such worlds stand still, and others have long ended by then.
#[cfg(feature = "mutations")]
const MUTATED_LIMIT_NS: u64 = 1_000_000_000;

/// What a run came to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Report {
    /// Packets.
    pub packets: Counts,
    /// Requests that were posted.
    pub requests: u64,
    /// How long it took, in virtual nanoseconds.
    pub duration_ns: u64,
    /// Streams whose first failure was a refusal by the peer, as had been planned.
    pub refusals: u64,
    /// Streams that ended because the peer was not heard of any more.
    pub losses: u64,
    /// Streams that ended because the peer posted no receive for too long.
    pub unready: u64,
    /// Times that a send queue was drained.
    pub drains: u64,
}

/// What goes wrong in a world besides what the network does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trouble {
    None,
    Misdeed(Misdeed),
    /// An end is moved to the error state.
    Failed,
    /// The network stops.
    Cut,
}

impl Trouble {
    /// Whether an end may fail. What happens to the first connection is nothing to others.
    fn may_fail(self, end: usize) -> bool {
        match self {
            Self::None => false,
            Self::Misdeed(_) | Self::Failed => end < 2,
            Self::Cut => true,
        }
    }
}

fn faults(random: &mut Random) -> Faults {
    let latency_ns = random.pick(&[500, 2_000, 10_000]);
    let some = |random: &mut Random, most| if random.per_mille(600) { random.below(most) } else { 0 };
    match random.below(4) {
        0 => Faults { latency_ns, ..Faults::NONE },
        1 => Faults { latency_ns, loss: 10, reorder: 5, jitter_ns: 0, ..Faults::NONE },
        _ => Faults {
            loss: some(random, 201),
            duplicate: some(random, 100),
            corrupt: some(random, 50),
            reorder: some(random, 200),
            mark: some(random, 50),
            jitter_ns: some(random, latency_ns),
            latency_ns,
            ..Faults::NONE
        },
    }
}

fn settings(random: &mut Random, trouble: Trouble) -> [Settings; 2] {
    let path_mtu = random.pick(&[
        PathMtu::Mtu256,
        PathMtu::Mtu256,
        PathMtu::Mtu512,
        PathMtu::Mtu1024,
        PathMtu::Mtu2048,
        PathMtu::Mtu4096,
    ]);
    // Often just below the wrap.
    let psn = |random: &mut Random| {
        let back = random.below(60) as u32;
        if random.per_mille(600) { Psn::ZERO.minus(back) } else { Psn::new(random.next() as u32) }
    };
    let psns = [psn(random), psn(random)];
    let reads = [random.between(1, 4) as u8, random.between(1, 4) as u8];
    let window = random.pick(&[1, 4, 16, 128]);
    let selective = random.per_mille(500);
    let selective_window = if selective { random.pick(&[8, 64, 256]) } else { 0 };
    // A peer that is gone must be found out.
    let retries = if trouble == Trouble::Cut { Retries::Times(7) } else { Retries::Forever };
    [0, 1].map(|end| Settings {
        configuration: Configuration {
            number: QueuePairNumber(2),
            send_depth: random.between(1, 24) as u32,
            receive_depth: random.between(1, 12) as u32,
            responder_resources: reads[end],
            selective_window,
            path_mtu_max: PathMtu::Mtu4096,
        },
        receive: ReceiveAttributes {
            path_mtu,
            destination: wire::QueuePair::default(),
            receive_psn: psns[end ^ 1],
            max_dest_rd_atomic: reads[end],
            min_rnr_timer: RnrTimer::at_least(random.between(10, 60) as u32),
            selective,
        },
        send: SendAttributes {
            timeout: random.between(4, 6) as u8,
            retries,
            rnr_retries: match random.per_mille(200) {
                true => Retries::Times(random.between(1, 6) as u8),
                false => Retries::Forever,
            },
            send_psn: psns[end],
            max_rd_atomic: reads[end ^ 1],
            window,
            solicited: false,
            delay_slack_ns: 20_000,
            line_rate: 1_250_000_000,
        },
    })
}

fn pattern(random: &mut Random, length: usize) -> Vec<u8> {
    (0..length).map(|_| random.next() as u8).collect()
}

/// Whom a stream writes to and with what.
struct Prepared {
    stream: Stream,
    window: Vec<u8>,
}

fn prepare(
    random: &mut Random,
    nodes: &mut [NodeMemory],
    from: usize,
    to: usize,
    counter: Counter,
    misdeed: Option<Misdeed>,
) -> Prepared {
    let total = if misdeed.is_none() && random.per_mille(100) { 0 } else { random.between(1, 60) as usize };
    let window = pattern(random, WINDOW);
    let source = pattern(random, SOURCE);
    let write = Access { remote_read: true, remote_write: true, ..Access::LOCAL };
    let atomic = Access { remote_atomic: true, ..Access::LOCAL };
    let places = Places {
        source: nodes[from].register(source, Access::default()).0,
        landing: nodes[from].register(vec![0; Stream::landing_bytes(total)], Access::LOCAL).0,
        window: nodes[to].register(window.clone(), write),
        words: nodes[to].register(vec![0; WORDS * 8], atomic),
        counter: counter.1,
    };
    Prepared { stream: Stream::new(random.fork(), places, total, misdeed, window.clone()), window }
}

/// Lives through the world of this seed.
///
/// # Errors
/// With what was wrong.
pub fn run(seed: u64) -> Result<Report, String> {
    run_with(seed, LIMIT_NS, |_| {})
}

/// As [`run`], with queue pairs that break a rule.
///
/// # Errors
/// With what was wrong.
#[cfg(feature = "mutations")]
pub fn run_mutated(seed: u64, mutation: ringway_rc::Mutation) -> Result<Report, String> {
    run_with(seed, MUTATED_LIMIT_NS, |world| {
        world.ends.iter_mut().for_each(|end| end.queue_pair.mutate(mutation));
    })
}

fn run_with(seed: u64, limit_ns: u64, change: impl FnOnce(&mut World)) -> Result<Report, String> {
    let random = &mut Random::new(seed);
    let node_count = random.between(2, 3) as usize;
    let mut nodes: Vec<NodeMemory> = (0..node_count).map(|_| NodeMemory::default()).collect();
    let atomic = Access { remote_atomic: true, ..Access::LOCAL };
    let counters: Vec<Counter> = nodes.iter_mut().map(|node| node.register(vec![0; 8], atomic)).collect();
    let faults = faults(random);
    let trouble = match random.below(10) {
        0 => Trouble::Misdeed(Misdeed::Access),
        1 => Trouble::Misdeed(Misdeed::TooLong),
        2 => Trouble::Failed,
        3 => Trouble::Cut,
        _ => Trouble::None,
    };
    let mut world = World::new(Vec::new(), PacketNetwork::new(node_count, faults, random.fork()));
    let (mut windows, mut mtus) = (Vec::new(), Vec::new());
    let mut ends = Vec::new();
    for connection in 0..random.between(1, 3) {
        let settings = settings(random, trouble);
        let between =
            [random.below(2) as usize, node_count - 1 - random.below(node_count as u64 - 1) as usize];
        let between = if between[0] == between[1] { [0, 1] } else { between };
        for end in [0, 1] {
            let (from, to) = (between[end], between[end ^ 1]);
            let misdeed = match trouble {
                Trouble::Misdeed(misdeed) if connection == 0 && end == 0 => Some(misdeed),
                _ => None,
            };
            let prepared = prepare(random, &mut nodes, from, to, counters[to], misdeed);
            windows.push(prepared.window);
            mtus.push(settings[end].receive.path_mtu.bytes());
            ends.push((from, settings[end], prepared.stream, random.fork()));
        }
    }
    world.nodes = nodes;
    for (node, settings, stream, random) in ends {
        world.add(node, &settings, stream, random)?;
    }
    let when = random.below(400_000);
    match trouble {
        Trouble::Failed => world.ends[0].fails_at = Some(when),
        Trouble::Cut => world.network.cut(when),
        Trouble::None | Trouble::Misdeed(_) => {}
    }
    change(&mut world);
    world.run(limit_ns)?;
    finish(&world, &windows, &mtus, &counters, trouble)
}

/// Checks what can only be checked at the end.
fn finish(
    world: &World,
    windows: &[Vec<u8>],
    mtus: &[usize],
    counters: &[Counter],
    trouble: Trouble,
) -> Result<Report, String> {
    let mut report = Report { packets: world.network.counts, duration_ns: world.now, ..Report::default() };
    let mut unready = vec![false; world.ends.len()];
    for (index, end) in world.ends.iter().enumerate() {
        if is_unready(end).map_err(|error| format!("end {index}: {error}"))? {
            report.unready += 1;
            (unready[index], unready[index ^ 1]) = (true, true);
        }
    }
    for (index, end) in world.ends.iter().enumerate() {
        let peer = &world.ends[index ^ 1];
        let memory = &world.nodes[peer.node];
        end.stream
            .check_memory(&windows[index], mtus[index], memory)
            .map_err(|error| format!("end {index}: {error}"))?;
        report.requests += end.stream.posted() as u64;
        report.drains += end.draining.times;
        match end.stream.failed {
            None => {}
            Some(_) if unready[index] => {}
            Some(status) if !trouble.may_fail(index) => {
                return Err(format!("end {index} failed for no reason, with {status:?}"));
            }
            Some(Status::RemoteAccess | Status::RemoteInvalidRequest) => report.refusals += 1,
            Some(Status::TransportLost) => report.losses += 1,
            Some(_) => {}
        }
    }
    if trouble == Trouble::None && report.unready == 0 {
        for (node, counter) in counters.iter().enumerate() {
            check_counter(world, node, *counter).map_err(|error| format!("node {node}: {error}"))?;
        }
    }
    Ok(report)
}

/// Whether an end gave up because the peer posted no receive. It must have heard so often enough.
fn is_unready(end: &End) -> Result<bool, String> {
    if end.queue_pair.failure() != Some(Failure::RnrRetriesExceeded) {
        return Ok(false);
    }
    let heard = end.queue_pair.counters().rnr_naks_received;
    match end.rnr_retries {
        Retries::Times(limit) if heard > u64::from(limit) => Ok(true),
        limit => Err(format!("it gave up after {heard} refusals for want of a receive, and had {limit:?}")),
    }
}

/// The old values that the streams saw must form one chain from zero to what stands there now.
fn check_counter(world: &World, node: usize, counter: Counter) -> Result<(), String> {
    let bytes = world.nodes[node].bytes(counter.0);
    let now = bytes.try_into().map(u64::from_ne_bytes).map_err(|_| "no word".to_owned())?;
    let mut seen: Vec<(u64, u64)> = world
        .ends
        .iter()
        .enumerate()
        .filter(|(index, _)| world.ends[index ^ 1].node == node)
        .flat_map(|(_, end)| end.stream.counted.iter().copied())
        .collect();
    seen.sort_unstable();
    let mut value = 0;
    for (old, add) in seen {
        if old != value {
            return Err(format!("a FETCH_ADD saw {old} where the others make {value}"));
        }
        value += add;
    }
    if value == now { Ok(()) } else { Err(format!("the counter is {now} where {value} was added")) }
}
