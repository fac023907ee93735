//! Boards, by ranks that speak the protocol by hand: who gets one, whose work counts, and ranks that stop or end with a
//! piece of the daemon's work in hand.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails"
)]

mod common;

use std::{
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use common::{
    Client, Daemon, PATIENCE, Rank, Region, allreduce, assert_serves, folder, get, join, key_file, node, put,
};
use ringway_abi::{
    Status, UniqueId,
    control::{RefusalKind, Reply, Request},
    descriptor::Completion,
};
use ringway_cell::{
    Place, Regions,
    board::{Board, Claimed, Found, Helped, SCRATCH, Worker, board_bytes},
};
use ringway_mem::{Mapping, Protection, Window};
use rustix::process::{Pid, Signal, kill_process};

const ROLE: &str = "RINGWAY_BOARD_SOCKET";
const ID: &str = "RINGWAY_BOARD_ID";
const MARK: &str = "RINGWAY_BOARD_MARK";

/// Elements of what is combined: enough for dozens of pieces.
const COUNT: u64 = 1 << 20;
const BYTES: u64 = COUNT * 8;
const RANKS: u32 = 4;

/// A rank with an input in the first half of its region and an output in the second.
struct Party {
    client: Client,
    rank: Rank,
    region: Region,
}

/// Two nodes, and their folder.
struct Nodes {
    daemons: [Daemon; 2],
    folder: PathBuf,
}

impl Nodes {
    fn new(isolation: &str) -> Self {
        let folder = folder();
        let key = key_file(&folder, "key", "a7");
        let daemons = [(); 2].map(|()| node(&key, |s| s.isolation = Some(isolation.to_owned())));
        Self { daemons, folder }
    }

    fn of(&self, rank: u32) -> &Daemon {
        &self.daemons[rank as usize / 2]
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn ask_to_join(client: &mut Client, id: UniqueId, rank: u32, timeout_ms: u32) -> u32 {
    let join = ringway_abi::control::Join { operation_timeout_ms: timeout_ms, ..join(id, rank, RANKS) };
    client.send(Request::Join(join), &[])
}

/// Two ranks on each node, of which `absent` is made by somebody else.
fn parties(
    nodes: &Nodes,
    timeout_ms: u32,
    absent: impl FnOnce(UniqueId) -> Option<u32>,
) -> Vec<Option<Party>> {
    let mut clients: Vec<_> = (0..RANKS).map(|rank| Client::connect(&nodes.of(rank).socket)).collect();
    let id = clients[0].new_id_for(true);
    let absent = absent(id);
    let numbers: Vec<_> = clients
        .iter_mut()
        .zip(0..)
        .map(|(client, rank)| (absent != Some(rank)).then(|| ask_to_join(client, id, rank, timeout_ms)))
        .collect();
    let joined = clients.into_iter().zip(numbers);
    joined.map(|(client, number)| number.map(|number| party(client, number))).collect()
}

fn party(mut client: Client, number: u32) -> Party {
    let rank = client.joined(number);
    let region = client.region(2 * BYTES);
    (0..COUNT).for_each(|at| put(&region.mapping, at * 8, at));
    Party { client, rank, region }
}

impl Party {
    fn call(&mut self, token: u32) {
        let handle = self.region.handle;
        self.rank.submit(&allreduce(token, (handle, 0), (handle, BYTES), COUNT));
    }

    fn check(&self) {
        (0..COUNT).step_by(97).for_each(|at| {
            assert_eq!(get(&self.region.mapping, BYTES + at * 8), u64::from(RANKS) * at);
        });
    }

    fn worker(&self, local: u32) -> Worker {
        let [board, _] = self.rank.board.as_ref().expect("a board");
        Worker::new(Board::attach(Arc::clone(board)).expect("attach"), local)
    }
}

/// Somewhere, for those who claim what they will not do.
struct Anywhere(Mapping);

impl Anywhere {
    fn new() -> Self {
        Self(Mapping::private(64 << 10).expect("map"))
    }
}

impl Regions for Anywhere {
    fn window(&self, _: u32, _: Place, length: u64) -> Option<Window<'_>> {
        self.0.window(0, length)
    }
}

/// Waits for a piece and claims it.
fn claim(worker: &mut Worker) -> Claimed {
    let (anywhere, mut operands, deadline) = (Anywhere::new(), Vec::new(), Instant::now() + PATIENCE);
    worker.set_present(true);
    loop {
        let mut windows = Vec::new();
        if let Found::Claimed(claimed) = worker.claim(&anywhere, &mut operands, &mut windows) {
            worker.set_present(false);
            return claimed;
        }
        assert!(Instant::now() < deadline, "nothing was offered");
        thread::yield_now();
    }
}

fn completion(party: &mut Party) -> Completion {
    party.rank.completion(PATIENCE).expect("a completion")
}

fn release(party: &mut Party) -> Result<(), RefusalKind> {
    match party.client.ask(Request::ReleaseRegion { region: party.region.handle }, &[]) {
        Reply::Done => Ok(()),
        Reply::Refused { kind, .. } => Err(kind),
        other => panic!("{other:?}"),
    }
}

/// What a rank of the first node has mapped.
struct Mapped {
    regions: Vec<(u32, u64, Mapping)>,
    scratch: Arc<Mapping>,
}

impl Regions for Mapped {
    fn window(&self, rank: u32, place: Place, length: u64) -> Option<Window<'_>> {
        if place.region == SCRATCH {
            return self.scratch.window(place.offset, length);
        }
        let mut regions = self.regions.iter();
        let (.., mapping) = regions.find(|(of, handle, _)| (*of, *handle) == (rank, place.region))?;
        mapping.window(place.offset, length)
    }
}

fn map_region(party: &mut Party, rank: u32, region: u64) -> Result<Mapping, RefusalKind> {
    let communicator = party.rank.joined.communicator;
    let number = party.client.send(Request::MapRegion { communicator, rank, region }, &[]);
    let (reply, files) = party.client.reply(number);
    match reply {
        Reply::Region { length, .. } => {
            let file = files.first().expect("its file");
            let length = usize::try_from(length).expect("bytes");
            Ok(Mapping::shared(std::os::fd::AsFd::as_fd(file), length, Protection::ReadWrite).expect("map"))
        }
        Reply::Refused { kind, .. } => Err(kind),
        other => panic!("{other:?}"),
    }
}

#[test]
fn ranks_that_share_memory_get_a_board_where_there_are_several_nodes() {
    for (isolation, expected) in [("cell", true), ("strict", false)] {
        let nodes = Nodes::new(isolation);
        for party in parties(&nodes, 0, |_| None).into_iter().flatten() {
            assert_eq!((party.rank.board.is_some(), party.rank.cell.is_some()), (expected, false));
            if let Some([board, scratch]) = &party.rank.board {
                assert_eq!((board.length() as u64, scratch.length()), (board_bytes(), 4 << 20));
            }
        }
    }
    let daemon = Daemon::start();
    let alone = Client::connect(&daemon.socket).alone();
    assert!(alone.board.is_none() && alone.cell.is_some());
}

#[test]
fn what_a_rank_does_counts_and_the_result_is_exact() {
    let nodes = Nodes::new("cell");
    let mut parties: Vec<_> = parties(&nodes, 0, |_| None).into_iter().flatten().collect();
    let handles: Vec<_> = parties.iter().map(|party| party.region.handle).collect();
    let regions = (0..2).map(|rank| {
        let handle = handles[rank as usize];
        (rank, handle, map_region(&mut parties[0], rank, handle).expect("a region of this node"))
    });
    let regions: Vec<_> = regions.collect();
    assert!(map_region(&mut parties[0], 2, handles[2]).is_err(), "rank 2 is on another node");
    assert!(map_region(&mut parties[0], 0, handles[0] ^ 1).is_err());
    let [_, scratch] = parties[0].rank.board.as_ref().expect("a board");
    let mapped = Mapped { regions, scratch: Arc::clone(scratch) };
    let mut worker = parties[0].worker(0);
    worker.set_present(true);
    let mut bytes = 0;
    for token in 0..20 {
        parties.iter_mut().for_each(|party| party.call(token));
        let deadline = Instant::now() + PATIENCE;
        loop {
            match worker.work(&mapped) {
                Helped::Did { bytes: did } => {
                    bytes += did;
                    parties[0].rank.ring();
                }
                Helped::Nothing => thread::yield_now(),
                unmapped => panic!("{unmapped:?}"),
            }
            if parties[0].rank.completion(Duration::ZERO).is_some() {
                break;
            }
            assert!(Instant::now() < deadline, "the operation does not end");
        }
        parties[1..].iter_mut().for_each(|party| assert_eq!(party.rank.wait().1, Some(Status::Success)));
        parties.iter().for_each(Party::check);
    }
    let status = parties[0].client.status();
    assert!(bytes > 0, "nothing was left to the rank");
    assert_eq!((status.counters.rank_bytes, status.communicators[0].rank_bytes), (bytes, bytes));
    assert_eq!(parties[2].client.status().counters.rank_bytes, 0, "nobody waited there");
    // What is released is to be forgotten.
    let before = worker.releases();
    assert_eq!(release(&mut parties[1]), Ok(()));
    assert!(worker.releases() > before);
}

#[test]
fn a_rank_that_stops_with_a_piece_is_named_and_buffers_stay_until_it_lets_go() {
    let nodes = Nodes::new("cell");
    let mut parties: Vec<_> = parties(&nodes, 2_000, |_| None).into_iter().flatten().collect();
    let mut worker = parties[1].worker(1);
    let claimer = thread::spawn(move || claim(&mut worker));
    parties.iter_mut().for_each(|party| party.call(7));
    let claimed = claimer.join().expect("no panic");
    for (number, party) in parties.iter_mut().enumerate() {
        let Completion { token, status, held, rank, .. } = completion(party);
        assert_eq!((token, Status::from_code(status)), (7, Some(Status::TimedOut)));
        // On the other node nobody is at anything.
        assert_eq!(held, number < 2, "rank {number}");
        let _ = rank;
        let text = party.client.explain(&party.rank, 7);
        assert!(text.contains("rank 1 has not called it"), "{text}");
        assert_eq!(release(party), if held { Err(RefusalKind::Busy) } else { Ok(()) });
    }
    // It goes on, and comes to its end.
    claimed.finish(true);
    let deadline = Instant::now() + PATIENCE;
    while release(&mut parties[0]).is_err() {
        assert!(Instant::now() < deadline, "the region is not released");
        thread::sleep(Duration::from_millis(5));
    }
    nodes.daemons.iter().for_each(|daemon| assert_serves(&daemon.socket));
}

/// Not a test of its own: a rank in a process of its own that ends with a piece in hand.
#[test]
fn role() {
    let Ok(socket) = std::env::var(ROLE) else { return };
    let id: UniqueId = std::env::var(ID).expect("an id").parse().expect("an id");
    let mut client = Client::connect(Path::new(&socket));
    let number = ask_to_join(&mut client, id, 1, 0);
    let mut party = party(client, number);
    let mut worker = party.worker(1);
    let claimer = thread::spawn(move || claim(&mut worker));
    party.call(1);
    let _claimed = claimer.join().expect("no panic");
    std::fs::write(std::env::var(MARK).expect("a file"), "held").expect("mark");
    thread::sleep(Duration::from_secs(600));
}

struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Process {
    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.0.id().try_into().expect("a pid")).expect("a pid");
        kill_process(pid, signal).expect("signal");
    }
}

#[test]
fn a_rank_that_is_killed_with_a_piece_is_named_and_buffers_come_back() {
    // Stopped first, it holds the piece for as long as it likes; its death ends the wait.
    for stopped in [false, true] {
        let nodes = Nodes::new("cell");
        let mark = nodes.folder.join("mark");
        let mut child = None;
        let parties = parties(&nodes, 0, |id| {
            let mut command = Command::new(std::env::current_exe().expect("this program"));
            command.args(["--exact", "role", "--nocapture"]).env(ROLE, &nodes.of(1).socket);
            command.env(ID, id.to_string()).env(MARK, &mark).stdout(Stdio::null()).stderr(Stdio::null());
            child = Some(Process(command.spawn().expect("spawn")));
            Some(1)
        });
        let mut parties: Vec<_> = parties.into_iter().flatten().collect();
        parties.iter_mut().for_each(|party| party.call(1));
        let (child, deadline) = (child.expect("a process"), Instant::now() + PATIENCE);
        while !mark.exists() {
            assert!(Instant::now() < deadline, "the rank got no piece");
            thread::sleep(Duration::from_millis(1));
        }
        if stopped {
            child.signal(Signal::STOP);
            assert_eq!(parties[0].rank.completion(Duration::from_millis(300)), None, "somebody may write");
        }
        let killed = Instant::now();
        child.signal(Signal::KILL);
        for party in &mut parties {
            let completion = completion(party);
            assert_eq!(Status::from_code(completion.status), Some(Status::RankFailed));
            assert!(!completion.held, "it writes no more");
            let text = party.client.explain(&party.rank, 1);
            assert!(text.contains("rank 1 failed: its process ended"), "{text}");
        }
        // 100 ms is promised on a machine with room; what is checked is that no timeout is behind it.
        assert!(killed.elapsed() < Duration::from_secs(5), "{:?}", killed.elapsed());
        parties.iter_mut().for_each(|party| assert_eq!(release(party), Ok(())));
    }
}

#[test]
fn nonsense_on_a_board_ends_its_communicator_only() {
    let nodes = Nodes::new("cell");
    let mut parties: Vec<_> = parties(&nodes, 10_000, |_| None).into_iter().flatten().collect();
    let mut worker = parties[0].worker(0);
    worker.set_present(true);
    let [board, _] = parties[0].rank.board.clone().expect("a board");
    let vandal = thread::spawn(move || {
        let until = Instant::now() + Duration::from_millis(500);
        let junk = vec![0xa5; usize::try_from(board_bytes()).expect("bytes") - 4096];
        while Instant::now() < until {
            // Everything but the header.
            board.window(4096, junk.len() as u64).expect("inside").write(&junk);
        }
    });
    for token in 0..50 {
        parties.iter_mut().for_each(|party| party.call(token));
        let ended: Vec<_> = parties.iter_mut().map(|party| completion(party).status).collect();
        if ended.iter().any(|status| *status != Status::Success.code()) {
            break;
        }
    }
    vandal.join().expect("no panic");
    nodes.daemons.iter().for_each(|daemon| assert_serves(&daemon.socket));
}
