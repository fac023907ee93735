//! Every target over its corpus and over seeded inputs: changed samples and plain rubbish.
#![expect(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test may panic, and says on what input"
)]

use std::{fs, panic, path::Path};

use ringway_fuzz::{TARGETS, Target};
use ringway_sim::Random;

/// Seeded inputs for each target; the same in every run.
const INPUTS: u64 = 10_000;
/// The most bytes of one.
const BYTES_MAX: u64 = 300;

/// What makes inputs.
struct Inputs(Random);

impl Inputs {
    fn byte(&mut self) -> u8 {
        // Values at the edges are where parsers go wrong.
        const EDGES: [u8; 6] = [0, 1, 2, 0x7f, 0x80, 0xff];
        match self.0.below(3) {
            0 => self.0.pick(&EDGES),
            _ => self.0.next().to_le_bytes()[0],
        }
    }

    fn rubbish(&mut self) -> Vec<u8> {
        (0..self.0.below(BYTES_MAX)).map(|_| self.byte()).collect()
    }

    /// A sample with a few changes: bytes replaced, inserted, removed, the end cut off, another sample put behind.
    fn changed(&mut self, samples: &[Vec<u8>]) -> Vec<u8> {
        let pick = |r: &mut Self| samples[usize::try_from(r.0.below(samples.len() as u64)).unwrap()].clone();
        let mut bytes = pick(self);
        for _ in 0..=self.0.below(4) {
            let at = usize::try_from(self.0.below(bytes.len() as u64 + 1)).unwrap();
            match self.0.below(6) {
                0 if at < bytes.len() => bytes[at] ^= 1 << self.0.below(8),
                1 | 2 if at < bytes.len() => bytes[at] = self.byte(),
                3 => bytes.insert(at, self.byte()),
                4 if at < bytes.len() => drop(bytes.remove(at)),
                5 if self.0.below(4) == 0 => bytes.truncate(at),
                5 if self.0.below(4) == 0 => bytes.extend(pick(self)),
                _ => {}
            }
        }
        bytes
    }
}

/// Runs the target and names the input if it panics.
fn attempt(target: &Target, bytes: &[u8], origin: &str) {
    if let Err(cause) = panic::catch_unwind(|| (target.run)(bytes)) {
        eprintln!("target {} fails on {origin}: {bytes:02x?}", target.name);
        panic::resume_unwind(cause);
    }
}

fn corpus(target: &Target) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name);
    let mut files: Vec<_> = fs::read_dir(&folder)
        .unwrap_or_else(|e| panic!("{}: {e}", folder.display()))
        .map(|entry| entry.expect("an entry").path())
        .map(|path| (path.display().to_string(), fs::read(&path).expect("a file of the corpus")))
        .collect();
    files.sort();
    files
}

#[test]
fn the_corpus_passes() {
    for target in TARGETS {
        let files = corpus(target);
        assert!(files.len() >= 3, "the corpus of {} is there", target.name);
        for (name, bytes) in files {
            attempt(target, &bytes, &name);
        }
    }
}

#[test]
fn the_corpus_holds_every_sample() {
    for target in TARGETS {
        let files = corpus(target);
        for sample in (target.samples)() {
            assert!(
                files.iter().any(|(_, bytes)| *bytes == sample),
                "a sample of {} is missing: run `cargo run -p ringway-fuzz --example write_corpus`",
                target.name
            );
        }
    }
}

#[test]
fn seeded_inputs_pass() {
    for target in TARGETS {
        let samples = (target.samples)();
        for seed in 0..INPUTS {
            let mut inputs = Inputs(Random::new(seed));
            let bytes = if seed % 4 == 0 { inputs.rubbish() } else { inputs.changed(&samples) };
            attempt(target, &bytes, &format!("seed {seed}"));
        }
    }
}
