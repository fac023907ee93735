//! What the whole shm device takes for a short message: both ends on one thread, so that no line changes its processor,
//! which leaves the work of the two sides.
#![allow(missing_docs, reason = "criterion's macros make undocumented items")]
#![allow(clippy::expect_used, reason = "a benchmark that cannot be set up must stop")]

mod common;

use criterion::{Criterion, criterion_group, criterion_main};
use ringway_shm::{ShmConfig, ShmDevice};

fn messages(c: &mut Criterion) {
    let device = || ShmDevice::new(ShmConfig::default()).expect("a device");
    common::messages(c, "shm_device", [device(), device()]);
}

criterion_group!(benches, messages);
criterion_main!(benches);
