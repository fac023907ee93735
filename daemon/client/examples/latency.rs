//! Times blocking allreduces, in buffers and in slices: `ringway run -n 2 target/release/examples/latency`.
#![allow(clippy::print_stdout, reason = "this is what it is for")]

use std::time::{Duration, Instant};

use ringway_client::{Client, Communicator, Error, Reduction};

/// How long to measure each size.
const EACH: Duration = Duration::from_millis(300);

fn main() -> Result<(), Error> {
    let client = Client::connect()?;
    let world = Communicator::from_env(&client)?;
    let arena = client.arena(80 << 20)?;
    if world.rank() == 0 {
        println!("{} ranks, memory shared: {}", world.size(), world.shares_memory());
        println!("{:>10} {:>12} {:>12} {:>12}", "bytes", "run us", "wait us", "slices us");
    }
    let mut elements = 1;
    while elements <= 16 << 20 {
        let mut buffer = Some(arena.buffer::<f32>(elements)?);
        let run = time(&world, || {
            buffer = Some(world.run(|w| w.allreduce_in_place(take(&mut buffer), Reduction::Sum))?);
            Ok(())
        })?;
        let wait = time(&world, || {
            buffer = Some(world.allreduce_in_place(take(&mut buffer), Reduction::Sum)?.wait()?);
            Ok(())
        })?;
        let mut values = vec![0.0_f32; elements];
        let slices = time(&world, || world.blocking().allreduce_in_place(&mut values, Reduction::Sum))?;
        if world.rank() == 0 {
            println!("{:>10} {run:>12.3} {wait:>12.3} {slices:>12.3}", elements * 4);
        }
        elements *= 4;
    }
    Ok(())
}

fn take<T>(kept: &mut Option<T>) -> T {
    kept.take().unwrap_or_else(|| unreachable!("every call gives its buffer back"))
}

/// Microseconds of one call, on average. All ranks make the same number of calls.
fn time(world: &Communicator, mut call: impl FnMut() -> Result<(), Error>) -> Result<f64, Error> {
    let mut count = [4_u64];
    loop {
        world.blocking().barrier()?;
        let started = Instant::now();
        for _ in 0..count[0] {
            call()?;
        }
        let took = started.elapsed();
        let mut more = [u64::from(took < EACH)];
        world.blocking().broadcast(&mut more, 0)?;
        if more[0] == 0 {
            return Ok(took.as_secs_f64() * 1e6 / count[0] as f64);
        }
        count[0] *= 2;
    }
}
