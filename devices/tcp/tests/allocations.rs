//! Once a queue pair is made and warm, moving data allocates nothing.

mod common;

use allocation_counter::measure;
use common::Loopback;
use ringway_sim::conformance::{Fixture, Harness, Side, request};
use ringway_verbs::{Access, Completion, Device, Operation, ReceiveRequest, Status};

#[test]
fn the_data_path_does_not_allocate() {
    const LENGTH: u64 = 300_000;
    let (mut fixture, [left, right]) = Fixture::<Loopback>::connected();
    let from = fixture.memory(Side::Left, 1 << 20, Access::ALL);
    let into = fixture.memory(Side::Right, 1 << 20, Access::ALL);
    let operations = [
        Operation::Send { immediate: Some(1) },
        Operation::Write { remote: into.remote(0) },
        Operation::WriteWithImmediate { remote: into.remote(0), immediate: 2 },
        Operation::Read { remote: into.remote(0) },
    ];
    let loopback = &mut fixture.harness;
    let mut round = || {
        for (length, operation) in
            [16, 5000, LENGTH].into_iter().flat_map(|length| operations.map(|it| (length, it)))
        {
            let receive = ReceiveRequest { id: 1, local: into.slice(0, LENGTH) };
            let received = matches!(operation, Operation::Send { .. } | Operation::WriteWithImmediate { .. });
            if received {
                loopback.device(Side::Right).post_receive(right, &receive).unwrap();
            }
            let post = request(2, operation, &[from.slice(0, length)]);
            loopback.device(Side::Left).post_send(left, &post).unwrap();
            let mut missing = 1 + usize::from(received);
            while missing > 0 {
                for side in Side::BOTH {
                    let now = loopback.now();
                    let mut batch = [Completion::EMPTY; 4];
                    let count = loopback.device(side).poll(now, &mut batch);
                    loopback.device(side).flush();
                    assert!(batch[..count].iter().all(|completion| completion.status == Status::Success));
                    missing -= count;
                }
            }
        }
    };
    for _ in 0..10 {
        round();
    }
    let moving = measure(|| {
        for _ in 0..50 {
            round();
        }
    });
    assert_eq!(moving.count_total, 0);
}
