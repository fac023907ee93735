//! What streams do, and when.
#![allow(clippy::unwrap_used, reason = "test helpers that fail loudly")]

mod common;

use std::{
    ffi::c_void,
    ptr,
    sync::{
        Mutex,
        atomic::{AtomicU32, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use common::{
    INVALID_HANDLE, NOT_PERMITTED, NOT_READY, UNIT, allocate, begin, create, cu, got, map, read, stream,
};
use ringway_cuda_stand_in::*;

const EQUAL: u32 = 1;
/// Longer than a stream takes for what it can do.
const A_WHILE: Duration = Duration::from_millis(30);

/// A word of device memory, as the host sees it.
fn word(address: usize) -> &'static AtomicU32 {
    // SAFETY: the tests' memory stays until the process ends, and is aligned.
    unsafe { AtomicU32::from_ptr(ptr::with_exposed_provenance_mut(address)) }
}

#[test]
fn a_stream_waits_for_a_value_and_others_do_not() {
    begin();
    let (waiting, other, memory) = (stream(), stream(), allocate(4096));
    assert_eq!(cu!(cuStreamWaitValue32_v2(waiting, memory, 3, 0)), 0);
    assert_eq!(cu!(cuMemsetD32Async(memory + 64, 7, 4, waiting)), 0);
    assert_eq!(cu!(cuMemsetD32Async(memory + 128, 8, 4, other)), 0);
    assert_eq!(cu!(cuStreamSynchronize(other)), 0);
    thread::sleep(A_WHILE);
    assert_eq!(cu!(cuStreamQuery(waiting)), NOT_READY);
    assert_eq!([64, 128].map(|place| word(memory + place).load(Ordering::Acquire)), [0, 8]);
    word(memory).store(4, Ordering::Release);
    assert_eq!(cu!(cuStreamSynchronize(waiting)), 0);
    assert_eq!(cu!(cuStreamQuery(waiting)), 0);
    assert_eq!(read(memory + 64 + 12), 7);
}

#[test]
fn streams_hand_on_to_each_other_in_batches() {
    begin();
    let memory = allocate(4096);
    let op = |operation, place, value, flags| BatchMemOp {
        operation,
        address: (memory + place) as u64,
        value,
        flags,
        alias: 0,
        rest: 0,
    };
    let (first, second) = (stream(), stream());
    for round in 1..=50 {
        let there = [op(2, 0, round, 0), op(1, 4, round, EQUAL)];
        let back = [op(1, 0, round, EQUAL), op(2, 4, round, 0)];
        assert_eq!(cu!(cuStreamBatchMemOp_v2(second, 2, back.as_ptr(), 0)), 0);
        assert_eq!(cu!(cuStreamBatchMemOp_v2(first, 2, there.as_ptr(), 0)), 0);
    }
    assert_eq!(cu!(cuCtxSynchronize()), 0);
    assert_eq!([read(memory), read(memory + 4)], [50, 50]);
}

#[test]
fn events_order_streams_and_tell_times() {
    begin();
    let (first, second, memory) = (stream(), stream(), allocate(4096));
    let [start, end, untimed] = [0, 0, 2].map(|flags| got(|to| cu!(cuEventCreate(to, flags))).unwrap());
    assert_eq!(cu!(cuEventQuery(end)), 0);
    assert_eq!(cu!(cuEventRecord(start, first)), 0);
    assert_eq!(cu!(cuStreamWaitValue32_v2(first, memory, 1, 0)), 0);
    assert_eq!(cu!(cuMemsetD32Async(memory + 8, 5, 1, first)), 0);
    assert_eq!(cu!(cuEventRecord(end, first)), 0);
    assert_eq!(cu!(cuStreamWaitEvent(second, end, 0)), 0);
    assert_eq!(cu!(cuMemcpyDtoDAsync_v2(memory + 12, memory + 8, 4, second)), 0);
    assert_eq!(cu!(cuEventQuery(end)), NOT_READY);
    assert_eq!(got::<f32>(|to| cu!(cuEventElapsedTime_v2(to, start, end))), Err(NOT_READY));
    thread::sleep(A_WHILE);
    word(memory).store(1, Ordering::Release);
    assert_eq!(cu!(cuEventSynchronize(end)), 0);
    assert_eq!(cu!(cuStreamSynchronize(second)), 0);
    assert_eq!(read(memory + 12), 5);
    assert!(got(|to| cu!(cuEventElapsedTime(to, start, end))).unwrap() > 10.0_f32);
    assert_eq!(got::<f32>(|to| cu!(cuEventElapsedTime(to, start, untimed))), Err(INVALID_HANDLE));
    assert_eq!(cu!(cuEventDestroy_v2(end)), 0);
    assert_eq!(cu!(cuEventRecord(end, first)), INVALID_HANDLE);
}

static CALLS: Mutex<Vec<(usize, Status)>> = Mutex::new(Vec::new());

unsafe extern "C" fn note(data: *mut c_void) {
    let answer = cu!(cuStreamQuery(0));
    CALLS.lock().unwrap().push((data.addr(), answer));
}

#[test]
fn host_functions_come_in_order_and_may_not_call_the_driver() {
    begin();
    let (stream, memory) = (stream(), allocate(4));
    assert_eq!(cu!(cuStreamWaitValue32_v2(stream, memory, 1, 0)), 0);
    for number in 1..=3 {
        assert_eq!(cu!(cuLaunchHostFunc(stream, Some(note), ptr::without_provenance_mut(number))), 0);
    }
    thread::sleep(A_WHILE);
    assert!(CALLS.lock().unwrap().is_empty());
    assert_eq!(cu!(cuMemsetD32_v2(memory, 1, 1)), 0);
    assert_eq!(cu!(cuStreamSynchronize(stream)), 0);
    assert_eq!(*CALLS.lock().unwrap(), [1, 2, 3].map(|number| (number, NOT_PERMITTED)));
}

#[test]
fn a_wait_ends_with_its_stream_and_nothing_behind_it_is_done() {
    begin();
    let (stream, memory) = (stream(), allocate(4096));
    let event = got(|to| cu!(cuEventCreate(to, 0))).unwrap();
    assert_eq!(cu!(cuStreamWaitValue32_v2(stream, memory, 1, 0)), 0);
    assert_eq!(cu!(cuMemsetD32Async(memory + 8, 5, 1, stream)), 0);
    assert_eq!(cu!(cuEventRecord(event, stream)), 0);
    assert_eq!(cu!(cuStreamDestroy_v2(stream)), 0);
    assert_eq!(cu!(cuEventSynchronize(event)), 0);
    assert_eq!(read(memory + 8), 0);
    assert_eq!(cu!(cuStreamQuery(stream)), INVALID_HANDLE);
    assert_eq!(cu!(cuMemFree_v2(memory)), 0);
}

#[test]
fn a_destroyed_stream_s_work_is_done() {
    begin();
    let (stream, memory) = (stream(), allocate(4 * UNIT));
    let event = got(|to| cu!(cuEventCreate(to, 0))).unwrap();
    for value in 1..=20 {
        assert_eq!(cu!(cuMemsetD32Async(memory, value, UNIT, stream)), 0);
    }
    assert_eq!(cu!(cuEventRecord(event, stream)), 0);
    assert_eq!(cu!(cuStreamDestroy_v2(stream)), 0);
    assert_eq!(cu!(cuEventSynchronize(event)), 0);
    assert_eq!(read(memory + 4 * (UNIT - 1)), 20);
    assert_eq!(cu!(cuMemFree_v2(memory)), 0);
}

#[test]
fn unmapping_waits_for_work_that_touches_it() {
    begin();
    let (stream, flag) = (stream(), allocate(4));
    let address = map(create(UNIT), UNIT);
    let untouched = map(create(UNIT), UNIT);
    assert_eq!(cu!(cuStreamWaitValue32_v2(stream, flag, 1, 0)), 0);
    assert_eq!(cu!(cuMemsetD8Async(address, 1, UNIT, stream)), 0);
    assert_eq!(cu!(cuMemUnmap(untouched, UNIT)), 0);
    let (done, is_done) = mpsc::channel();
    let unmapping = thread::spawn(move || {
        begin();
        assert_eq!(cu!(cuMemUnmap(address, UNIT)), 0);
        done.send(()).unwrap();
    });
    assert!(is_done.recv_timeout(A_WHILE).is_err());
    word(flag).store(1, Ordering::Release);
    unmapping.join().unwrap();
    assert_eq!(cu!(cuStreamSynchronize(stream)), 0);
    assert_eq!(cu!(cuMemAddressFree(address, UNIT)), 0);
}
