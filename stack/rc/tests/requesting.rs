//! What a requester sends, and what it makes of answers made by hand.

mod peer;

use peer::{
    MTU, RECEIVE_PSN, SEND_PSN, SEQUENCE, Side, TIMEOUT_NS, acknowledgements, places, send_attributes,
};
use ringway_rc::{
    Adjustment, AttributeError, Failure, QueuePair, Retries, SendAttributes, State, Transition,
};
use ringway_verbs::{
    Access, LocalKey, LocalSlice, Operation, PostError, RemoteKey, RemoteSlice, Status, Time, WorkRequest,
};
use ringway_wire::{Aeth, Header, NakCode, Opcode, RnrTimer, Syndrome};

const AETH: Aeth = Aeth { syndrome: Syndrome::ACK, msn: 0 };

fn with(send: &SendAttributes) -> Side {
    Side::with(&peer::configuration(), &peer::receive_attributes(), send)
}

#[test]
fn messages_are_cut_at_the_path_mtu() {
    use Opcode::{SendFirst, SendLast, SendMiddle, SendOnly};
    let cases: [(u64, &[Opcode]); 6] = [
        (0, &[SendOnly]),
        (1, &[SendOnly]),
        (256, &[SendOnly]),
        (257, &[SendFirst, SendLast]),
        (512, &[SendFirst, SendLast]),
        (513, &[SendFirst, SendMiddle, SendLast]),
    ];
    for (length, expected) in cases {
        let mut side = Side::new();
        side.post(0, Operation::Send { immediate: None }, length);
        let sent = side.sent();
        assert_eq!(sent.iter().map(|sent| sent.header.opcode()).collect::<Vec<_>>(), expected);
        let bytes: Vec<u8> = sent.iter().flat_map(|sent| sent.payload.clone()).collect();
        assert_eq!(bytes, side.bytes(0, length as usize));
        assert!(
            sent.iter().zip(0..).all(|(sent, after)| sent.bth.psn == SEND_PSN.plus(after)),
            "past the wrap"
        );
        let last: Vec<_> = sent.iter().map(|sent| (sent.bth.ack_request, sent.bth.solicited)).collect();
        assert!(
            last[..last.len() - 1].iter().all(|bits| *bits == (false, false))
                && last[last.len() - 1] == (true, true)
        );
    }
}

#[test]
fn headers_stand_where_they_belong() {
    let mut side = Side::new();
    let remote = RemoteSlice { key: RemoteKey(7), offset: 0x1000 };
    side.post(0, Operation::WriteWithImmediate { remote, immediate: 5 }, 300);
    side.post(1, Operation::WriteWithImmediate { remote, immediate: 6 }, 1);
    side.post(2, Operation::Send { immediate: Some(7) }, 300);
    let headers: Vec<_> = side.sent().iter().map(|sent| sent.header).collect();
    let reth = |length| ringway_wire::Reth { address: 0x1000, key: 7, length };
    assert_eq!(
        headers,
        [
            Header::WriteFirst(reth(300)),
            Header::WriteLastImmediate(5),
            Header::WriteOnlyImmediate(reth(1), 6),
            Header::SendFirst,
            Header::SendLastImmediate(7),
        ]
    );
}

#[test]
fn two_segments_become_one_message() {
    let mut side = Side::new();
    let local = [side.slice(1000, 200), side.slice(9000, 100)];
    let operation = Operation::Send { immediate: None };
    let request = WorkRequest { id: 0, operation, local, signalled: true, fence: false };
    side.queue_pair.post_send(&request).unwrap();
    let bytes: Vec<u8> = side.sent().iter().flat_map(|sent| sent.payload.clone()).collect();
    assert_eq!(bytes, [side.bytes(1000, 200), side.bytes(9000, 100)].concat());
}

#[test]
fn an_acknowledgement_is_asked_for_now_and_then_and_at_a_full_window() {
    let mut side = with(&SendAttributes { window: 70, ..send_attributes() });
    side.post(0, side.write(), 100 * MTU.bytes() as u64);
    let asked: Vec<u32> = side
        .sent()
        .iter()
        .filter(|sent| sent.bth.ack_request)
        .map(|sent| sent.bth.psn.above(SEND_PSN))
        .collect();
    assert_eq!(asked, [17, 35, 53, 69]);
    side.acknowledge(69, Syndrome::ACK);
    assert_eq!(side.sent().len(), 30);
}

#[test]
fn one_acknowledgement_completes_all_before_it_and_no_silent_ones() {
    let mut side = Side::new();
    for id in 0..4 {
        let request = WorkRequest { signalled: id % 2 == 0, ..side.request(id, side.write(), 8) };
        side.queue_pair.post_send(&request).unwrap();
    }
    side.sent();
    side.acknowledge(3, Syndrome::ACK);
    assert_eq!(side.outcomes(), [(0, Status::Success), (2, Status::Success)]);
    assert_eq!(side.queue_pair.next_timeout(Time(0)), None, "nothing is outstanding");
}

#[test]
fn made_up_acknowledgements_mean_nothing() {
    let mut side = Side::new();
    side.post(0, side.write(), 8);
    side.acknowledge(0, Syndrome::ACK);
    side.sent();
    side.acknowledge(1, Syndrome::ACK);
    side.acknowledge(1 << 23, Syndrome::Nak(NakCode::RemoteAccess));
    side.answer(5, Header::ReadResponseOnly(AETH), &[1]);
    assert_eq!(side.outcomes(), []);
    assert_eq!(side.queue_pair.state(), State::ReadyToSend);
}

#[test]
fn silence_ends_after_the_retries() {
    let mut side = Side::new();
    side.post(0, side.write(), 300);
    side.post(1, side.write(), 8);
    for _ in 0..3 {
        assert_eq!(places(&side.sent()), [0, 1, 2]);
        assert_eq!(side.wait(), TIMEOUT_NS);
    }
    assert_eq!(side.queue_pair.failure(), Some(Failure::RetriesExceeded));
    assert_eq!(side.outcomes(), [(0, Status::TransportLost), (1, Status::Flushed)]);
    side.post(2, side.write(), 8);
    assert_eq!(side.outcomes(), [(2, Status::Flushed)]);
    assert_eq!(side.sent(), []);
}

#[test]
fn progress_starts_the_count_anew() {
    let mut side = Side::new();
    side.post(0, side.write(), 600);
    for after in 0..3 {
        side.sent();
        side.wait();
        side.sent();
        side.wait();
        assert_eq!(places(&side.sent()).first(), Some(&after), "only what is missing");
        side.acknowledge(after, Syndrome::ACK);
    }
    assert_eq!(side.outcomes(), [(0, Status::Success)]);
}

#[test]
fn a_sequence_nak_goes_back_to_what_is_missing() {
    let mut side = Side::new();
    side.post(0, side.write(), 8);
    side.post(1, side.write(), 600);
    assert_eq!(places(&side.sent()), [0, 1, 2, 3]);
    side.acknowledge(2, SEQUENCE);
    assert_eq!(side.outcomes(), [(0, Status::Success)]);
    assert_eq!(places(&side.sent()), [2, 3]);
}

#[test]
fn a_receiver_that_is_not_ready_holds_back_for_as_long_as_it_says() {
    let mut side = Side::new();
    side.post(0, Operation::Send { immediate: None }, 8);
    side.post(1, Operation::Send { immediate: None }, 8);
    side.sent();
    side.acknowledge(0, Syndrome::RnrNak(RnrTimer::at_least(120)));
    // What was behind it is out of sequence, which is no news.
    side.acknowledge(0, SEQUENCE);
    assert_eq!(side.sent(), []);
    assert_eq!(side.wait(), 120_000);
    assert_eq!(places(&side.sent()), [0, 1]);
    side.acknowledge(0, Syndrome::RnrNak(RnrTimer::at_least(10)));
    assert_eq!(side.queue_pair.failure(), Some(Failure::RnrRetriesExceeded));
    assert_eq!(side.outcomes(), [(0, Status::TransportLost), (1, Status::Flushed)]);
}

#[test]
fn waiting_for_a_receiver_is_no_silence() {
    for mode in [Side::new, Side::selective] {
        let mut side = mode();
        side.post(0, Operation::Send { immediate: None }, 8);
        side.sent();
        side.acknowledge(0, Syndrome::RnrNak(RnrTimer::at_least(10_000)));
        assert_eq!(side.wait(), 10_240_000, "much longer than the ACK timeout");
        assert_eq!(places(&side.sent()), [0]);
        for _ in 0..2 {
            let mut waited = 0;
            while waited < TIMEOUT_NS {
                waited += side.wait();
            }
            side.sent();
        }
        assert_eq!(side.queue_pair.failure(), None, "all retries are left");
    }
}

#[test]
fn refusals_have_their_statuses_and_flush_the_rest() {
    let cases = [
        (NakCode::InvalidRequest, Status::RemoteInvalidRequest, Failure::RemoteInvalidRequest),
        (NakCode::RemoteAccess, Status::RemoteAccess, Failure::RemoteAccess),
        (NakCode::RemoteOperational, Status::TransportLost, Failure::RemoteOperational),
    ];
    for (code, status, failure) in cases {
        let mut side = Side::new();
        side.post_receive(9, 8);
        for id in 0..3 {
            let request = WorkRequest { signalled: false, ..side.request(id, side.write(), 8) };
            side.queue_pair.post_send(&request).unwrap();
        }
        side.sent();
        side.acknowledge(1, Syndrome::Nak(code));
        assert_eq!(side.queue_pair.failure(), Some(failure));
        assert_eq!(side.outcomes(), [(1, status), (2, Status::Flushed), (9, Status::Flushed)]);
    }
}

#[test]
fn a_read_is_asked_again_from_the_first_missing_packet() {
    let mut side = Side::new();
    side.post(0, side.read(), 600);
    side.post(1, side.write(), 8);
    assert_eq!(places(&side.sent()), [0, 3]);
    side.answer(0, Header::ReadResponseFirst(AETH), &[1; 256]);
    side.answer(2, Header::ReadResponseLast(AETH), &[3; 88]);
    let sent = side.sent();
    assert_eq!(places(&sent), [1, 3]);
    let Header::ReadRequest(reth) = sent[0].header else { panic!("{sent:?}") };
    assert_eq!((reth.address, reth.length), (0x1000 + 256, 344));
    // Once, however many packets show the same loss.
    side.answer(2, Header::ReadResponseLast(AETH), &[3; 88]);
    side.acknowledge(3, Syndrome::ACK);
    assert_eq!(side.sent(), []);
    side.answer(1, Header::ReadResponseFirst(AETH), &[2; 256]);
    side.answer(2, Header::ReadResponseLast(AETH), &[3; 88]);
    side.acknowledge(3, Syndrome::ACK);
    assert_eq!(side.outcomes(), [(0, Status::Success), (1, Status::Success)]);
    assert_eq!(side.bytes(0, 600), [vec![1; 256], vec![2; 256], vec![3; 88]].concat());
}

#[test]
fn an_acknowledgement_does_not_stand_for_a_response() {
    let mut side = Side::new();
    side.post(0, side.read(), 8);
    side.post(1, side.write(), 8);
    side.sent();
    side.acknowledge(1, Syndrome::ACK);
    assert_eq!(side.outcomes(), []);
    assert_eq!(places(&side.sent()), [0, 1]);
}

#[test]
fn a_response_that_does_not_fit_fails() {
    for payload in [7, 9] {
        let mut side = Side::new();
        side.post(0, side.read(), 8);
        side.sent();
        side.answer(0, Header::ReadResponseOnly(AETH), &vec![1; payload]);
        assert_eq!(side.queue_pair.failure(), Some(Failure::BadResponse));
    }
}

#[test]
fn an_answer_that_says_no_or_ends_elsewhere_is_no_success() {
    let refused = Aeth { syndrome: Syndrome::Nak(NakCode::RemoteAccess), ..AETH };
    let fails = |operation: fn(&Side) -> Operation, length, header, payload: &[u8]| {
        let mut side = Side::new();
        side.post(0, operation(&side), length);
        side.sent();
        side.answer(0, header, payload);
        assert_eq!(side.queue_pair.failure(), Some(Failure::BadResponse), "{header:?}");
        assert_eq!(side.outcomes(), [(0, Status::TransportLost)]);
    };
    fails(Side::read, 8, Header::ReadResponseOnly(refused), &[1; 8]);
    fails(Side::read, 300, Header::ReadResponseFirst(refused), &[1; 256]);
    fails(Side::read, 300, Header::ReadResponseLast(AETH), &[1; 256]);
    fails(Side::read, 300, Header::ReadResponseOnly(AETH), &[1; 256]);
    fails(Side::read, 256, Header::ReadResponseFirst(AETH), &[1; 256]);
    let fetch_add = |side: &Side| match side.read() {
        Operation::Read { remote } => Operation::FetchAdd { remote, add: 1 },
        other => other,
    };
    fails(fetch_add, 8, Header::AtomicAcknowledge(refused, 1), &[]);
    // What belongs to nothing outstanding says nothing.
    let mut side = Side::new();
    side.post(0, side.read(), 8);
    side.sent();
    side.answer(7, Header::ReadResponseOnly(refused), &[1; 8]);
    side.answer(0, Header::ReadResponseOnly(AETH), &[1; 8]);
    assert_eq!(side.outcomes(), [(0, Status::Success)]);
}

#[test]
fn reads_outstanding_are_limited_and_a_fence_waits_for_them() {
    let mut side = Side::new();
    for id in 0..3 {
        side.post(id, side.read(), 8);
    }
    let fenced = WorkRequest { fence: true, ..side.request(3, side.write(), 8) };
    side.queue_pair.post_send(&fenced).unwrap();
    assert_eq!(places(&side.sent()), [0, 1]);
    side.answer(0, Header::ReadResponseOnly(AETH), &[1; 8]);
    assert_eq!(places(&side.sent()), [2]);
    side.answer(1, Header::ReadResponseOnly(AETH), &[1; 8]);
    assert_eq!(side.sent(), []);
    side.answer(2, Header::ReadResponseOnly(AETH), &[1; 8]);
    assert_eq!(places(&side.sent()), [3]);
}

#[test]
fn memory_that_is_gone_fails_the_request_after_those_before_it() {
    let mut side = Side::new();
    side.post(0, side.write(), 8);
    let gone = [LocalSlice { key: LocalKey(99), offset: 0, length: 8 }, LocalSlice::default()];
    let request = WorkRequest { local: gone, ..side.request(1, side.write(), 8) };
    side.queue_pair.post_send(&request).unwrap();
    side.post(2, side.write(), 8);
    assert_eq!(places(&side.sent()), [0]);
    assert_eq!(side.outcomes(), []);
    side.acknowledge(0, Syndrome::ACK);
    let expected = [(0, Status::Success), (1, Status::LocalProtection), (2, Status::Flushed)];
    assert_eq!(side.outcomes(), expected);
}

#[test]
fn notifications_of_congestion_are_sent_and_slow_down() {
    let mut side = Side::new();
    side.take_marked(
        RECEIVE_PSN,
        false,
        Header::WriteOnly(ringway_wire::Reth { address: 0, key: 0, length: 0 }),
        &[],
        true,
    );
    let sent = side.sent();
    assert!(matches!(sent[..], [peer::Sent { header: Header::Cnp, .. }]) && sent[0].bth.becn, "{sent:?}");
    side.post(0, side.write(), 100 * 256);
    side.take_marked(SEND_PSN, false, Header::Cnp, &[], false);
    let first = side.sent().len();
    assert!(first < 100, "{first}");
    let next = side.queue_pair.next_timeout(Time(side.now)).unwrap();
    assert!(next.0 < TIMEOUT_NS, "it goes on soon");
    side.now = next.0;
    assert!(!side.sent().is_empty());
}

/// Ringway ends report marks and send no notifications: one that comes was made up.
#[test]
fn notifications_of_congestion_slow_nothing_down_where_acknowledgement_is_selective() {
    let mut side = Side::selective();
    for _ in 0..100 {
        side.take_marked(SEND_PSN, false, Header::Cnp, &[], false);
        side.now += 50_000;
    }
    side.post(0, side.write(), 20 * 256);
    assert_eq!(side.sent().len(), 20);
    assert_eq!(side.queue_pair.counters().notifications_received, 100);
}

#[test]
fn only_what_was_lost_goes_out_again_between_ends_that_agreed() {
    let mut side = Side::selective();
    side.post(0, side.write(), 10 * 256);
    assert_eq!(side.sent().len(), 10);
    // The third is missing; six after it are here.
    let mut report = vec![0; 8];
    report[..4].copy_from_slice(&SEND_PSN.plus(8).value().to_be_bytes());
    report.extend((0b111_1110_u64).to_be_bytes());
    side.answer(1, Header::SelectiveAcknowledge(AETH), &report);
    assert_eq!(places(&side.sent()), [2]);
    let mut report = vec![0; 8];
    report[..4].copy_from_slice(&SEND_PSN.plus(2).value().to_be_bytes());
    side.answer(9, Header::SelectiveAcknowledge(AETH), &report);
    assert_eq!(side.outcomes(), [(0, Status::Success)]);
}

#[test]
fn a_lost_tail_is_probed_for_long_before_the_timeout() {
    let attributes = SendAttributes { timeout: 14, ..send_attributes() };
    let configuration = ringway_rc::Configuration { selective_window: 64, ..peer::configuration() };
    let receive = ringway_rc::ReceiveAttributes { selective: true, ..peer::receive_attributes() };
    let mut side = Side::with(&configuration, &receive, &attributes);
    side.post(0, side.write(), 3 * 256);
    side.sent();
    assert!(side.wait() <= 2_000_000);
    let again = places(&side.sent());
    assert!(again.contains(&2) && again.len() <= 2, "{again:?}");
}

#[test]
fn more_may_be_posted_than_there_are_numbers_for() {
    for mode in [Side::new, Side::selective] {
        let mut side = mode();
        let remote = RemoteSlice { key: RemoteKey(7), offset: 0x1000 };
        side.post(0, side.read(), 600);
        // Each takes a quarter of all PSNs.
        for id in 1..16 {
            let mut request = side.request(id, Operation::Read { remote }, 1 << 30);
            request.local[0].key = LocalKey(99);
            side.queue_pair.post_send(&request).unwrap();
        }
        assert_eq!(places(&side.sent()), [0, 3]);
        side.answer(0, Header::ReadResponseFirst(AETH), &[1; 256]);
        side.answer(1, Header::ReadResponseMiddle, &[2; 256]);
        side.answer(2, Header::ReadResponseLast(AETH), &[3; 88]);
        assert_eq!(side.outcomes(), [(0, Status::Success)]);
        assert_eq!(side.bytes(0, 600), [vec![1; 256], vec![2; 256], vec![3; 88]].concat());
        // There is no memory for the second one, which fails, and nothing before it.
        side.answer(3, Header::ReadResponseFirst(AETH), &[4; 256]);
        assert_eq!(side.outcomes()[0], (1, Status::LocalProtection));
    }
}

#[test]
fn the_states_follow_one_another() {
    let mut queue_pair = QueuePair::new(&peer::configuration()).unwrap();
    let initialize = Transition::Initialize(peer::initialization());
    let receive = Transition::ReadyToReceive(peer::receive_attributes());
    let send = Transition::ReadyToSend(send_attributes());
    let wrong = |from, expected| Err(AttributeError::WrongState { from, expected });
    assert_eq!(queue_pair.modify(&receive), wrong(State::Reset, State::Initialized));
    assert_eq!(queue_pair.modify(&initialize), Ok(()));
    assert_eq!(queue_pair.modify(&initialize), wrong(State::Initialized, State::Reset));
    assert_eq!(queue_pair.modify(&send), wrong(State::Initialized, State::ReadyToReceive));
    assert_eq!(queue_pair.modify(&receive), Ok(()));
    let side = Side::new();
    let request = side.request(0, side.write(), 8);
    assert_eq!(queue_pair.post_send(&request), Err(PostError::WrongState));
    assert_eq!(queue_pair.modify(&send), Ok(()));
    assert_eq!(queue_pair.post_send(&request), Ok(()));
    assert_eq!(queue_pair.modify(&Transition::Error), Ok(()));
    assert_eq!(queue_pair.poll_completion().map(|completion| completion.status), Some(Status::Flushed));
    assert_eq!(queue_pair.modify(&initialize), wrong(State::Error, State::Reset));
    assert_eq!(queue_pair.modify(&Transition::Reset), Ok(()));
    assert_eq!(queue_pair.modify(&initialize), Ok(()));
}

#[test]
fn what_has_begun_ends_while_the_send_queue_is_drained_and_nothing_begins() {
    for mode in [Side::new, Side::selective] {
        let mut side = mode();
        side.post(0, side.write(), 4 * MTU.bytes() as u64);
        side.post(1, side.read(), 600);
        // Two packets of the first request are on their way.
        assert_eq!([side.sent_one(), side.sent_one()].map(|sent| places(&[sent])), [[0], [1]]);
        side.queue_pair.modify(&Transition::Drain).unwrap();
        side.post(2, side.write(), 8);
        assert_eq!(places(&side.sent()), [2, 3]);
        // Lost packets go out again.
        side.wait();
        assert!(!side.sent().is_empty() && !side.queue_pair.is_drained());
        side.acknowledge(3, Syndrome::ACK);
        assert!(side.sent().is_empty() && side.queue_pair.is_drained());
        assert_eq!(side.outcomes(), [(0, Status::Success)]);
        assert_eq!(side.queue_pair.next_timeout(Time(side.now)), None, "nothing is outstanding");
        // The peer is served meanwhile.
        side.post_receive(9, 64);
        side.take(0, true, Header::SendOnly, &[1; 64]);
        assert_eq!(side.outcomes(), [(9, Status::Success)]);
        side.queue_pair.modify(&Transition::Resume(None)).unwrap();
        let begun: Vec<u32> = places(&side.sent()).into_iter().filter(|place| *place >= 4).collect();
        assert_eq!(begun, [4, 7]);
        assert!(!side.queue_pair.is_drained());
    }
}

#[test]
fn a_send_queue_is_drained_and_resumed_where_it_may_be() {
    let mut side = Side::new();
    let wrong = |from, expected| Err(AttributeError::WrongState { from, expected });
    let (ready, draining) = (State::ReadyToSend, State::SendQueueDrain);
    let adjustment = Adjustment { access: Access::default(), min_rnr_timer: RnrTimer::at_least(500) };
    assert_eq!(side.queue_pair.modify(&Transition::Resume(None)), wrong(ready, draining));
    assert_eq!(side.queue_pair.modify(&Transition::Drain), Ok(()));
    assert!(side.queue_pair.is_drained(), "nothing has begun");
    assert_eq!(side.queue_pair.modify(&Transition::Drain), wrong(draining, ready));
    assert_eq!(side.queue_pair.modify(&Transition::Adjust(adjustment)), wrong(draining, ready));
    assert_eq!(
        side.queue_pair.modify(&Transition::ReadyToSend(send_attributes())),
        wrong(draining, State::ReadyToReceive)
    );
    // What it may be given then holds at once.
    assert_eq!(side.queue_pair.modify(&Transition::Resume(Some(adjustment))), Ok(()));
    side.take(0, true, Header::SendOnly, &[1; 64]);
    let said = acknowledgements(&side.sent());
    assert_eq!(said, [(RECEIVE_PSN, Syndrome::RnrNak(RnrTimer::at_least(500)))]);
    // What waits is flushed like all else.
    assert_eq!(side.queue_pair.modify(&Transition::Drain), Ok(()));
    side.post(3, side.write(), 8);
    assert_eq!(side.queue_pair.modify(&Transition::Error), Ok(()));
    assert_eq!(side.outcomes(), [(3, Status::Flushed)]);
    assert!(!side.queue_pair.is_drained());
}

#[test]
fn attributes_out_of_range_are_named() {
    let attributes = SendAttributes { timeout: 32, ..send_attributes() };
    let mut queue_pair = QueuePair::new(&peer::configuration()).unwrap();
    queue_pair.modify(&Transition::Initialize(peer::initialization())).unwrap();
    let reads = ringway_rc::ReceiveAttributes { max_dest_rd_atomic: 5, ..peer::receive_attributes() };
    let error = queue_pair.modify(&Transition::ReadyToReceive(reads)).unwrap_err();
    assert_eq!(error.to_string(), "max_dest_rd_atomic is 5, and at most 4 is possible");
    let selective = ringway_rc::ReceiveAttributes { selective: true, ..peer::receive_attributes() };
    assert!(queue_pair.modify(&Transition::ReadyToReceive(selective)).is_err(), "there is no room for it");
    queue_pair.modify(&Transition::ReadyToReceive(peer::receive_attributes())).unwrap();
    let error = queue_pair.modify(&Transition::ReadyToSend(attributes)).unwrap_err();
    assert_eq!(error, AttributeError::TooLarge { attribute: "timeout", value: 32, limit: 31 });
    for configuration in [
        ringway_rc::Configuration { number: ringway_verbs::QueuePairNumber(1), ..peer::configuration() },
        ringway_rc::Configuration { send_depth: 0, ..peer::configuration() },
        ringway_rc::Configuration { selective_window: 48, ..peer::configuration() },
        ringway_rc::Configuration { selective_window: 1024, ..peer::configuration() },
    ] {
        assert!(QueuePair::new(&configuration).is_err(), "{configuration:?}");
    }
}

#[test]
fn requests_that_cannot_work_are_not_posted() {
    let mut side = with(&SendAttributes { max_rd_atomic: 0, retries: Retries::Forever, ..send_attributes() });
    let long = side.request(0, side.write(), ringway_rc::MAX_MESSAGE + 1);
    assert_eq!(side.queue_pair.post_send(&long), Err(PostError::TooLong));
    let read = side.request(0, side.read(), 8);
    assert_eq!(side.queue_pair.post_send(&read), Err(PostError::Unsupported));
    for id in 0..16 {
        side.post(id, side.write(), 8);
    }
    let one_more = side.request(16, side.write(), 8);
    assert_eq!(side.queue_pair.post_send(&one_more), Err(PostError::Full));
    side.sent();
    side.acknowledge(15, Syndrome::ACK);
    assert_eq!(side.queue_pair.post_send(&one_more), Err(PostError::Full), "completions hold their slots");
    assert_eq!(side.outcomes().len(), 16);
    assert_eq!(side.queue_pair.post_send(&one_more), Ok(()));
}
