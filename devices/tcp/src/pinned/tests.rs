//! The table against a list of what was put there.

use std::sync::Arc;

use proptest::prelude::*;
use ringway_mem::{Mapping, RegionTable};
use ringway_verbs::{Access, LocalSlice};

use super::*;

const REGIONS: usize = 5;
const PARTS: u64 = 3;

/// Of a system that is asked to register something.
const ANSWERS: [Result<(), i32>; 8] = [
    Ok(()),
    Ok(()),
    Ok(()),
    Ok(()),
    Err(libc::EFAULT),
    Err(libc::EINVAL),
    Err(libc::EOPNOTSUPP),
    Err(libc::ENOMEM),
];

#[derive(Debug, Clone)]
enum Step {
    /// What the system says if it is asked to register something.
    Send {
        region: usize,
        offset: u64,
        length: u64,
        answer: Result<(), i32>,
    },
    /// `lets_go`: the system does, as it always should.
    Deregister {
        region: usize,
        lets_go: bool,
    },
    Close,
}

fn step() -> impl Strategy<Value = Step> {
    let answer = prop::sample::select(&ANSWERS[..]);
    let send = (0..REGIONS, 0..PARTS * PART - 1, 1..PART, answer);
    prop_oneof![
        90 => send.prop_map(|(region, offset, length, answer)| Step::Send { region, offset, length, answer }),
        10 => (0..REGIONS, any::<bool>()).prop_map(|(region, lets_go)| Step::Deregister { region, lets_go }),
        1 => Just(Step::Close),
    ]
}

proptest! {
    #[test]
    fn a_part_is_found_where_it_was_put_until_its_region_goes(
        places in prop::sample::select(vec![0_u32, 1, 4, 9, 64]),
        steps in prop::collection::vec(step(), 1..200),
    ) {
        let mut memory = RegionTable::new(REGIONS as u32);
        // Nobody touches the bytes.
        let mapping = Arc::new(Mapping::private((PARTS * PART - 1) as usize).unwrap());
        let mut register = || memory.register(Arc::clone(&mapping), Access::LOCAL).unwrap().local;
        let keys: Vec<LocalKey> = (0..REGIONS).map(|_| register()).collect();
        let mut pinned = Pinned::new(places);
        // What has a place and was taken or not, and how many sends it is that the system is not asked.
        let (mut known, mut rest, mut open) = (Vec::<(u16, LocalKey, u64, bool)>::new(), 0, true);
        // Of regions that are gone for us.
        let mut leaving = Vec::new();
        for step in steps {
            match step {
                Step::Send { region, offset, length, answer } => {
                    let length = length.min(PARTS * PART - 1 - offset);
                    let key = keys[region];
                    let span = memory.span(&LocalSlice { key, offset, length }).unwrap();
                    let part = offset / PART;
                    let is_in_one = (offset + length - 1) / PART == part;
                    let place = known.iter().find(|known| (known.1, known.2) == (key, part)).copied();
                    match pinned.find(&span) {
                        Some(Place::Registered(found)) => {
                            prop_assert_eq!(Some((found, key, part, true)), place.filter(|_| is_in_one));
                        }
                        Some(Place::Free(free, whole)) => {
                            prop_assert!(is_in_one && place.is_none() && rest == 0 && open && u32::from(free) < places);
                            prop_assert!(known.iter().chain(&leaving).all(|known| known.0 != free));
                            prop_assert_eq!((whole.key, whole.offset), (key, part * PART));
                            prop_assert!(whole.offset + whole.length >= offset + length);
                            pinned.put(free, whole, answer);
                            if answer == Err(libc::ENOMEM) {
                                rest = SENDS_BETWEEN_TRIALS;
                            } else {
                                known.push((free, key, part, answer.is_ok()));
                            }
                        }
                        None if is_in_one && place.is_none() => {
                            let full = known.len() + leaving.len() >= (places as usize).min(NEIGHBOURS);
                            prop_assert!(rest > 0 || full || !open);
                            // A full neighbourhood counts no trial.
                            rest = pinned.rest;
                        }
                        None => prop_assert!(!is_in_one || place.is_some_and(|place| !place.3)),
                    }
                }
                Step::Deregister { region, lets_go } => {
                    pinned.leave(keys[region]);
                    leaving.extend(known.extract_if(.., |known| known.1 == keys[region]).filter(|known| known.3));
                    prop_assert_eq!(pinned.leaving(), leaving.iter().map(|known| known.0).min());
                    while let Some(at) = pinned.leaving().filter(|_| lets_go) {
                        pinned.clear(at);
                        leaving.retain(|known| known.0 != at);
                        rest = 0;
                    }
                }
                Step::Close => {
                    pinned.close();
                    known.clear();
                    leaving.clear();
                    open = false;
                }
            }
            let taken = known.iter().chain(&leaving).filter(|known| known.3);
            let bytes: u64 = taken.map(|known| PART - u64::from(known.2 + 1 == PARTS)).sum();
            prop_assert_eq!(pinned.bytes, bytes);
        }
    }
}

#[test]
fn a_system_without_room_is_asked_again_now_and_then() {
    let mut memory = RegionTable::new(1);
    let mapping = Arc::new(Mapping::private(4096).unwrap());
    let key = memory.register(mapping, Access::LOCAL).unwrap().local;
    let span = memory.span(&LocalSlice { key, offset: 0, length: 1 }).unwrap();
    let mut pinned = Pinned::new(1);
    for answer in [Err(libc::ENOMEM), Ok(())] {
        let Some(Place::Free(at, part)) = pinned.find(&span) else { panic!("not asked") };
        pinned.put(at, part, answer);
        if answer.is_err() {
            assert!((0..SENDS_BETWEEN_TRIALS).all(|_| pinned.find(&span).is_none()));
        }
    }
    assert!(matches!(pinned.find(&span), Some(Place::Registered(0))));
    assert_eq!((pinned.bytes, pinned.refusals), (4096, 1));
}

#[test]
fn only_kernels_that_unpin_in_time_pin() {
    for release in ["6.13", "6.13.0-rc1", "6.18.44-generic", "7.0.1", "10.2-x", "6.13-rc3"] {
        assert!(unpins_soon(release), "{release}");
    }
    for release in
        ["6.12.99", "6.1.0-13-amd64", "5.15.0", "", "6", "6.", "next", "v6.13", "6.x.13", "6.99999999999"]
    {
        assert!(!unpins_soon(release), "{release}");
    }
}
