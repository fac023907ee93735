//! What clients send: submissions, control messages, greetings, ids. And what the daemon sends to clients.

use std::str::FromStr as _;

use ringway_abi::{
    Status, UniqueId,
    control::{self, BoardOffer, CellOffer, Envelope, Join, Joined, RefusalKind, Reply, Request},
    descriptor::{
        BufferHandle, COMPLETION_WORDS, Completion, FLAG_ANY_SOURCE, FLAG_CELL, FLAG_GROUP, FLAG_PUBLISHED,
        SUBMISSION_WORDS, Submission,
    },
    extent::{Caller, InPlace, counts_needed, extent, in_place_offset},
    handshake::Greeting,
};
use ringway_types::{DataType, Operation, Reduction};

use crate::Reader;

/// The most counts that an input brings.
const COUNTS_MAX: usize = 64;

/// Eight words of a ring, then where the rank stands and its counts: the submission comes back from its encoding, its
/// extents are within what a file can have, and the in-place form lies inside the larger buffer.
pub fn submission(bytes: &[u8]) {
    let mut reader = Reader(bytes);
    let words: [u64; SUBMISSION_WORDS] = std::array::from_fn(|_| reader.u64());
    let submission = match Submission::parse(&words) {
        Ok(submission) => submission,
        Err((token, status)) => {
            assert_eq!(u64::from(token), words[7] >> 32, "a refusal names its token");
            assert!(status.is_recoverable(), "a request that means nothing harms nobody else");
            return;
        }
    };
    assert_eq!(Submission::parse(&submission.encode()), Ok(submission));
    let size = u32::from(reader.u8()).max(1);
    let caller = Caller { rank: u32::from(reader.u8()) % size, size, root: submission.rank };
    let needed = counts_needed(submission.operation, caller);
    let mut counts = Vec::new();
    while counts.len() < COUNTS_MAX && !reader.is_empty() {
        counts.push(reader.u64());
    }
    extents(&submission, caller, &counts);
    counts.resize(needed, 3);
    extents(&submission, caller, &counts);
}

fn extents(submission: &Submission, caller: Caller, counts: &[u64]) {
    let element = submission.datatype.size() as u64;
    let operation = submission.operation;
    let Some(found) = extent(operation, caller, element, submission.count, counts) else { return };
    assert_eq!(counts.len(), counts_needed(operation, caller));
    for length in [found.input, found.output].into_iter().flatten() {
        assert!(i64::try_from(length).is_ok() && length % element == 0, "{found:?}");
    }
    let (Some(input), Some(output)) = (found.input, found.output) else { return };
    let (at, inner, outer) = match in_place_offset(operation, caller, element, submission.count, counts) {
        Some(InPlace::InputInOutput(at)) => (at, input, output),
        Some(InPlace::OutputInInput(at)) => (at, output, input),
        None => return,
    };
    // In all_to_all_v the two have lengths of their own: where they differ the daemon refuses the form.
    if operation != Operation::AllToAllV {
        assert!(at.checked_add(inner).is_some_and(|end| end <= outer), "{operation} {caller:?} {counts:?}");
    }
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_le_bytes()).collect()
}

/// Every operation as it should be, and submissions with one thing wrong.
#[must_use]
pub fn submission_samples() -> Vec<Vec<u8>> {
    let good = |operation: Operation| Submission {
        token: 7,
        operation,
        datatype: DataType::F32,
        reduction: operation.reduces().then_some(Reduction::Sum),
        flags: 0,
        rank: 1,
        argument: 0,
        input: Some(BufferHandle { region: 1, offset: 64 }),
        output: Some(BufferHandle { region: 2, offset: 4096 }),
        count: 100,
    };
    let at = |mut sample: Vec<u8>, counts: &[u64]| {
        sample.extend([3, 1]);
        sample.extend(words(counts));
        sample
    };
    let mut samples: Vec<Vec<u8>> = Operation::ALL
        .iter()
        .map(|o| at(words(&good(*o).encode()), if o.has_counts() { &[1, 2, 3, 4, 5, 6] } else { &[] }))
        .collect();
    let allreduce = good(Operation::Allreduce);
    let nasty = [
        Submission { count: u64::MAX, ..allreduce },
        Submission { count: u64::MAX / 4 + 1, ..allreduce },
        Submission { input: None, output: None, ..allreduce },
        Submission { flags: FLAG_GROUP, ..allreduce },
        Submission { flags: FLAG_ANY_SOURCE, ..good(Operation::Receive) },
        Submission { flags: FLAG_ANY_SOURCE, ..allreduce },
        Submission { flags: FLAG_CELL, ..allreduce },
        Submission { flags: FLAG_CELL | FLAG_PUBLISHED, argument: u64::MAX, ..allreduce },
        Submission { flags: FLAG_PUBLISHED, ..allreduce },
        Submission { flags: FLAG_CELL, ..good(Operation::Send) },
        Submission { flags: 0x80, ..allreduce },
        Submission { reduction: None, ..allreduce },
        Submission { reduction: Some(Reduction::BitAnd), ..allreduce },
        Submission { reduction: Some(Reduction::PremulSum), argument: 0x4000_0000, ..allreduce },
        Submission { rank: u32::MAX, ..good(Operation::Broadcast) },
        Submission { argument: u64::MAX, ..good(Operation::AllGatherV) },
    ];
    samples.extend(nasty.iter().map(|s| at(words(&s.encode()), &[])));
    samples.push(at(words(&good(Operation::AllGatherV).encode()), &[u64::MAX, 1, 0]));
    samples.push(at(words(&good(Operation::AllToAllV).encode()), &[0; 6]));
    samples.extend([words(&[u64::MAX; 8]), words(&[0; 8]), words(&[0xff]), Vec::new()]);
    samples
}

/// Four words of a ring: any status comes back as it was.
pub fn completion(bytes: &[u8]) {
    let mut reader = Reader(bytes);
    let words: [u64; COMPLETION_WORDS] = std::array::from_fn(|_| reader.u64());
    let completion = Completion::parse(&words);
    assert_eq!(Completion::parse(&completion.encode()), completion);
    if let Some(status) = Status::from_code(completion.status) {
        assert_eq!(status.code(), completion.status);
    }
}

/// Completions of every kind.
#[must_use]
pub fn completion_samples() -> Vec<Vec<u8>> {
    let good = Completion { token: 1, status: 0, held: false, rank: 2, bytes: 64 };
    let all =
        [good, Completion { status: 35, ..good }, Completion { status: u16::MAX, token: u32::MAX, ..good }];
    all.iter().map(|c| words(&c.encode())).chain([words(&[u64::MAX; 4]), Vec::new()]).collect()
}

/// A control message of either direction: what is understood survives being said again, and lengths are bounded.
pub fn control(bytes: &[u8]) {
    if let Ok(message) = control::decode::<Request>(bytes) {
        let again = control::encode(&message);
        assert!(again.is_err() || again.is_ok_and(|b| control::decode(&b) == Ok(message)));
    }
    if let Ok(message) = control::decode::<Reply>(bytes) {
        let again = control::encode(&message);
        assert!(again.is_err() || again.is_ok_and(|b| control::decode(&b) == Ok(message)));
    }
}

/// Every request and every reply, cut short, and with lengths that lie.
#[must_use]
pub fn control_samples() -> Vec<Vec<u8>> {
    let id = UniqueId { root: "10.0.0.1:7411".parse().ok(), secret: *b"0123456789abcdef" };
    let join = Join {
        id,
        rank: 1,
        size: 4,
        submissions: 64,
        join_timeout_ms: 1,
        operation_timeout_ms: 0,
        share: true,
        algorithm: "ring,allreduce=direct".to_owned(),
        stream_words: Some((u64::MAX, 64)),
    };
    let requests = [
        Request::RegisterRegion,
        Request::RegisterGpuRegion { gpu: [7; 16], offset: 0, length: 1 << 21, ipc: None },
        Request::RegisterGpuRegion {
            gpu: [7; 16],
            offset: 64,
            length: u64::MAX,
            ipc: Some(([1; 32], [2; 32])),
        },
        Request::ReleaseRegion { region: u64::MAX },
        Request::NewUniqueId { several_nodes: true },
        Request::Join(join),
        Request::Leave { communicator: 3 },
        Request::Abort { communicator: 3 },
        Request::Explain { communicator: 3, token: u32::MAX },
        Request::Status,
        Request::MapRegion { communicator: 3, rank: 2, region: u64::MAX },
        Request::Inspect { communicator: 3, sequence: u64::MAX, waited_ms: 5000 },
    ];
    let joined = Joined {
        communicator: 3,
        geometry: (64, 128, 4096),
        node_of: vec![0, 0, 1, 1],
        device: "tcp".to_owned(),
        cell: None,
        board: None,
    };
    let board = Some(BoardOffer { bytes: 1 << 16, scratch_bytes: 2 << 20 });
    let cell = Some(CellOffer { ranks: 2, bytes: 1 << 20, late_after_ms: 5000 });
    let replies = [
        Reply::Done,
        Reply::Region { region: 1, length: 4096 },
        Reply::UniqueId(id),
        Reply::Joined(Joined { cell, ..joined.clone() }),
        Reply::Joined(Joined { board, ..joined.clone() }),
        Reply::Joined(joined),
        Reply::Text("rank 2 exited".to_owned()),
        Reply::Refused { kind: RefusalKind::Quota, message: "too much".to_owned() },
        Reply::Failure { status: Status::RankFailed.code(), message: "rank 2 exited".to_owned() },
    ];
    let mut samples: Vec<Vec<u8>> = Vec::new();
    samples.extend(requests.into_iter().flat_map(|body| control::encode(&Envelope { number: 9, body })));
    samples.extend(replies.into_iter().flat_map(|body| control::encode(&Envelope { number: 9, body })));
    // A text and a list that claim more elements than there are bytes.
    samples.extend([
        vec![9, 4, 0xff, 0xff, 0xff, 0xff, 0x0f],
        vec![9, 3, 3, 64, 128, 1, 128, 32, 0xff, 0xff, 0x7f],
    ]);
    let cut: Vec<_> = samples.iter().filter_map(|s| s.get(..s.len() / 2).map(<[u8]>::to_vec)).collect();
    samples.extend(cut.into_iter().filter(|s| s.len() > 3));
    samples.extend([vec![0xff; 11], Vec::new()]);
    samples
}

/// A greeting: only one of exactly its length with its magic is one.
pub fn handshake(bytes: &[u8]) {
    if let Some(greeting) = Greeting::parse(bytes) {
        let again = greeting.encode();
        assert_eq!(bytes.get(..16), again.get(..16));
        assert_eq!(Greeting::parse(&again), Some(greeting));
    }
}

/// Greetings of this version and others, other protocols, other lengths.
#[must_use]
pub fn handshake_samples() -> Vec<Vec<u8>> {
    let good = |version, verdict| Greeting { version, verdict }.encode().to_vec();
    let mut long = good(1, 0);
    long.push(0);
    let mut later = good(3, 1);
    later.splice(16.., [0xff; 48]);
    vec![
        good(1, 0),
        good(u32::MAX, u32::MAX),
        later,
        long,
        good(1, 0).into_iter().take(63).collect(),
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        Vec::new(),
    ]
}

/// An id as text: what is read prints, and reads as the same id again.
pub fn unique_id(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(id) = UniqueId::from_str(text) {
        assert_eq!(id.to_string().parse(), Ok(id));
    }
}

/// Ids with both kinds of address, and texts that are nearly ids.
#[must_use]
pub fn unique_id_samples() -> Vec<Vec<u8>> {
    let hex = "00112233445566778899aabbccddeeFF";
    let texts = [
        hex.to_owned(),
        format!("{hex}@10.1.2.3:7411"),
        format!("{hex}@[2001:db8::1%7]:1"),
        format!("{hex}@[::ffff:1.2.3.4]:65535"),
        format!("{hex}@"),
        format!("{hex}@host:1"),
        format!("{hex}@1.2.3.4:65536"),
        format!("{hex}@1.2.3.4:1@1.2.3.4:1"),
        format!("+{}", &hex[1..]),
        "é".repeat(16),
        String::new(),
    ];
    texts.into_iter().map(String::into_bytes).collect()
}
