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

/// Microseconds of one call: the best of many rounds, so that what else runs on the machine matters little. All ranks
/// make the same number of calls.
fn time(world: &Communicator, mut call: impl FnMut() -> Result<(), Error>) -> Result<f64, Error> {
    // A round is short, so that some are not interrupted.
    const ROUND: Duration = Duration::from_micros(100);
    let (started, mut count, mut best) = (Instant::now(), [1_u64], f64::INFINITY);
    while count[0] > 0 {
        world.blocking().barrier()?;
        let round = Instant::now();
        for _ in 0..count[0] {
            call()?;
        }
        let took = round.elapsed();
        best = best.min(took.as_secs_f64() * 1e6 / count[0] as f64);
        if took < ROUND {
            count[0] *= 2;
        }
        if started.elapsed() > EACH {
            count[0] = 0;
        }
        world.blocking().broadcast(&mut count, 0)?;
    }
    Ok(best)
}
