//! The table against a list of what was put there.

use std::sync::Arc;

use proptest::prelude::*;
use ringway_mem::{Mapping, RegionTable};
use ringway_verbs::{Access, LocalSlice};

use super::*;

const REGIONS: usize = 5;
const PARTS: u64 = 3;

#[derive(Debug, Clone)]
enum Step {
    Send { region: usize, offset: u64, length: u64, taken: bool },
    Deregister { region: usize },
}

fn step() -> impl Strategy<Value = Step> {
    let send = (0..REGIONS, 0..PARTS * PART - 1, 1..PART, prop::bool::weighted(0.9));
    prop_oneof![
        9 => send.prop_map(|(region, offset, length, taken)| Step::Send { region, offset, length, taken }),
        1 => (0..REGIONS).prop_map(|region| Step::Deregister { region }),
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
        let (mut known, mut refused) = (Vec::<(u16, LocalKey, u64)>::new(), false);
        for step in steps {
            match step {
                Step::Send { region, offset, length, taken } => {
                    let length = length.min(PARTS * PART - 1 - offset);
                    let key = keys[region];
                    let span = memory.span(&LocalSlice { key, offset, length }).unwrap();
                    let part = offset / PART;
                    let is_in_one = (offset + length - 1) / PART == part;
                    let at = known.iter().find(|known| (known.1, known.2) == (key, part)).map(|known| known.0);
                    match pinned.find(&span) {
                        Some(Place::Registered(found)) => prop_assert_eq!(Some(found), at.filter(|_| is_in_one)),
                        Some(Place::Free(free, whole)) => {
                            prop_assert!(is_in_one && at.is_none() && !refused && u32::from(free) < places);
                            prop_assert!(known.iter().all(|known| known.0 != free));
                            prop_assert_eq!((whole.key, whole.offset), (key, part * PART));
                            prop_assert!(whole.offset + whole.length >= offset + length);
                            pinned.put(free, whole, taken);
                            known.extend(taken.then_some((free, key, part)));
                            refused = !taken;
                        }
                        None => {
                            let full = known.len() >= (places as usize).min(NEIGHBOURS);
                            prop_assert!(!is_in_one || at.is_none() && (refused || full));
                        }
                    }
                }
                Step::Deregister { region } => {
                    while let Some(at) = pinned.of(keys[region]) {
                        pinned.clear(at);
                        refused = false;
                    }
                    known.retain(|known| known.1 != keys[region]);
                }
            }
            let bytes: u64 = known.iter().map(|known| PART - u64::from(known.2 + 1 == PARTS)).sum();
            prop_assert_eq!(pinned.bytes, bytes);
        }
    }
}
