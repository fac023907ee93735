//! A peer that writes anything into its file and says anything over its socket harms nobody but itself.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use proptest::prelude::*;
use ringway_mem::{Mapping, MemFd, Protection, is_written_by_owner_only};
use ringway_ring::PushError;
use ringway_verbs::{
    Access, Completion, Device, LocalSlice, MemoryKeys, Operation, QueuePairConfig, QueuePairNumber,
    QueuePairState, ReceiveRequest, RemoteKey, RemoteSlice, Role, Time, WorkRequest,
};

use crate::channel::{Channel, FILE_BYTES, Lane, OwnFile};
use crate::control::{self, Message};
use crate::endpoint::{decode, encode, random};
use crate::entry::{Entry, Kind, Raw, Source};
use crate::queue_pair::MESSAGES_PER_TURN;
use crate::regions::{TOLD_BYTES_MAX, TOLD_MAX};
use crate::{ShmConfig, ShmDevice, ShmFailure};

const LENGTH: u64 = 8192;

/// A device, one queue pair of it, a region that peers may use and one that they may not.
struct Victim {
    device: ShmDevice,
    queue_pair: QueuePairNumber,
    open: (Arc<Mapping>, MemoryKeys),
    closed: (Arc<Mapping>, MemoryKeys),
    now: u64,
}

fn region(device: &mut ShmDevice, access: Access) -> (Arc<Mapping>, MemoryKeys) {
    let (file, mapping) = MemFd::region("victim", LENGTH).expect("memory");
    let mapping = Arc::new(mapping.keep_file(file.as_fd().try_clone_to_owned().expect("descriptor")));
    mapping.window(0, LENGTH).expect("all of it").write(&[7; LENGTH as usize]);
    let keys = device.register(Arc::clone(&mapping), access).expect("registered");
    (mapping, keys)
}

impl Victim {
    fn new() -> Self {
        let mut device = ShmDevice::new(ShmConfig::default()).expect("a device");
        let config = QueuePairConfig { send_depth: 8, receive_depth: 8 };
        let queue_pair = device.create_queue_pair(config).expect("a queue pair");
        let open = region(&mut device, Access::ALL);
        let closed = region(&mut device, Access::LOCAL);
        Self { device, queue_pair, open, closed, now: 0 }
    }

    fn poll(&mut self) -> usize {
        // Time passes, so that sockets are looked at.
        self.now += 10_000_000;
        self.device.poll(Time(self.now), &mut [Completion::EMPTY; 64])
    }

    fn counted(&self, what: &str) -> u64 {
        let mut found = 0;
        self.device.for_each_counter(&mut |name, value| found += if name == what { value } else { 0 });
        found
    }

    /// Whether whoever sleeps on the device would be woken at once.
    fn is_awake(&self) -> bool {
        use ringway_mem::passing::duplicate;
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let events =
            self.device.event_descriptor().map(duplicate).expect("a descriptor").expect("duplicated");
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(&events, PollFlags::IN)], Some(&now)).expect("polled") > 0
    }

    /// Says hello, as a peer of the queue pair would.
    fn offer(&self) -> (OwnedFd, OwnFile) {
        let endpoint = self.device.endpoint(self.queue_pair).expect("an endpoint");
        let (name, token) = decode(&endpoint).expect("one of ours");
        let socket = control::connect(&name).expect("connected");
        let own = OwnFile::new().expect("memory");
        let bell = rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).expect("eventfd");
        control::say_hello(socket.as_fd(), &token, [own.file(), bell.as_fd()]).expect("said");
        (socket, own)
    }

    /// Something of each kind is under way.
    fn post(&mut self) {
        let slice = |offset, length| LocalSlice { key: self.open.1.local, offset, length };
        for (id, length) in [(1, 10), (2, 4000), (3, 0)] {
            let request = ReceiveRequest { id, local: slice(0, length) };
            self.device.post_receive(self.queue_pair, &request).expect("posted");
        }
        let remote = RemoteSlice { key: RemoteKey(1), offset: 0 };
        let operations = [
            (Operation::Read { remote }, 4000),
            (Operation::FetchAdd { remote, add: 1 }, 8),
            (Operation::Send { immediate: None }, 5000),
        ];
        for (operation, length) in operations {
            let local = [slice(0, length), LocalSlice::default()];
            let request = WorkRequest { id: 9, operation, local, signalled: true, fence: false };
            self.device.post_send(self.queue_pair, &request).expect("posted");
        }
    }

    /// Connects as a peer would; what that peer has in hand then.
    fn connect(&mut self) -> (OwnedFd, Channel) {
        let nobody = encode(&random().expect("random"), &random().expect("random")).expect("fits");
        self.device.connect(self.queue_pair, &nobody, Role::Passive).expect("connecting");
        let (socket, own) = self.offer();
        loop {
            self.poll();
            if let Some(Message::Welcome { file, doorbell, .. }) =
                control::receive(socket.as_fd()).expect("open")
            {
                return (socket, own.join(file.as_fd(), doorbell).expect("joined"));
            }
        }
    }

    /// Whatever was done, the device goes on, and nobody reached what was not granted.
    fn is_unharmed(&mut self) {
        for _ in 0..20 {
            self.poll();
            self.device.flush();
        }
        let mut bytes = [0; LENGTH as usize];
        self.closed.0.window(0, LENGTH).expect("all of it").read(&mut bytes);
        assert_eq!(bytes, [7; LENGTH as usize]);
        let config = QueuePairConfig { send_depth: 1, receive_depth: 1 };
        self.device.create_queue_pair(config).expect("another one");
        self.device.destroy_queue_pair(self.queue_pair).expect("destroyed");
        for keys in [self.open.1, self.closed.1] {
            assert_eq!(self.device.deregister(keys.local), Ok(()), "nothing is held any more");
        }
    }
}

fn source() -> impl Strategy<Value = Source> {
    prop_oneof![
        (any::<[u8; 32]>(), 0..=32_usize).prop_map(|(bytes, length)| Source::inline(&bytes, length)),
        (0..300_000_u32, 0..20_000_u32).prop_map(|(offset, length)| Source::Staged { offset, length }),
        (0..3_u32, prop_oneof![0..10_000_u64, any::<u64>()], 0..10_000_u64)
            .prop_map(|(key, offset, length)| Source::Shared { key, offset, length }),
    ]
}

/// Entries that mean something, and some that do not. Keys of the device's regions are small numbers.
fn entry() -> impl Strategy<Value = Raw> {
    let kinds = [
        Kind::Send,
        Kind::Write,
        Kind::More,
        Kind::Read,
        Kind::FetchAdd,
        Kind::CompareSwap,
        Kind::Data,
        Kind::Word,
        Kind::Refused,
    ];
    let key = prop_oneof![Just(0x1_0000_u32), Just(0x1_0001_u32), any::<u32>()];
    let meant = (
        prop::sample::select(kinds.to_vec()),
        prop_oneof![0..10_000_u32, Just(1 << 30)],
        any::<Option<u32>>(),
        (key, prop_oneof![0..LENGTH, any::<u64>()]),
        source(),
        (any::<(bool, bool)>(), prop_oneof![0..8_u32, any::<u32>()]),
    )
        .prop_map(|(kind, total, immediate, (key, offset), source, ((last, asks), executed))| {
            let remote = RemoteSlice { key: RemoteKey(key), offset };
            Entry { kind, total, immediate, remote, source, last, asks, executed }.emit()
        });
    prop_oneof![9 => meant, 1 => any::<Raw>()]
}

#[derive(Debug, Clone)]
enum Act {
    Put(bool, Raw),
    /// Writes a word of the file's first page: counts, flags.
    Poke(u64, u64),
    Share(u32),
    Forget(u32),
    Poll,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        6 => (any::<bool>(), entry()).prop_map(|(response, raw)| Act::Put(response, raw)),
        1 => (0..64_u64, prop_oneof![0..8_u64, any::<u64>()]).prop_map(|(word, value)| Act::Poke(word * 8, value)),
        1 => prop_oneof![0..3_u32, any::<u32>()].prop_map(Act::Share),
        1 => (0..3_u32).prop_map(Act::Forget),
        2 => Just(Act::Poll),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn whatever_a_peer_writes(acts in prop::collection::vec(act(), 1..60)) {
        let mut victim = Victim::new();
        let (socket, mut channel) = victim.connect();
        victim.post();
        let memory = MemFd::region("peer", LENGTH).expect("memory").0;
        for act in acts {
            match act {
                Act::Put(response, raw) => {
                    let lane = if response { Lane::Responses } else { Lane::Requests };
                    let pushed = channel.push_raw(lane, &raw);
                    prop_assert!(matches!(pushed, Ok(()) | Err(PushError::Full | PushError::Peer(_))));
                }
                Act::Poke(offset, value) => channel.poke(offset, value),
                // The device may have hung up.
                Act::Share(key) => _ = control::share(socket.as_fd(), key, memory.as_fd()),
                Act::Forget(key) => _ = control::forget(socket.as_fd(), key),
                Act::Poll => _ = victim.poll(),
            }
        }
        victim.is_unharmed();
    }
}

#[test]
fn a_file_of_another_size_or_that_others_can_write_is_refused() {
    let shorter = MemFd::daemon_written("short", FILE_BYTES as u64 / 2).expect("memory").0;
    let writable = MemFd::create("writable", FILE_BYTES as u64).expect("memory");
    for file in [shorter, writable] {
        let mut victim = Victim::new();
        let endpoint = victim.device.endpoint(victim.queue_pair).expect("an endpoint");
        let (name, token) = decode(&endpoint).expect("one of ours");
        victim.device.connect(victim.queue_pair, &endpoint, Role::Passive).expect("connecting");
        let socket = control::connect(&name).expect("connected");
        control::say_hello(socket.as_fd(), &token, [file.as_fd(), file.as_fd()]).expect("said");
        victim.poll();
        assert_eq!(victim.device.state(victim.queue_pair), Some(QueuePairState::Error));
        assert_eq!(victim.device.last_error(victim.queue_pair), Some(ShmFailure::Protocol));
        victim.is_unharmed();
    }
}

#[test]
fn a_wrong_token_connects_to_nothing_and_silence_makes_room() {
    let mut victim = Victim::new();
    let endpoint = victim.device.endpoint(victim.queue_pair).expect("an endpoint");
    let (name, _) = decode(&endpoint).expect("one of ours");
    let own = OwnFile::new().expect("memory");
    let socket = control::connect(&name).expect("connected");
    control::say_hello(socket.as_fd(), &random().expect("random"), [own.file(), own.file()]).expect("said");
    victim.poll();
    assert!(matches!(control::receive(socket.as_fd()), Err(ShmFailure::Closed)));
    let silent: Vec<OwnedFd> = (0..100)
        .map(|_| {
            let socket = control::connect(&name).expect("connected");
            victim.poll();
            socket
        })
        .collect();
    assert_eq!(victim.device.state(victim.queue_pair), Some(QueuePairState::Init));
    let (_socket, _channel) = victim.connect();
    assert_eq!(victim.device.state(victim.queue_pair), Some(QueuePairState::Ready));
    drop(silent);
}

#[test]
fn what_a_peer_gets_can_only_be_read() {
    let mut victim = Victim::new();
    let (socket, _channel) = victim.connect();
    victim.post();
    victim.poll();
    let Ok(Some(Message::Region { file, .. })) = control::receive(socket.as_fd()) else {
        panic!("the region of the SEND is told of")
    };
    assert!(Mapping::shared(file.as_fd(), LENGTH as usize, Protection::Read).is_ok());
    assert!(Mapping::shared(file.as_fd(), LENGTH as usize, Protection::ReadWrite).is_err());
    // Nor by opening it again, but for its owner.
    assert!(is_written_by_owner_only(file.as_fd()));
}

#[test]
fn a_file_that_others_may_open_for_writing_is_not_handed_out() {
    let mut victim = Victim::new();
    let (file, mapping) = MemFd::region("open", LENGTH).expect("memory");
    rustix::fs::fchmod(&file, rustix::fs::Mode::from_raw_mode(0o666)).expect("ours");
    let mapping = Arc::new(mapping.keep_file(file.into_fd()));
    victim.open = (Arc::clone(&mapping), victim.device.register(mapping, Access::ALL).expect("registered"));
    let (socket, _channel) = victim.connect();
    victim.post();
    victim.poll();
    assert!(matches!(control::receive(socket.as_fd()), Ok(None)), "its bytes go through staging memory");
}

#[test]
fn a_region_that_is_no_memory_of_fixed_size_and_one_too_many_are_refused() {
    let (good, _mapping) = MemFd::region("good", LENGTH).expect("memory");
    let loose = MemFd::create("loose", LENGTH).expect("memory");
    let regular = std::fs::File::open("/proc/self/exe").expect("a file");
    for (file, shared) in
        [(loose.as_fd(), 1), (regular.as_fd(), 1), (good.as_fd(), TOLD_MAX), (good.as_fd(), TOLD_MAX + 1)]
    {
        let mut victim = Victim::new();
        let (socket, _channel) = victim.connect();
        for key in (1_u32..).take(shared) {
            control::share(socket.as_fd(), key, file).expect("sent");
            victim.poll();
        }
        let refused = victim.device.last_error(victim.queue_pair);
        assert_eq!(refused, (shared != TOLD_MAX).then_some(ShmFailure::Protocol), "{shared}");
        victim.is_unharmed();
    }
}

/// A memory file of fixed size with nothing in it.
fn sparse(length: u64) -> OwnedFd {
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
    let file = memfd_create("sparse", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("memory");
    ftruncate(&file, length).expect("its size");
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL).expect("sealed");
    file
}

/// The engine of whoever has the device goes on meanwhile.
#[test]
fn a_peer_that_does_not_stop_talking_is_heard_bit_by_bit() {
    let mut victim = Victim::new();
    let (socket, mut channel) = victim.connect();
    let (memory, _mapping) = MemFd::region("peer", LENGTH).expect("memory");
    let said = 3 * MESSAGES_PER_TURN as u64;
    for key in 0..said as u32 {
        control::share(socket.as_fd(), key, memory.as_fd()).expect("sent");
    }
    victim.poll();
    assert_eq!(victim.counted("regions_mapped"), MESSAGES_PER_TURN as u64);
    assert!(victim.is_awake(), "nobody sleeps while there is more");
    // The last one, which is far behind, holds a message.
    let local = LocalSlice { key: victim.open.1.local, offset: 0, length: LENGTH };
    victim.device.post_receive(victim.queue_pair, &ReceiveRequest { id: 1, local }).expect("posted");
    let source = Source::Shared { key: said as u32 - 1, offset: 0, length: LENGTH };
    let total = LENGTH as u32;
    let entry = Entry { total, source, last: true, ..Entry::new(Kind::Send) };
    channel.push_raw(Lane::Requests, &entry.emit()).expect("there is room");
    let came = (0..said).any(|_| victim.device.poll(Time(victim.now), &mut [Completion::EMPTY; 4]) > 0);
    assert!(came && victim.counted("regions_mapped") == said);
    victim.is_unharmed();
}

#[test]
fn a_region_with_holes_is_read_and_gets_no_pages() {
    let mut victim = Victim::new();
    let (socket, mut channel) = victim.connect();
    let file = sparse(LENGTH);
    control::share(socket.as_fd(), 1, file.as_fd()).expect("sent");
    let local = LocalSlice { key: victim.open.1.local, offset: 0, length: LENGTH };
    victim.device.post_receive(victim.queue_pair, &ReceiveRequest { id: 1, local }).expect("posted");
    let source = Source::Shared { key: 1, offset: 0, length: LENGTH };
    let entry = Entry { total: LENGTH as u32, source, last: true, ..Entry::new(Kind::Send) };
    channel.push_raw(Lane::Requests, &entry.emit()).expect("there is room");
    assert!((0..10).any(|_| victim.poll() > 0));
    let mut bytes = [1; LENGTH as usize];
    victim.open.0.window(0, LENGTH).expect("all of it").read(&mut bytes);
    assert_eq!(bytes, [0; LENGTH as usize]);
    assert_eq!(rustix::fs::fstat(&file).expect("stat").st_blocks, 0);
    victim.is_unharmed();
}

#[test]
fn a_peer_has_so_many_bytes_taken_and_no_more() {
    for (more, refused) in [(0, None), (4096, Some(ShmFailure::Protocol))] {
        let mut victim = Victim::new();
        let (socket, _channel) = victim.connect();
        for (key, bytes) in [(1, TOLD_BYTES_MAX / 2), (2, TOLD_BYTES_MAX / 2 + more)] {
            control::share(socket.as_fd(), key, sparse(bytes).as_fd()).expect("sent");
            victim.poll();
        }
        assert_eq!(victim.device.last_error(victim.queue_pair), refused);
    }
}

#[test]
fn a_peer_that_came_early_and_has_gone_wakes_nobody() {
    let mut victim = Victim::new();
    let (socket, own) = victim.offer();
    victim.poll();
    drop((socket, own));
    assert!(victim.device.arm() && !victim.is_awake());
    victim.poll();
    let nobody = encode(&random().expect("random"), &random().expect("random")).expect("fits");
    victim.device.connect(victim.queue_pair, &nobody, Role::Passive).expect("connecting");
    victim.poll();
    assert_eq!(victim.device.state(victim.queue_pair), Some(QueuePairState::Error));
    victim.is_unharmed();
}

/// Names are no secret, and free again when their device has ended.
#[test]
fn who_took_the_name_of_a_device_that_ended_is_not_believed() {
    let mut victim = Victim::new();
    let endpoint = victim.device.endpoint(victim.queue_pair).expect("an endpoint");
    let (_, token) = decode(&endpoint).expect("one of ours");
    let name = random().expect("random");
    let listener = control::listen(&name).expect("listening");
    let ended = encode(&name, &random().expect("random")).expect("fits");
    victim.device.connect(victim.queue_pair, &ended, Role::Active).expect("connecting");
    let socket = control::accept(listener.as_fd()).expect("a connection");
    let Ok(Some(Message::Hello { token: shown, .. })) = control::receive(socket.as_fd()) else {
        panic!("the device says whom it looks for")
    };
    assert_ne!(shown, token);
    let own = OwnFile::new().expect("memory");
    control::say_welcome(socket.as_fd(), &shown, [own.file(), own.file()]).expect("said");
    victim.poll();
    assert_eq!(victim.device.last_error(victim.queue_pair), Some(ShmFailure::Protocol));
    victim.is_unharmed();
}
