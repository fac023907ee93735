//! Writes every target's samples into the corpus, named by their content; nothing is removed.
#![expect(clippy::print_stdout, reason = "a program for people")]

use std::{fs, io, path::Path};

use ringway_fuzz::TARGETS;

fn main() -> io::Result<()> {
    for target in TARGETS {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name);
        fs::create_dir_all(&folder)?;
        let samples = (target.samples)();
        for sample in &samples {
            fs::write(folder.join(format!("{:016x}", fnv1a(sample))), sample)?;
        }
        println!("{}: {} samples", target.name, samples.len());
    }
    Ok(())
}

/// FNV-1a with 64 bits: names, not secrets.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}
