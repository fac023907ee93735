//! What a responder does with packets made by hand.

mod peer;

use peer::{
    RECEIVE_PSN, SEQUENCE, Side, acknowledgements, configuration, receive_attributes, send_attributes,
};
use ringway_rc::{Failure, ReceiveAttributes, State};
use ringway_verbs::Status;
use ringway_wire::{AtomicEth, Header, NakCode, PathMtu, Psn, Reth, RnrTimer, Syndrome};

fn nth(after: u32) -> Psn {
    RECEIVE_PSN.plus(after)
}

fn reth(side: &Side, address: u64, length: u32) -> Reth {
    Reth { address, key: side.remote.0, length }
}

#[test]
fn acknowledgements_that_are_due_together_become_one() {
    let mut side = Side::new();
    for id in 0..3 {
        side.post_receive(id, 100);
    }
    for after in 0..3 {
        side.take(after, true, Header::SendOnly, b"abc");
    }
    let sent = side.sent();
    assert_eq!(acknowledgements(&sent), [(nth(2), Syndrome::ACK)]);
    let Header::Acknowledge(aeth) = sent[0].header else { panic!("{sent:?}") };
    assert_eq!(aeth.msn, 3);
    assert_eq!(side.outcomes(), [0, 1, 2].map(|id| (id, Status::Success)));
}

#[test]
fn a_reply_goes_before_the_acknowledgement_of_a_short_message() {
    let mut side = Side::new();
    for id in 0..4 {
        side.post_receive(id, 1000);
    }
    side.take(0, true, Header::SendOnly, b"abc");
    assert_eq!(side.sent_at_work(), [], "there may be a reply");
    let write = side.write();
    side.post(9, write, 8);
    let sent = side.sent_at_work();
    assert!(matches!(sent[..], [Header::WriteOnly(_), Header::Acknowledge(_)]), "{sent:?}");
    // Without a reply it goes when this side is idle, or after a while at work.
    side.take(1, true, Header::SendOnly, b"abc");
    assert_eq!(side.sent_at_work(), []);
    assert_eq!(acknowledgements(&side.sent()), [(nth(1), Syndrome::ACK)]);
    side.take(2, true, Header::SendOnly, b"abc");
    side.now += 32_000;
    assert!(matches!(side.sent_at_work()[..], [Header::Acknowledge(_)]));
    // Its sender goes on with the next part when it hears of the first.
    side.take(3, true, Header::SendFirst, &[0; 256]);
    assert!(matches!(side.sent_at_work()[..], [Header::Acknowledge(_)]));
    side.take(4, true, Header::SendLast, b"abc");
    assert!(matches!(side.sent_at_work()[..], [Header::Acknowledge(_)]));
    // What was executed before was acknowledged before, and that is lost.
    side.take(4, true, Header::SendLast, b"abc");
    assert!(matches!(side.sent_at_work()[..], [Header::Acknowledge(_)]));
}

#[test]
fn nothing_is_acknowledged_that_did_not_ask_for_it() {
    let mut side = Side::new();
    side.post_receive(0, 100);
    side.take(0, false, Header::SendOnly, b"abc");
    assert_eq!(side.sent(), []);
    assert_eq!(side.completions().len(), 1);
}

#[test]
fn a_gap_is_reported_once() {
    let mut side = Side::new();
    for id in 0..3 {
        side.post_receive(id, 100);
    }
    side.take(1, true, Header::SendOnly, b"b");
    side.take(2, true, Header::SendOnly, b"c");
    assert_eq!(acknowledgements(&side.sent()), [(nth(0), SEQUENCE)]);
    side.take(2, true, Header::SendOnly, b"c");
    assert_eq!(side.sent(), [], "the peer knows");
    for (after, text) in [(0, b"a"), (1, b"b"), (2, b"c")] {
        side.take(after, after == 2, Header::SendOnly, text);
    }
    assert_eq!(acknowledgements(&side.sent()), [(nth(2), Syndrome::ACK)]);
    side.take(4, true, Header::SendOnly, b"e");
    assert_eq!(acknowledgements(&side.sent()), [(nth(3), SEQUENCE)], "another gap is reported again");
}

#[test]
fn a_duplicate_is_acknowledged_and_not_executed() {
    let mut side = Side::new();
    let target = reth(&side, 100, 3);
    side.take(0, true, Header::WriteOnly(target), b"old");
    side.take(1, true, Header::WriteOnly(target), b"new");
    side.sent();
    side.take(0, true, Header::WriteOnly(target), b"old");
    assert_eq!(side.bytes(100, 3), b"new");
    assert_eq!(acknowledgements(&side.sent()), [(nth(1), Syndrome::ACK)]);
}

/// The response may come later than the acknowledgement, which then must not be for it.
#[test]
fn a_duplicate_acknowledges_no_read_or_atomic() {
    let mut side = Side::new();
    let (target, add) =
        (reth(&side, 100, 3), AtomicEth { address: 0, key: side.remote.0, swap_or_add: 1, compare: 0 });
    side.take(0, true, Header::WriteOnly(target), b"old");
    side.take(1, true, Header::WriteOnly(target), b"new");
    side.sent();
    for answered in [Header::ReadRequest(reth(&side, 0, 300)), Header::FetchAdd(add)] {
        let after = if matches!(answered, Header::FetchAdd(_)) { 4 } else { 2 };
        side.take(after, true, answered, &[]);
        side.sent();
        side.take(0, true, Header::WriteOnly(target), b"old");
        assert_eq!(acknowledgements(&side.sent()), [(nth(1), Syndrome::ACK)], "{answered:?}");
    }
}

#[test]
fn a_message_waits_for_a_receive() {
    let mut side = Side::new();
    side.take(0, true, Header::SendOnly, b"abc");
    // What is behind it is not a gap.
    side.take(1, true, Header::SendOnly, b"def");
    let rnr = Syndrome::RnrNak(RnrTimer::at_least(120));
    assert_eq!(acknowledgements(&side.sent()), [(nth(0), rnr)]);
    side.post_receive(5, 10);
    side.take(0, true, Header::SendOnly, b"abc");
    assert_eq!(acknowledgements(&side.sent()), [(nth(0), Syndrome::ACK)]);
    assert_eq!(side.outcomes(), [(5, Status::Success)]);
}

#[test]
fn a_write_with_immediate_waits_for_a_receive_at_its_end() {
    let mut side = Side::new();
    let target = reth(&side, 0, 260);
    side.take(0, false, Header::WriteFirst(target), &[1; 256]);
    side.take(1, true, Header::WriteLastImmediate(9), &[2; 4]);
    assert_eq!(side.bytes(0, 256), [1; 256]);
    assert!(matches!(acknowledgements(&side.sent())[..], [(psn, Syndrome::RnrNak(_))] if psn == nth(1)));
    side.post_receive(5, 0);
    side.take(1, true, Header::WriteLastImmediate(9), &[2; 4]);
    let completion = side.completions()[0];
    assert_eq!((completion.length, completion.immediate), (260, Some(9)));
    assert_eq!(side.bytes(256, 4), [2; 4]);
}

#[test]
fn a_read_is_answered_again_from_where_the_peer_asks() {
    let mut side = Side::new();
    let (all, rest) = (reth(&side, 0, 600), reth(&side, 256, 344));
    side.take(0, true, Header::ReadRequest(all), &[]);
    let sent = side.sent();
    let kinds: Vec<_> = sent.iter().map(|sent| (sent.bth.psn, sent.payload.len())).collect();
    assert_eq!(kinds, [(nth(0), 256), (nth(1), 256), (nth(2), 88)]);
    assert!(matches!(sent[0].header, Header::ReadResponseFirst(_)));
    assert!(matches!(sent[1].header, Header::ReadResponseMiddle));
    assert!(matches!(sent[2].header, Header::ReadResponseLast(_)));
    // A later request takes the PSN after the response's.
    side.take(3, true, Header::WriteOnly(reth(&side, 300, 2)), b"!!");
    side.sent();
    side.take(1, true, Header::ReadRequest(rest), &[]);
    let again = side.sent();
    assert_eq!(again.iter().map(|sent| sent.bth.psn).collect::<Vec<_>>(), [nth(1), nth(2)]);
    assert!(matches!(again[0].header, Header::ReadResponseFirst(_)));
    assert_eq!(again[0].payload[44..46], *b"!!", "it is read again");
    side.take(1, true, Header::ReadRequest(reth(&side, 0, 344)), &[]);
    assert_eq!(side.sent(), [], "that is not what was asked before");
}

/// READs and atomics whose responses were lost are answered again before later ones that still wait, which a peer that goes
/// back would drop and not ask for again.
#[test]
fn what_is_answered_again_goes_before_what_is_later() {
    let attributes = ReceiveAttributes { max_dest_rd_atomic: 4, ..receive_attributes() };
    let mut side = Side::with(&configuration(), &attributes, &send_attributes());
    let word = AtomicEth { address: 64, key: side.remote.0, swap_or_add: 5, compare: 0 };
    let long = Header::ReadRequest(reth(&side, 0, 600));
    side.take(0, true, long, &[]);
    side.take(3, true, Header::FetchAdd(word), &[]);
    assert_eq!(side.sent().len(), 4);
    side.take(4, true, long, &[]);
    side.take(7, true, Header::WriteOnly(reth(&side, 1000, 1)), b"!");
    side.take(8, true, Header::ReadRequest(reth(&side, 0, 8)), &[]);
    assert_eq!(side.sent_one().bth.psn, nth(4), "the first packet of a later response is out");
    side.take(3, true, Header::FetchAdd(word), &[]);
    side.take(1, true, Header::ReadRequest(reth(&side, 256, 344)), &[]);
    let psns: Vec<_> = side.sent().iter().map(|sent| sent.bth.psn).collect();
    assert_eq!(psns, [1, 2, 3, 5, 6, 7, 8].map(nth));
}

/// Toward a peer that asks for single packets it goes last, as what was asked for last.
#[test]
fn what_is_answered_again_goes_in_the_order_of_asking_where_acknowledgement_is_selective() {
    let mut side = Side::selective();
    side.take(0, true, Header::ReadRequest(reth(&side, 0, 300)), &[]);
    side.sent();
    side.take(2, true, Header::ReadRequest(reth(&side, 0, 8)), &[]);
    side.take(1, true, Header::ReadRequest(reth(&side, 256, 44)), &[]);
    let responses: Vec<_> =
        side.sent().iter().filter(|sent| !sent.payload.is_empty()).map(|sent| sent.bth.psn).collect();
    assert_eq!(responses, [2, 1].map(nth));
}

#[test]
fn an_atomic_is_executed_once_and_answered_again() {
    let mut side = Side::new();
    let word = AtomicEth { address: 64, key: side.remote.0, swap_or_add: 5, compare: 0 };
    let before = u64::from_ne_bytes(side.bytes(64, 8).try_into().unwrap());
    for _ in 0..3 {
        side.take(0, true, Header::FetchAdd(word), &[]);
        let sent = side.sent();
        assert!(
            matches!(sent[..], [peer::Sent { header: Header::AtomicAcknowledge(_, old), .. }] if old == before)
        );
    }
    assert_eq!(u64::from_ne_bytes(side.bytes(64, 8).try_into().unwrap()), before.wrapping_add(5));
}

#[test]
fn what_answers_a_request_counts_the_messages_up_to_it() {
    let mut side = Side::new();
    side.post_receive(0, 100);
    let read = Header::ReadRequest(reth(&side, 0, 300));
    let word = AtomicEth { address: 64, key: side.remote.0, swap_or_add: 5, compare: 0 };
    let counts = |side: &mut Side| -> Vec<_> {
        let count = |header: &Header| match header {
            Header::ReadResponseFirst(aeth) | Header::ReadResponseLast(aeth) => Some(aeth.msn),
            Header::AtomicAcknowledge(aeth, _) | Header::Acknowledge(aeth) => Some(aeth.msn),
            _ => None,
        };
        side.sent().iter().filter_map(|sent| count(&sent.header)).collect()
    };
    side.take(0, true, read, &[]);
    side.take(2, true, Header::SendOnly, b"abc");
    side.take(3, true, Header::FetchAdd(word), &[]);
    assert_eq!(counts(&mut side), [1, 1, 2, 3]);
    side.take(0, true, read, &[]);
    side.take(2, true, Header::SendOnly, b"abc");
    side.take(3, true, Header::FetchAdd(word), &[]);
    assert_eq!(counts(&mut side), [1, 1, 2, 3], "the second time as well");
}

#[test]
fn more_reads_than_agreed_are_refused() {
    let mut side = Side::new();
    for after in 0..3 {
        side.take(after, true, Header::ReadRequest(reth(&side, 0, 8)), &[]);
    }
    assert_eq!(side.queue_pair.failure(), Some(Failure::InvalidRequestReceived));
    let sent = side.sent();
    assert_eq!(sent.len(), 3, "what came before is answered");
    assert_eq!(acknowledgements(&sent), [(nth(2), Syndrome::Nak(NakCode::InvalidRequest))]);
}

#[test]
fn what_makes_no_sense_is_refused_and_the_refusal_repeated() {
    let cases: [(Header, &[u8]); 6] = [
        (Header::SendMiddle, &[0; 256]),
        (Header::WriteLast, &[0; 4]),
        (Header::SendFirst, &[0; 255]),
        (Header::WriteOnly(Reth { address: 0, key: 0, length: 5 }), &[0; 4]),
        (Header::ReadRequest(Reth { address: 0, key: 0, length: (1 << 31) + 1 }), &[]),
        (Header::FetchAdd(AtomicEth { address: 4, key: 0, swap_or_add: 1, compare: 0 }), &[]),
    ];
    for (header, payload) in cases {
        let mut side = Side::new();
        side.post_receive(0, 1000);
        side.post_receive(1, 1000);
        let header = with_key(header, side.remote.0);
        for _ in 0..2 {
            side.take(0, true, header, payload);
            let expected = [(nth(0), Syndrome::Nak(NakCode::InvalidRequest))];
            assert_eq!(acknowledgements(&side.sent()), expected, "{header:?}");
        }
        assert_eq!(side.queue_pair.state(), State::Error);
        assert_eq!(side.outcomes(), [(0, Status::Flushed), (1, Status::Flushed)]);
    }
}

#[test]
fn a_request_of_an_unknown_kind_is_refused_when_it_is_its_turn() {
    let mut side = Side::new();
    side.post_receive(0, 100);
    side.queue_pair.handle_unknown_request(nth(1));
    side.queue_pair.handle_unknown_request(RECEIVE_PSN.minus(1));
    assert_eq!((side.sent(), side.queue_pair.failure()), (Vec::new(), None));
    side.take(0, false, Header::SendOnly, b"abc");
    side.queue_pair.handle_unknown_request(nth(1));
    let invalid = Syndrome::Nak(NakCode::InvalidRequest);
    assert_eq!(acknowledgements(&side.sent()), [(nth(1), invalid)]);
    assert_eq!(side.queue_pair.failure(), Some(Failure::InvalidRequestReceived));
    side.take(1, true, Header::SendOnly, b"abc");
    assert_eq!(acknowledgements(&side.sent()), [(nth(1), invalid)], "it is said again");
}

fn with_key(header: Header, key: u32) -> Header {
    match header {
        Header::WriteOnly(reth) => Header::WriteOnly(Reth { key, ..reth }),
        Header::ReadRequest(reth) => Header::ReadRequest(Reth { key, ..reth }),
        Header::FetchAdd(atomic) => Header::FetchAdd(AtomicEth { key, ..atomic }),
        other => other,
    }
}

#[test]
fn memory_that_was_not_granted_is_refused() {
    let side = Side::new();
    let (key, end) = (side.remote.0, 64 << 10);
    let cases = [
        Header::WriteOnly(Reth { address: 0, key: key ^ 0x8000_0000, length: 4 }),
        Header::WriteOnly(Reth { address: end - 3, key, length: 4 }),
        Header::WriteOnly(Reth { address: u64::MAX, key, length: 4 }),
        Header::ReadRequest(Reth { address: end - 3, key, length: 4 }),
        Header::FetchAdd(AtomicEth { address: end, key, swap_or_add: 1, compare: 0 }),
    ];
    for header in cases {
        let mut side = Side::new();
        let payload: &[u8] = if matches!(header, Header::WriteOnly(_)) { b"abcd" } else { &[] };
        side.take(0, true, header, payload);
        assert_eq!(
            acknowledgements(&side.sent()),
            [(nth(0), Syndrome::Nak(NakCode::RemoteAccess))],
            "{header:?}"
        );
        assert_eq!(side.queue_pair.failure(), Some(Failure::AccessRefused));
    }
}

#[test]
fn no_bytes_need_no_key() {
    let mut side = Side::new();
    let nothing = Reth { address: u64::MAX, key: 0, length: 0 };
    side.take(0, true, Header::WriteOnly(nothing), &[]);
    side.take(1, true, Header::ReadRequest(nothing), &[]);
    let sent = side.sent();
    assert_eq!(acknowledgements(&sent), [(nth(0), Syndrome::ACK)]);
    assert!(matches!(sent[1].header, Header::ReadResponseOnly(_)) && sent[1].payload.is_empty());
}

#[test]
fn a_message_longer_than_its_receive_fails_both_queues() {
    let mut side = Side::new();
    side.post_receive(0, 3);
    side.post_receive(1, 3);
    side.take(0, true, Header::SendOnly, b"abcd");
    assert_eq!(acknowledgements(&side.sent()), [(nth(0), Syndrome::Nak(NakCode::InvalidRequest))]);
    assert_eq!(side.outcomes(), [(0, Status::LocalLength), (1, Status::Flushed)]);
    assert_eq!(side.queue_pair.failure(), Some(Failure::ReceiveTooShort));
}

#[test]
fn what_is_kept_ahead_of_a_gap_is_executed_when_the_gap_is_closed() {
    let mut side = Side::selective();
    for id in 0..3 {
        side.post_receive(id, 100);
    }
    side.take(2, true, Header::SendOnly, b"c");
    side.take(1, true, Header::SendOnly, b"b");
    let sent = side.sent();
    assert!(matches!(sent[..], [peer::Sent { header: Header::SelectiveAcknowledge(_), .. }]), "{sent:?}");
    assert_eq!(sent[0].bth.psn, nth(0).minus(1), "nothing is executed");
    assert_eq!(sent[0].payload[8..], (0b110_u64).to_be_bytes());
    assert_eq!(side.outcomes(), []);
    side.take(0, true, Header::SendOnly, b"a");
    let lengths: Vec<_> = side.completions().iter().map(|completion| completion.id).collect();
    assert_eq!(lengths, [0, 1, 2]);
    let sent = side.sent();
    assert_eq!((sent[0].bth.psn, sent[0].payload.len()), (nth(2), 8), "nothing is missing");
}

#[test]
fn the_largest_path_mtu_is_what_was_set_aside() {
    let attributes = ReceiveAttributes { path_mtu: PathMtu::Mtu4096, ..receive_attributes() };
    let mut side = Side::with(&configuration(), &attributes, &send_attributes());
    side.take(0, true, Header::WriteFirst(reth(&side, 0, 4097)), &[1; 4096]);
    side.take(1, true, Header::WriteLast, &[2]);
    assert_eq!(acknowledgements(&side.sent()), [(nth(1), Syndrome::ACK)]);
    assert_eq!(side.bytes(4095, 2), [1, 2]);
}
