//! Once a link is made and its ways are known, moving packets allocates nothing.

mod common;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

use common::{address, drain, link};
use ringway_roce::{Link, UdpConfig};
use ringway_wire::{Bth, Header, Packet, Psn, QueuePair};

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: everything is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promise about `layout` is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise about `pointer` and `layout` is passed on.
        unsafe { System.dealloc(pointer, layout) };
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn moving_packets_does_not_allocate() {
    let (mut from, mut to) = (link(UdpConfig::new(address())), link(UdpConfig::new(address())));
    let paths = [0, 1].map(|entropy| from.path(to.local_address(), entropy, 2).unwrap());
    let payload = [7; 4096];
    let bth = Bth::new(QueuePair::new(5).unwrap(), Psn::ZERO);
    let packet = Packet { bth, header: Header::SendOnly, payload: &payload };
    let before = ALLOCATIONS.with(Cell::get);
    for round in 0..50 {
        for _ in 0..5 {
            let path = &paths[round % 2];
            from.send(path, packet.length(), &mut |identification, memory| {
                packet.emit(&path.flow, identification, memory).unwrap();
            })
            .unwrap();
        }
        assert!(from.flush());
        drain(&mut to, 5, &mut |received| {
            assert_eq!(Packet::parse(received.transport, received.check), Ok(packet));
        });
    }
    assert_eq!(ALLOCATIONS.with(Cell::get), before);
}
