//! No operation allocates once it has run a few times: not in the client that submits and waits, and not in the
//! daemon's engine thread. Daemons and clients are threads of this process, so that its allocator sees them all.
#![expect(clippy::expect_used, clippy::unwrap_used, reason = "a test panics when something is wrong")]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    fs,
    net::TcpListener,
    os::unix::fs::{DirBuilderExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    sync::{
        Barrier,
        atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use ringway_client::{Buffer, Client, Communicator, Error, Reduction, UniqueId};
use ringway_service::{ServiceError, Settings, StopHandle, stop_pair};

/// The most threads that are told apart; each takes a slot at its first allocation.
const SLOTS: usize = 256;

static TAKEN: AtomicUsize = AtomicUsize::new(0);
static THREADS: [AtomicI32; SLOTS] = [const { AtomicI32::new(0) }; SLOTS];
static COUNTS: [AtomicU64; SLOTS] = [const { AtomicU64::new(0) }; SLOTS];

thread_local! {
    static SLOT: Cell<Option<usize>> = const { Cell::new(None) };
}

/// The system's allocator, counting for each thread where others can read it.
struct Counting;

fn count() {
    // During the end of a thread there is nothing to count with.
    let _ = SLOT.try_with(|slot| {
        let index = slot.get().unwrap_or_else(|| {
            let index = TAKEN.fetch_add(1, Ordering::Relaxed);
            slot.set(Some(index));
            if let Some(thread) = THREADS.get(index) {
                thread.store(rustix::thread::gettid().as_raw_nonzero().get(), Ordering::Relaxed);
            }
            index
        });
        if let Some(count) = COUNTS.get(index) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    });
}

// SAFETY: every call is passed on unchanged to the system's allocator, which keeps the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's promise is passed on.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Allocations of every thread of this name that lives, and how many such threads there are.
fn allocations_of(name: &str) -> (u64, usize) {
    let used = TAKEN.load(Ordering::Relaxed).min(SLOTS);
    assert!(used < SLOTS, "more threads than slots");
    let mine = |index: &usize| {
        let thread = THREADS[*index].load(Ordering::Relaxed);
        fs::read_to_string(format!("/proc/self/task/{thread}/comm")).is_ok_and(|n| n.trim() == name)
    };
    let found: Vec<u64> = (0..used).filter(mine).map(|i| COUNTS[i].load(Ordering::Relaxed)).collect();
    (found.iter().sum(), found.len())
}

fn own_allocations() -> u64 {
    SLOT.get().and_then(|slot| COUNTS.get(slot)).map_or(0, |count| count.load(Ordering::Relaxed))
}

/// A daemon on a thread.
struct Node {
    socket: PathBuf,
    stop: StopHandle,
    thread: JoinHandle<Result<(), ServiceError>>,
}

impl Node {
    fn start(folder: &Path, number: usize, device: Option<&str>) -> Self {
        let socket = folder.join(format!("{number}.sock"));
        let text = |path: &Path| Some(path.display().to_string());
        let mut settings = Settings { socket: text(&socket), ..Settings::default() };
        if let Some(device) = device {
            let key = folder.join(format!("{number}.key"));
            fs::write(&key, "5a".repeat(32)).expect("a key");
            fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).expect("its mode");
            let address = format!("127.0.{}.{}:0", std::process::id() % 250 + 1, number + 1);
            let free = TcpListener::bind(address).and_then(|l| l.local_addr()).expect("an address");
            settings = Settings {
                cluster_key_file: text(&key),
                listen: Some(free.to_string()),
                device: Some(device.to_owned()),
                ..settings
            };
        }
        let config = settings.resolve().expect("settings");
        let (handle, stop) = stop_pair().expect("sockets");
        let thread = thread::spawn(move || ringway_service::run(config, stop));
        Self { socket, stop: handle, thread }
    }

    fn client(&self) -> Client {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            match Client::builder().socket(&self.socket).connect() {
                Ok(client) => return client,
                Err(error) => assert!(Instant::now() < deadline && !self.thread.is_finished(), "{error}"),
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Buffers that are kept from round to round: small ones and ones of several chunks.
struct Kept {
    small: Option<(Buffer<f32>, Buffer<f32>)>,
    large: Option<(Buffer<f32>, Buffer<f32>)>,
    values: Vec<u64>,
    many: Vec<Buffer<u32>>,
}

/// More calls at a time than ranks that share memory can have under way by themselves.
const MANY: usize = 100;
const LARGE: usize = 150_000;

/// An operation of every kind.
fn round(world: &Communicator, kept: &mut Kept) -> Result<(), Error> {
    let (size, peer) = (world.size(), world.size() - 1 - world.rank());
    for pair in [&mut kept.small, &mut kept.large] {
        let (a, b) = pair.take().expect("kept");
        let (a, b) = world.allreduce(a, b, Reduction::Sum)?.wait()?;
        let first = world.allreduce_in_place(a, Reduction::Max)?;
        let second = world.broadcast_in_place(b, 0)?;
        let (a, b) = (first.wait()?, second.wait()?);
        let (a, b) = world.scan(a, b, Reduction::Min)?.wait()?;
        let (a, b) = world.all_to_all(a, b)?.wait()?;
        let a = world.all_gather_in_place(a)?.wait()?;
        let b = world.reduce_scatter_in_place(b, Reduction::Sum)?.wait()?;
        let (a, received) = if peer == world.rank() {
            (a, b)
        } else {
            let (a, received) = world.send_recv((a, peer, 1), (b, peer, 1))?.wait()?;
            (a, received.buffer)
        };
        *pair = Some((a, received));
    }
    world.blocking().allreduce_in_place(&mut kept.values, Reduction::Sum)?;
    kept.values.fill(u64::from(size));
    world.barrier()?.wait()?;
    if world.rank() == 0 {
        // None is waited for before all are made, and the others come late.
        let mut calls: [_; MANY] = std::array::from_fn(|_| {
            let buffer = kept.many.pop().expect("kept");
            Some(world.allreduce_in_place(buffer, Reduction::Sum))
        });
        for call in &mut calls {
            kept.many.push(call.take().expect("made")?.wait()?);
        }
    } else {
        thread::sleep(Duration::from_millis(2));
        for _ in 0..MANY {
            let buffer = kept.many.pop().expect("kept");
            kept.many.insert(0, world.run(|w| w.allreduce_in_place(buffer, Reduction::Sum))?);
        }
    }
    Ok(())
}

/// What one rank does; the first one also looks at the daemons' threads while everybody rests.
fn rank(client: &Client, id: UniqueId, number: u32, size: u32, daemons: usize, rest: &Barrier) {
    let world = client.communicator(&id, number, size).join().expect("joined");
    let arena = client.arena(16 << 20).expect("memory");
    let pair = |length| Some((arena.buffer(length).unwrap(), arena.buffer(length).unwrap()));
    let many = (0..MANY).map(|_| arena.buffer(2).unwrap()).collect();
    let mut kept = Kept { small: pair(40), large: pair(LARGE), values: vec![1; 1000], many };
    for _ in 0..6 {
        round(&world, &mut kept).expect("warm-up");
    }
    // Over several nodes a rank maps another's region when it first gets a piece of work there, which may be late. That
    // allocates, once for each region; nothing else may.
    for _ in 0..=size * size {
        let allocated = twenty_rounds(&world, &mut kept, (number, daemons), rest);
        if !MAPPED.load(Ordering::Relaxed) {
            assert_eq!(allocated, 0, "rank {number} allocated in twenty rounds");
            break;
        }
        assert!(daemons > 1, "regions are mapped in the warm-up on one node");
        rest.wait();
    }
    // Leaving allocates: not before everybody has looked.
    rest.wait();
}

/// Whether a region was mapped in the last twenty rounds.
static MAPPED: AtomicBool = AtomicBool::new(false);

/// Regions that are mapped in this process, by ranks and daemons.
fn regions_mapped() -> usize {
    let maps = fs::read_to_string("/proc/self/maps").expect("maps");
    maps.lines().filter(|line| line.contains("memfd:ringway-arena")).count()
}

/// How often this rank allocates in twenty rounds; the first one looks at the engines, and at what was mapped.
fn twenty_rounds(
    world: &Communicator,
    kept: &mut Kept,
    (number, daemons): (u32, usize),
    rest: &Barrier,
) -> u64 {
    rest.wait();
    let look = || {
        if number == 0 { (allocations_of("ringway-engine"), regions_mapped()) } else { ((0, 0), 0) }
    };
    let (before_engines, before_mapped) = look();
    rest.wait();
    let before = own_allocations();
    for _ in 0..20 {
        round(world, kept).expect("a round");
    }
    let allocated = own_allocations() - before;
    rest.wait();
    let (after_engines, after_mapped) = look();
    if number == 0 {
        assert_eq!(before_engines.1, daemons, "every engine thread is seen");
        assert_eq!(after_engines.0 - before_engines.0, 0, "engines allocated in twenty rounds");
        MAPPED.store(after_mapped != before_mapped, Ordering::Relaxed);
    }
    rest.wait();
    allocated
}

/// On one node, or on two that are joined by a device.
fn nothing_is_allocated(device: Option<&str>, ranks: usize) {
    let nodes = if device.is_some() { 2 } else { 1 };
    let folder = std::env::temp_dir().join(format!("rw-alloc-{}", std::process::id()));
    // A process of this number may have been killed before.
    let _ = fs::remove_dir_all(&folder);
    fs::DirBuilder::new().mode(0o700).create(&folder).expect("a folder");
    let daemons: Vec<Node> = (0..nodes).map(|n| Node::start(&folder, n, device)).collect();
    let clients: Vec<Client> = (0..ranks).map(|r| daemons[r * nodes / ranks].client()).collect();
    let id = clients[0].unique_id(nodes > 1).expect("an id");
    let rest = Barrier::new(ranks);
    let size = u32::try_from(ranks).unwrap();
    thread::scope(|scope| {
        for (client, number) in clients.iter().zip(0..) {
            let rest = &rest;
            scope.spawn(move || {
                let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    rank(client, id, number, size, nodes, rest);
                }));
                // The others would wait for this rank without end.
                if outcome.is_err() {
                    std::process::exit(101);
                }
            });
        }
    });
    drop(clients);
    for daemon in daemons {
        daemon.stop.stop();
        daemon.thread.join().unwrap().expect("a good end");
    }
    let _ = fs::remove_dir_all(folder);
}

#[test]
fn nothing_is_allocated_after_warm_up() {
    // One after the other: the engines of all are threads of this process.
    nothing_is_allocated(None, 2);
    nothing_is_allocated(Some("tcp"), 4);
    nothing_is_allocated(Some("shm"), 4);
}
