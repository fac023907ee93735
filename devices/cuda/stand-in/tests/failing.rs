//! Failures that are asked for.

mod common;

use common::{UNKNOWN, again, begin, cu, got};
use ringway_cuda_stand_in::*;

const FAIL: &str = "RINGWAY_STAND_IN_FAIL";

#[test]
fn a_function_fails_from_the_call_on_that_is_named() {
    if std::env::var_os(FAIL).is_none() {
        let mut other = again("a_function_fails_from_the_call_on_that_is_named", FAIL, "cuMemAlloc_v2:3");
        assert!(other.status().unwrap().success());
        return;
    }
    begin();
    let allocate = || got::<usize>(|to| cu!(cuMemAlloc_v2(to, 4))).map(|_| ());
    assert_eq!(
        [allocate(), allocate(), allocate(), allocate()],
        [Ok(()), Ok(()), Err(UNKNOWN), Err(UNKNOWN)]
    );
    assert!(got::<usize>(|to| cu!(cuStreamCreate(to, 0))).is_ok());
}

#[test]
fn there_are_as_many_devices_as_asked_for() {
    const GPUS: &str = "RINGWAY_STAND_IN_GPUS";
    match std::env::var(GPUS).as_deref() {
        Ok("0") => assert_eq!(cu!(cuInit(0)), 100),
        Ok(_) => {
            assert_eq!(got::<i32>(|to| cu!(cuDeviceGetCount(to))), Err(3));
            begin();
            assert_eq!(got(|to| cu!(cuDeviceGetCount(to))), Ok(4));
            assert_eq!(got(|to| cu!(cuDeviceGet(to, 3))), Ok(3));
        }
        Err(_) => {
            for count in ["0", "4"] {
                let mut other = again("there_are_as_many_devices_as_asked_for", GPUS, count);
                assert!(other.status().unwrap().success(), "{count}");
            }
        }
    }
}
