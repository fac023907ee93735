use super::*;
use proptest::prelude::*;

fn signatures() -> impl Strategy<Value = Signature> {
    (
        prop::sample::select(Operation::ALL),
        prop::sample::select(DataType::ALL),
        prop::option::of(prop::sample::select(Reduction::ALL)),
        any::<u32>(),
        any::<u64>(),
    )
        .prop_map(|(operation, datatype, reduction, root, count)| Signature {
            operation,
            datatype,
            reduction,
            root,
            count,
        })
}

fn messages() -> impl Strategy<Value = Message> {
    let words = (any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>());
    let halves = (any::<u32>(), any::<u32>(), any::<u16>(), any::<u16>());
    (0_u8..16, signatures(), words, halves).prop_map(|(kind, signature, (a, b, c, d), (e, f, g, h))| {
        let exchange = Exchange { sequence: a, chunk: b, tag: e, signature };
        let envelope = Envelope { source: e, destination: f, tag: b, length: c };
        let credits = Credits { collective: g, point: h, places: g ^ h };
        let target = RemoteSlice { key: RemoteKey(f), offset: d };
        let granted = Granted { target, immediate: u32::from(g), channel: (h & 15) as u8 };
        match kind {
            0 => Message::Data { exchange, length: c, credits },
            1 => Message::Announce { exchange, length: c },
            2 => Message::Grant { exchange, length: c, granted },
            3 => Message::PointData { envelope, credits },
            4 => Message::PointAnnounce { envelope, slot: u32::from(g) },
            5 => Message::PointGrant { slot: e, length: c, last: a > 9, granted },
            6 => Message::Written { immediate: e },
            7 => Message::Credit { credits },
            8 => Message::Ping { sequence: a, signature: (g > 9).then_some(signature), rank: e },
            9 => Message::Pong { absent: Absent { sequence: a, locals: [a, b, c, d] } },
            10 => Message::Left { rank: e, sequence: a, last: g > 9 },
            11 => Message::Probe { length: c, channel: u8::from(g > 3) },
            12 => Message::Probed { room: (g > 9).then_some(target) },
            13 => Message::Lent { room: (g > 9).then_some(target) },
            14 => Message::EagerWrite { exchange, length: c, credits },
            _ => Message::Abort,
        }
    })
}

#[test]
fn absent_ranks_come_back() {
    let absent = Absent::of(7, 300, |local| local % 3 == 1);
    for local in 0..300 {
        assert_eq!(absent.has(local as usize), local % 3 == 1 && local < 256, "{local}");
    }
    assert_eq!(Absent::of(7, 0, |_| true).locals, [0; 4]);
}

proptest! {
    #[test]
    fn messages_round_trip(message in messages(), check: u32) {
        let bytes = message.emit(check);
        prop_assert_eq!(Message::parse(&bytes, check), Some(message));
        prop_assert_eq!(Message::parse(&bytes, check.wrapping_add(1)), None);
    }

    #[test]
    fn arbitrary_bytes_never_panic(
        mut header in prop::array::uniform32(any::<u8>()),
        kind in 0_u8..20,
        failure in proptest::collection::vec(any::<u8>(), FAILURE)
    ) {
        header[0] = kind;
        let mut bytes = [0; HEADER];
        bytes[..32].copy_from_slice(&header);
        bytes[32..].copy_from_slice(&header);
        let check = u32::from_le_bytes([header[4], header[5], header[6], header[7]]);
        if let Some(message) = Message::parse(&bytes, check) {
            // What was understood survives being said again.
            prop_assert_eq!(Message::parse(&message.emit(check), check), Some(message));
        }
        let failure: [u8; FAILURE] = failure.try_into().unwrap();
        let _ = parse_failure(&failure);
    }

    #[test]
    fn failures_round_trip(
        call in signatures(), other in signatures(), rank: u32, other_rank: u32, a: u64, b: u64, which in 0..8_u8
    ) {
        let failure = match which {
            0 => Failure::Mismatch { rank, call, other_rank, other, sequence: a },
            1 => Failure::Count { sender: rank, receiver: other_rank, sent: a, expected: b },
            2 => Failure::Truncated { sent: a, room: b },
            3 => Failure::Rank { rank, how: RankFailure::Misbehaved },
            4 => Failure::Node { node: other_rank, rank, reason: REASONS[2], rail: (a > 9).then_some(rank) },
            5 => Failure::TimedOut { call, rank, waited_ms: a, others: String::new() },
            6 => Failure::Memory { needed: a, available: b },
            _ => Failure::Aborted { rank },
        };
        prop_assert_eq!(parse_failure(&emit_failure(&failure)), Some(failure));
    }
}
