//! Every rank contributes its number; every rank gets the sum. Run it with
//! `cargo run --bin ringway -- run -n 4 -- target/debug/examples/hello`.

use ringway_client::{Client, Communicator, Error, Reduction};

#[expect(clippy::print_stdout, reason = "printing is what it is for")]
fn main() -> Result<(), Error> {
    let client = Client::connect()?;
    let world = Communicator::from_env(&client)?;
    let mut values = [world.rank() as f32, 1.0];
    world.blocking().allreduce_in_place(&mut values, Reduction::Sum)?;
    println!("rank {} of {}: the ranks add up to {}", world.rank(), world.size(), values[0]);
    Ok(())
}
