use proptest::prelude::*;
use ringway_abi::{Status, descriptor::join};
use ringway_types::DataType;

use super::*;

/// A client with one region of 4096 bytes, handle 7, and a slab.
struct Client {
    slab: Vec<u64>,
}

impl Asker for Client {
    fn region(&self, handle: u64) -> Option<(RegionId, u64)> {
        (handle == 7).then_some((RegionId(3), 4096))
    }

    fn arguments(&self, first: u32, into: &mut [u64]) -> Option<()> {
        let end = (first as usize).checked_add(into.len())?;
        into.copy_from_slice(self.slab.get(first as usize..end)?);
        Some(())
    }
}

fn base(operation: Operation) -> Submission {
    Submission {
        token: 1,
        operation,
        datatype: DataType::I32,
        reduction: operation.reduces().then_some(Reduction::Sum),
        flags: 0,
        rank: 0,
        argument: 0,
        input: Some(BufferHandle { region: 7, offset: 0 }),
        output: Some(BufferHandle { region: 7, offset: 2048 }),
        count: 16,
    }
}

fn status(submission: &Submission, slab: &[u64]) -> Option<Status> {
    let client = Client { slab: slab.to_vec() };
    accept(&submission.encode(), (1, 4), &client, &mut Vec::new()).err().map(|reason| {
        assert!(!reason.to_string().is_empty());
        reason.status()
    })
}

#[test]
fn good_requests_pass_with_exact_lengths() {
    let mut scratch = Vec::new();
    let client = Client { slab: vec![9, 1, 2, 3, 4] };
    let accepted = accept(&base(Operation::AllGather).encode(), (1, 4), &client, &mut scratch).expect("good");
    let Request::Collective(call) = accepted.request else { panic!("a collective") };
    assert_eq!(call.input, Some(BufferRef { region: RegionId(3), offset: 0, length: 64 }));
    assert_eq!(call.output, Some(BufferRef { region: RegionId(3), offset: 2048, length: 256 }));
    assert_eq!(accepted.regions, [Some(7), Some(7)]);

    let submission = Submission {
        reduction: Some(Reduction::PremulSum),
        argument: join(0, 5),
        ..base(Operation::ReduceScatterV)
    };
    let accepted = accept(&submission.encode(), (1, 4), &client, &mut scratch).expect("good");
    let Request::Collective(call) = accepted.request else { panic!("a collective") };
    assert_eq!((call.scale, call.counts), (Some(9_u64.to_le_bytes()), &[1, 2, 3, 4][..]));
    assert_eq!(call.output.map(|b| b.length), Some(8));
}

#[test]
fn each_mistake_has_its_status() {
    let of = |change: fn(&mut Submission), operation| {
        let mut submission = base(operation);
        change(&mut submission);
        status(&submission, &[1, 2, 3, 4])
    };
    assert_eq!(of(|_| {}, Operation::Allreduce), None);
    assert_eq!(of(|s| s.rank = 4, Operation::Broadcast), Some(Status::BadRank));
    assert_eq!(of(|s| s.rank = 4, Operation::Send), Some(Status::BadRank));
    assert_eq!(of(|s| s.rank = 4, Operation::Allreduce), None, "it has no root");
    let any = |s: &mut Submission| (s.rank, s.flags) = (u32::MAX, FLAG_ANY_SOURCE);
    assert_eq!(of(any, Operation::Receive), None);
    assert_eq!(of(any, Operation::Send), Some(Status::BadFlags));
    let bogus = |s: &mut Submission| s.input = Some(BufferHandle { region: 8, offset: 0 });
    assert_eq!(of(bogus, Operation::Allreduce), Some(Status::BadRegion));
    let missing = |s: &mut Submission| s.output = None;
    assert_eq!(of(missing, Operation::Allreduce), Some(Status::BadRange));
    let none = |s: &mut Submission| (s.input, s.output, s.count) = (None, None, 0);
    assert_eq!(of(none, Operation::Allreduce), None, "no bytes need no buffer");
    let outside = |s: &mut Submission| s.output = Some(BufferHandle { region: 7, offset: 4096 - 63 });
    assert_eq!(of(outside, Operation::Allreduce), Some(Status::BadRange));
    let wraps = |s: &mut Submission| s.output = Some(BufferHandle { region: 7, offset: u64::MAX });
    assert_eq!(of(wraps, Operation::Allreduce), Some(Status::BadRange));
    assert_eq!(of(|s| s.count = u64::MAX, Operation::Allreduce), Some(Status::TooLarge));
    let partial = |s: &mut Submission| s.output = Some(BufferHandle { region: 7, offset: 4 });
    assert_eq!(of(partial, Operation::Allreduce), Some(Status::Overlap));
    let same = |s: &mut Submission| s.output = s.input;
    assert_eq!(of(same, Operation::Allreduce), None);
    assert_eq!(of(same, Operation::AllGather), Some(Status::Overlap), "rank 1's place is 64 bytes in");
    let in_place = |s: &mut Submission| {
        s.output = s.input;
        s.input = Some(BufferHandle { region: 7, offset: 64 });
    };
    assert_eq!(of(in_place, Operation::AllGather), None);
    assert_eq!(of(|s| s.argument = join(0, 4), Operation::AllGatherV), None);
    assert_eq!(of(|s| s.argument = join(0, 3), Operation::AllGatherV), Some(Status::BadCounts));
    assert_eq!(of(|s| s.argument = join(1, 4), Operation::AllGatherV), Some(Status::BadCounts));
    assert_eq!(of(|s| s.argument = join(u32::MAX, 4), Operation::AllGatherV), Some(Status::BadCounts));
}

proptest! {
    #[test]
    fn whatever_is_accepted_lies_inside(
        mut words: [u64; SUBMISSION_WORDS],
        codes in (0_u8..20, 0_u8..11, 0_u8..14, 0_u8..16),
        regions in (6_u64..8, 6_u64..8),
        offsets in (0_u64..5000, 0_u64..5000),
        count in 0_u64..2000,
        slab in proptest::collection::vec(0_u64..600, 0..10),
        wild in any::<bool>(),
    ) {
        if !wild {
            words[0] = join(u32::from_le_bytes([codes.0, codes.1, codes.2, codes.3]), (words[0] % 5) as u32);
            words[1] = join((words[1] % 3) as u32, (words[1] >> 32) as u32 % 10);
            (words[2], words[4], words[3], words[5]) = (regions.0, regions.1, offsets.0, offsets.1);
            words[6] = count;
        }
        let mut scratch = Vec::new();
        if let Ok(accepted) = accept(&words, (1, 4), &Client { slab }, &mut scratch) {
            let buffers = match accepted.request {
                Request::Collective(call) => [call.input, call.output],
                Request::PointToPoint(PointToPoint::Send { buffer, peer, .. }) => {
                    prop_assert!(peer < 4);
                    [Some(buffer), None]
                }
                Request::PointToPoint(PointToPoint::Receive { buffer, peer, .. }) => {
                    prop_assert!(peer.is_none_or(|p| p < 4));
                    [None, Some(buffer)]
                }
            };
            for buffer in buffers.into_iter().flatten().filter(|b| b.length > 0) {
                prop_assert_eq!(buffer.region, RegionId(3));
                prop_assert!(buffer.offset + buffer.length <= 4096);
            }
        }
    }
}
