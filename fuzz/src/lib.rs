//! Fuzz targets: one plain function for each place where bytes of another process are read. A target panics when a
//! promise does not hold; returning says nothing else.
//!
//! `cargo test -p ringway-fuzz` replays the corpus and thousands of seeded inputs through every target. cargo-fuzz
//! explores further: `cargo +nightly fuzz run --features libfuzzer TARGET`. What it finds goes into the corpus.
//! [`Target::samples`] are the valid and the nasty inputs that the corpus begins with;
//! `cargo run -p ringway-fuzz --example write_corpus` writes them again after a format has changed.
#![forbid(unsafe_code)]
#![expect(clippy::missing_panics_doc, reason = "to panic is how a target reports what it found")]

pub mod abi;
pub mod cell;
pub mod configuration;
pub mod engine;
pub mod group;
pub mod perftest;
pub mod rc;
pub mod ring;
pub mod shm;
pub mod stand_in;
pub mod tcp;
pub mod topology;
pub mod wire;

/// One target.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// The name of the function, the program and the folder in the corpus.
    pub name: &'static str,
    /// Tries an input.
    pub run: fn(&[u8]),
    /// Inputs to begin with.
    pub samples: fn() -> Vec<Vec<u8>>,
}

/// Every target.
pub const TARGETS: &[Target] = &[
    Target { name: "submission", run: abi::submission, samples: abi::submission_samples },
    Target { name: "completion", run: abi::completion, samples: abi::completion_samples },
    Target { name: "control", run: abi::control, samples: abi::control_samples },
    Target { name: "handshake", run: abi::handshake, samples: abi::handshake_samples },
    Target { name: "unique_id", run: abi::unique_id, samples: abi::unique_id_samples },
    Target { name: "cell_helper", run: cell::helper, samples: cell::helper_samples },
    Target { name: "cell_stand_in", run: stand_in::stand_in, samples: stand_in::stand_in_samples },
    Target { name: "engine_header", run: engine::header, samples: engine::header_samples },
    Target { name: "engine_failure", run: engine::failure, samples: engine::failure_samples },
    Target { name: "group_message", run: group::message, samples: group::message_samples },
    Target { name: "group_root", run: group::root, samples: group::root_samples },
    Target { name: "ring_consumer", run: ring::consumer, samples: ring::consumer_samples },
    Target { name: "ring_producer", run: ring::producer, samples: ring::producer_samples },
    Target { name: "tcp_header", run: tcp::header, samples: tcp::header_samples },
    Target { name: "tcp_preface", run: tcp::data_preface, samples: tcp::data_preface_samples },
    Target { name: "shm_entry", run: shm::entry, samples: shm::entry_samples },
    Target { name: "perftest_keys", run: perftest::keys, samples: perftest::keys_samples },
    Target { name: "rc_queue_pair", run: rc::queue_pair, samples: rc::queue_pair_samples },
    Target { name: "wire_packet", run: wire::packet, samples: wire::packet_samples },
    Target { name: "wire_frame", run: wire::frame, samples: wire::frame_samples },
    Target { name: "configuration", run: configuration::file, samples: configuration::file_samples },
    Target { name: "topology", run: topology::file, samples: topology::file_samples },
];

/// Takes numbers from the front of an input; zeros when it has ended.
#[derive(Debug)]
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl Reader<'_> {
    pub(crate) fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let mut out = [0; N];
        let (taken, rest) = self.0.split_at(self.0.len().min(N));
        for (to, from) in out.iter_mut().zip(taken) {
            *to = *from;
        }
        self.0 = rest;
        out
    }

    pub(crate) fn u8(&mut self) -> u8 {
        let [byte] = self.bytes();
        byte
    }

    pub(crate) fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.bytes())
    }

    pub(crate) fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.bytes())
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
