//! What is lent comes back once, whatever the kernel answers in which order.

use std::sync::Arc;

use proptest::prelude::*;
use ringway_mem::{Mapping, RegionTable};
use ringway_verbs::{Access, LocalSlice};

use super::*;

/// Bytes of a piece that is not copied, if anything is to be lent.
const SPAN: u64 = 2000;

/// Of a part of so many bytes.
fn batch(length: u64, first_request: u64) -> Box<SendBatch> {
    let mut memory = RegionTable::new(1);
    let mapping = Arc::new(Mapping::private(LONG as usize * 2).unwrap());
    let key = memory.register(mapping, Access::LOCAL).unwrap().local;
    let mut batch = SendBatch::new();
    batch.first_request = first_request;
    batch.add_span(memory.span(&LocalSlice { key, offset: 0, length }).unwrap());
    batch
}

fn loans(when: ZeroCopy) -> Loans {
    let mut loans = Loans::new(when);
    loans.reserve(3);
    loans
}

/// A send that the socket takes and the kernel lets go of.
fn lend_and_give_back(loans: &mut Loans, copied: bool) -> bool {
    let mut sent = batch(LONG, 7);
    let Some(place) = loans.begin(1, &sent) else { return false };
    loans.lend(place, &mut sent, LONG);
    assert!(sent.is_empty(), "the queue pair goes on with an empty one");
    assert!(loans.has(1));
    let returned = loans.give_back(place, copied).unwrap();
    assert_eq!((returned.first_request, returned.withheld), (7, None));
    assert!(!loans.has(1));
    true
}

#[test]
fn where_the_kernel_copies_it_is_tried_again_only_now_and_then() {
    let mut loans = loans(ZeroCopy::WherePays);
    assert!(lend_and_give_back(&mut loans, true));
    for _ in 0..SENDS_BETWEEN_TRIALS {
        assert!(!lend_and_give_back(&mut loans, true));
    }
    // It does not copy any more.
    for _ in 0..100 {
        assert!(lend_and_give_back(&mut loans, false));
    }
    assert_eq!((loans.counters.copied, loans.counters.not_copied), (LONG, 100 * LONG));
    // A connection that has the place of one that ended is asked like a new one.
    assert!(lend_and_give_back(&mut loans, true));
    loans.forget(1);
    assert!(lend_and_give_back(&mut loans, true));
}

#[test]
fn short_sends_are_left_alone_and_none_is_lent_where_nothing_is_to_be() {
    assert!(loans(ZeroCopy::WherePays).begin(1, &batch(LONG - 1, 0)).is_none());
    assert!(loans(ZeroCopy::Always).begin(1, &batch(LONG - 1, 0)).is_some());
    assert!(loans(ZeroCopy::Never).begin(1, &batch(LONG, 0)).is_none());
}

#[test]
fn a_connection_lends_one_batch_until_it_pays_and_then_a_few() {
    let mut loans = loans(ZeroCopy::WherePays);
    let batch = batch(LONG, 0);
    let first = loans.begin(1, &batch).unwrap();
    assert!(loans.begin(1, &batch).is_none());
    assert!(loans.begin(2, &batch).is_some(), "another connection");
    loans.withhold(first, LONG as i32);
    loans.give_back(first, false).unwrap();
    let all = core::iter::from_fn(|| loans.begin(1, &batch)).count();
    assert_eq!(all, LOANS_PER_CONNECTION);
}

#[test]
fn a_system_that_refuses_has_it_copied() {
    let mut loans = loans(ZeroCopy::WherePays);
    assert_eq!(loans.refused(1, -libc::EPIPE), -libc::EPIPE);
    assert_eq!(loans.refused(1, -libc::ENOMEM), -libc::EAGAIN);
    assert!(loans.begin(1, &batch(LONG, 0)).is_none(), "not now");
    assert!(loans.begin(2, &batch(LONG, 0)).is_some());
    assert_eq!(loans.refused(1, -libc::EINVAL), -libc::EAGAIN);
    assert!(loans.begin(3, &batch(LONG, 0)).is_none(), "never again");
}

#[test]
fn what_comes_back_from_before_a_refusal_does_not_end_its_rest() {
    for copied in [false, true] {
        let mut loans = loans(ZeroCopy::WherePays);
        assert!(lend_and_give_back(&mut loans, false));
        let mut sent = batch(LONG, 0);
        let [earlier, refused] = [(); 2].map(|()| loans.begin(1, &sent).unwrap());
        loans.lend(earlier, &mut sent, LONG);
        loans.end(refused);
        assert_eq!(loans.refused(1, -libc::ENOMEM), -libc::EAGAIN);
        loans.give_back(earlier, copied).unwrap();
        assert!(!loans.pays(1));
        for _ in 0..SENDS_BETWEEN_TRIALS {
            assert!(!lend_and_give_back(&mut loans, false));
        }
        assert!(lend_and_give_back(&mut loans, false), "tried again");
        assert!(loans.pays(1), "and heard");
    }
}

#[test]
fn memory_that_the_kernel_does_not_find_is_sent_with_a_copy_once() {
    for when in [ZeroCopy::WherePays, ZeroCopy::Always] {
        let mut loans = loans(when);
        assert_eq!(loans.refused(1, -libc::EFAULT), -libc::EAGAIN);
        assert!(!lend_and_give_back(&mut loans, false));
        assert!(lend_and_give_back(&mut loans, false));
    }
}

#[derive(Debug, Clone)]
enum Step {
    Begin {
        connection: u32,
    },
    /// The first answer to the loan of this number, of those that wait for it.
    Answer {
        at: usize,
        all: bool,
    },
    /// The second.
    Return {
        at: usize,
        copied: bool,
    },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0_u32..4).prop_map(|connection| Step::Begin { connection }),
        (any::<usize>(), any::<bool>()).prop_map(|(at, all)| Step::Answer { at, all }),
        (any::<usize>(), any::<bool>()).prop_map(|(at, copied)| Step::Return { at, copied }),
    ]
}

proptest! {
    #[test]
    fn every_loan_comes_back_as_what_it_was(steps in prop::collection::vec(step(), 1..300)) {
        let mut loans = loans(ZeroCopy::Always);
        let (mut begun, mut lent) = (Vec::new(), Vec::new());
        for (number, step) in (0_u64..).zip(steps) {
            match step {
                Step::Begin { connection } => {
                    let of_this = |list: &[(usize, u32, u64, Option<i32>)]| {
                        list.iter().filter(|loan| loan.1 == connection).count()
                    };
                    let under_way = of_this(&begun) + of_this(&lent);
                    let room = under_way < LOANS_PER_CONNECTION && begun.len() + lent.len() < LOANS_MAX;
                    let place = loans.begin(connection, &batch(SPAN, number));
                    prop_assert_eq!(place.is_some(), room);
                    begun.extend(place.map(|place| (place, connection, number, None)));
                }
                Step::Answer { at, all } if !begun.is_empty() => {
                    let (place, connection, number, _) = begun.remove(at % begun.len());
                    if all {
                        let mut sent = batch(SPAN, number);
                        loans.lend(place, &mut sent, SPAN);
                        prop_assert!(sent.is_empty());
                    } else {
                        loans.withhold(place, 40);
                    }
                    lent.push((place, connection, number, (!all).then_some(40)));
                }
                Step::Return { at, copied } if !lent.is_empty() => {
                    let (place, _, number, withheld) = lent.remove(at % lent.len());
                    let returned = loans.give_back(place, copied).unwrap();
                    prop_assert_eq!(returned.withheld, withheld);
                    if withheld.is_none() {
                        prop_assert_eq!(returned.first_request, number);
                    }
                }
                _ => {}
            }
            for connection in 0..4 {
                let has = begun.iter().chain(&lent).any(|loan| loan.1 == connection);
                prop_assert_eq!(loans.has(connection), has);
            }
        }
    }
}
