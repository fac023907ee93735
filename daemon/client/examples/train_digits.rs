//! Data-parallel training of a small network on handwritten digits: every rank sees its share of each batch, the
//! gradients are averaged over all ranks while the backward pass goes on, and all ranks end with the same weights, bit
//! for bit, in every run.
//!
//! ```sh
//! cargo build --release --examples
//! target/release/ringway run -n 4 --nodes 2 -- target/release/examples/train_digits
//! ```
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::{error::Error, io::Read as _};

use ringway_client::{Arena, Buffer, Client, Communicator, Reduction};

const PIXELS: usize = 64;
const HIDDEN: usize = 64;
const CLASSES: usize = 10;
const EPOCHS: usize = 30;
/// Samples of one step over all ranks.
const BATCH: usize = 96;
const LEARNING_RATE: f32 = 0.1;
const MOMENTUM: f32 = 0.9;

fn main() -> Result<(), Box<dyn Error>> {
    let client = Client::connect()?;
    let world = Communicator::from_env(&client)?;
    let arena = client.arena(1 << 20)?;
    let (train, test) = digits()?;

    // Only rank 0's weights count: everybody starts from a copy of them.
    let mut network = Network::random(0x5eed + u64::from(world.rank()));
    network.first.broadcast(&world, &arena)?;
    network.second.broadcast(&world, &arena)?;

    // One buffer for each layer's gradient: the bucket that is averaged while the next layer is computed.
    let mut first_bucket = arena.buffer::<f32>(network.first.len())?;
    let mut second_bucket = arena.buffer::<f32>(network.second.len())?;

    for epoch in 1..=EPOCHS {
        let order = shuffled(train.len(), epoch as u64);
        let mut loss = 0.0;
        for batch in order.chunks_exact(BATCH) {
            let share = share(batch, &world);
            let forward = network.forward(&train, share);
            loss += forward.loss * (BATCH as f32 / train.len() as f32);

            network.second_gradient(&forward, &mut second_bucket);
            let pending_second = world.allreduce_in_place(second_bucket, Reduction::Avg)?;
            network.first_gradient(&train, share, &forward, &mut first_bucket);
            let pending_first = world.allreduce_in_place(first_bucket, Reduction::Avg)?;

            second_bucket = pending_second.wait()?;
            network.second.step(&second_bucket);
            first_bucket = pending_first.wait()?;
            network.first.step(&first_bucket);
        }
        if epoch % 5 == 0 || epoch == 1 {
            report(epoch, loss, &network, &test, &world, &arena)?;
        }
    }
    agree(&network, &test, &world, &arena)
}

/// This rank's samples of a batch: every rank has as many.
fn share<'a>(batch: &'a [usize], world: &Communicator) -> &'a [usize] {
    let each = batch.len() / world.size() as usize;
    let begin = each * world.rank() as usize;
    &batch[begin..begin + each]
}

/// Prints the mean loss over all ranks and the accuracy on the test set.
fn report(
    epoch: usize,
    loss: f32,
    network: &Network,
    test: &[Sample],
    world: &Communicator,
    arena: &Arena,
) -> Result<(), Box<dyn Error>> {
    let mut mean = arena.buffer::<f32>(1)?;
    mean[0] = loss;
    let mean = world.allreduce_in_place(mean, Reduction::Avg)?.wait()?;
    if world.rank() == 0 {
        println!(
            "epoch {epoch:>3}  loss {:>8.4}  test accuracy {:>5.1} %",
            mean[0],
            100.0 * network.accuracy(test)
        );
    }
    Ok(())
}

/// Compares a digest of the weights over all ranks and the accuracy with what is expected of this network.
fn agree(
    network: &Network,
    test: &[Sample],
    world: &Communicator,
    arena: &Arena,
) -> Result<(), Box<dyn Error>> {
    let mut mine = arena.buffer::<u64>(1)?;
    mine[0] = network.digest();
    let all = arena.buffer::<u64>(world.size() as usize)?;
    let (mine, all) = world.all_gather(mine, all)?.wait()?;
    if all.iter().any(|digest| *digest != mine[0]) {
        return Err(format!("the ranks ended with different weights: {:x?}", &all[..]).into());
    }
    let accuracy = network.accuracy(test);
    if world.rank() == 0 {
        println!(
            "{} ranks on {} nodes ended with the same weights (digest {:016x}), test accuracy {:.1} %",
            world.size(),
            world.nodes(),
            mine[0],
            100.0 * accuracy
        );
    }
    if accuracy < 0.95 {
        return Err(format!("test accuracy {:.1} % is below 95 %", 100.0 * accuracy).into());
    }
    Ok(())
}

/// A handwritten digit.
struct Sample {
    pixels: [f32; PIXELS],
    label: usize,
}

/// The data, four fifths to train on and one fifth to test.
fn digits() -> Result<(Vec<Sample>, Vec<Sample>), Box<dyn Error>> {
    let mut text = String::new();
    flate2::read::GzDecoder::new(&include_bytes!("data/digits.csv.gz")[..]).read_to_string(&mut text)?;
    let (mut train, mut test) = (Vec::new(), Vec::new());
    for (index, row) in text.lines().enumerate() {
        let values = row.split(',').map(str::parse).collect::<Result<Vec<u8>, _>>()?;
        let (label, pixels) = values.split_last().ok_or("an empty row")?;
        let pixels: Vec<f32> = pixels.iter().map(|p| f32::from(*p) / 16.0).collect();
        let sample = Sample {
            pixels: pixels.try_into().map_err(|_| "a row needs 65 columns")?,
            label: usize::from(*label),
        };
        if index % 5 == 4 { test.push(sample) } else { train.push(sample) }
    }
    Ok((train, test))
}

/// Weights (outputs x (inputs + 1), the last column the bias) and their momentum.
struct Layer {
    inputs: usize,
    weights: Vec<f32>,
    velocity: Vec<f32>,
}

impl Layer {
    fn random(inputs: usize, outputs: usize, random: &mut Random) -> Self {
        let scale = (6.0 / (inputs + outputs) as f32).sqrt();
        let weights: Vec<f32> = (0..outputs * (inputs + 1)).map(|_| scale * random.symmetric()).collect();
        Self { inputs, velocity: vec![0.0; weights.len()], weights }
    }

    fn len(&self) -> usize {
        self.weights.len()
    }

    fn rows(&self) -> std::slice::ChunksExact<'_, f32> {
        self.weights.chunks_exact(self.inputs + 1)
    }

    fn apply(&self, input: &[f32]) -> Vec<f32> {
        self.rows().map(|row| dot(&row[..self.inputs], input) + row[self.inputs]).collect()
    }

    /// Takes rank 0's weights.
    fn broadcast(&mut self, world: &Communicator, arena: &Arena) -> Result<(), Box<dyn Error>> {
        let mut buffer = arena.buffer::<f32>(self.len())?;
        buffer.copy_from_slice(&self.weights);
        let buffer = world.broadcast_in_place(buffer, 0)?.wait()?;
        self.weights.copy_from_slice(&buffer);
        Ok(())
    }

    fn step(&mut self, gradient: &[f32]) {
        for ((weight, velocity), gradient) in self.weights.iter_mut().zip(&mut self.velocity).zip(gradient) {
            *velocity = MOMENTUM * *velocity - LEARNING_RATE * gradient;
            *weight += *velocity;
        }
    }
}

struct Network {
    first: Layer,
    second: Layer,
}

/// What the forward pass leaves for the backward pass, for each sample.
struct Forward {
    hidden: Vec<Vec<f32>>,
    /// Gradient of the loss by the second layer's outputs.
    errors: Vec<Vec<f32>>,
    /// Mean over the samples.
    loss: f32,
}

impl Network {
    fn random(seed: u64) -> Self {
        let mut random = Random(seed);
        Self {
            first: Layer::random(PIXELS, HIDDEN, &mut random),
            second: Layer::random(HIDDEN, CLASSES, &mut random),
        }
    }

    fn forward(&self, data: &[Sample], share: &[usize]) -> Forward {
        let mut forward = Forward { hidden: Vec::new(), errors: Vec::new(), loss: 0.0 };
        for sample in share.iter().map(|i| &data[*i]) {
            let hidden: Vec<f32> = self.first.apply(&sample.pixels).into_iter().map(|x| x.max(0.0)).collect();
            let mut errors = softmax(&self.second.apply(&hidden));
            forward.loss -= errors[sample.label].max(1e-9).ln() / share.len() as f32;
            errors[sample.label] -= 1.0;
            forward.hidden.push(hidden);
            forward.errors.push(errors);
        }
        forward
    }

    fn second_gradient(&self, forward: &Forward, bucket: &mut Buffer<f32>) {
        accumulate(
            bucket,
            forward.errors.iter().zip(&forward.hidden).map(|(e, h)| (e.as_slice(), h.as_slice())),
        );
    }

    fn first_gradient(&self, data: &[Sample], share: &[usize], forward: &Forward, bucket: &mut Buffer<f32>) {
        let errors: Vec<Vec<f32>> =
            forward.errors.iter().zip(&forward.hidden).map(|(e, h)| self.back(e, h)).collect();
        let pixels = share.iter().map(|i| data[*i].pixels.as_slice());
        accumulate(bucket, errors.iter().map(Vec::as_slice).zip(pixels));
    }

    /// The gradient by the hidden units.
    fn back(&self, errors: &[f32], hidden: &[f32]) -> Vec<f32> {
        let mut back = vec![0.0; HIDDEN];
        for (row, error) in self.second.rows().zip(errors) {
            back.iter_mut().zip(row).for_each(|(b, weight)| *b += weight * error);
        }
        back.iter().zip(hidden).map(|(b, h)| if *h > 0.0 { *b } else { 0.0 }).collect()
    }

    fn accuracy(&self, data: &[Sample]) -> f64 {
        let right = data.iter().filter(|sample| {
            let hidden: Vec<f32> = self.first.apply(&sample.pixels).into_iter().map(|x| x.max(0.0)).collect();
            let scores = self.second.apply(&hidden);
            (0..CLASSES).max_by(|a, b| scores[*a].total_cmp(&scores[*b])) == Some(sample.label)
        });
        right.count() as f64 / data.len() as f64
    }

    /// FNV-1a over the bits of all weights.
    fn digest(&self) -> u64 {
        let bits =
            self.first.weights.iter().chain(&self.second.weights).flat_map(|w| w.to_bits().to_le_bytes());
        bits.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
    }
}

/// Writes the mean outer product of (errors, inputs with a one behind) into the bucket.
fn accumulate<'a>(bucket: &mut [f32], pairs: impl ExactSizeIterator<Item = (&'a [f32], &'a [f32])>) {
    let scale = 1.0 / pairs.len() as f32;
    bucket.fill(0.0);
    for (errors, inputs) in pairs {
        for (row, error) in bucket.chunks_exact_mut(inputs.len() + 1).zip(errors) {
            row.iter_mut()
                .zip(inputs.iter().chain([&1.0]))
                .for_each(|(g, input)| *g += scale * error * input);
        }
    }
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}

fn softmax(scores: &[f32]) -> Vec<f32> {
    let top = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let powers: Vec<f32> = scores.iter().map(|s| (s - top).exp()).collect();
    let sum: f32 = powers.iter().sum();
    powers.iter().map(|p| p / sum).collect()
}

/// A permutation of `0..length`, the same on every rank.
fn shuffled(length: usize, seed: u64) -> Vec<usize> {
    let mut random = Random(seed);
    let mut order: Vec<usize> = (0..length).collect();
    for last in (1..length).rev() {
        order.swap(last, (random.next() % (last as u64 + 1)) as usize);
    }
    order
}

/// SplitMix64 (Steele, Lea and Flood, 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in [-1, 1).
    fn symmetric(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1_u64 << 23) as f32 - 1.0
    }
}
