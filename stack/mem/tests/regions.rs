//! A region is in use while spans of it are about, and while somebody counts as using it.
#![forbid(unsafe_code)]

use std::sync::Arc;

use ringway_mem::{Mapping, RegionTable};
use ringway_verbs::{Access, LocalSlice, RegisterError};

#[test]
fn a_region_is_in_use_by_its_spans_and_not_by_parts_or_by_what_else_has_its_memory() {
    let mut memory = RegionTable::new(2);
    let mapping = Arc::new(Mapping::private(4096).unwrap());
    let [key, other] = [(); 2].map(|()| memory.register(Arc::clone(&mapping), Access::LOCAL).unwrap().local);
    let slice = LocalSlice { key, offset: 1, length: 9 };
    memory.hold(&slice);
    let span = memory.span(&slice).unwrap();
    let copy = span.first(1);
    let part = span.part(4096).unwrap();
    assert!(memory.is_busy(key) && !memory.is_busy(other));
    memory.release(&slice);
    drop(span);
    assert_eq!(memory.deregister(key), Err(RegisterError::Busy));
    drop(copy);
    memory.deregister(key).unwrap();
    memory.deregister(other).unwrap();
    // Its memory it keeps.
    assert_eq!((part.window().unwrap().length(), Arc::strong_count(&mapping)), (4096, 2));
}
