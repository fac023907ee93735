//! What shall go wrong, as it is said on a command line.

use core::{fmt, str::FromStr};

use thiserror::Error;

/// What a network does to packets. As text: `loss=0.01,delay_us=50,seed=7`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FaultSpec {
    /// The probability that a packet is lost.
    pub loss: f64,
    /// The probability that it comes twice.
    pub duplicate: f64,
    /// The probability that one of its bits is flipped.
    pub corrupt: f64,
    /// The probability that it is held back, so that later ones pass it.
    pub reorder: f64,
    /// For how long at most, in microseconds.
    pub reorder_us: u64,
    /// How long every packet is held back, in microseconds.
    pub delay_us: u64,
    /// How much longer at most, drawn for each packet, in microseconds.
    pub jitter_us: u64,
    /// The probability that a packet which may be marked with congestion is.
    pub ecn: f64,
    /// What the draws begin with: the same seed and the same packets have the same fate.
    pub seed: u64,
}

impl Default for FaultSpec {
    fn default() -> Self {
        Self {
            loss: 0.0,
            duplicate: 0.0,
            corrupt: 0.0,
            reorder: 0.0,
            reorder_us: 50,
            delay_us: 0,
            jitter_us: 0,
            ecn: 0.0,
            seed: 1,
        }
    }
}

/// Why a text is no [`FaultSpec`].
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum FaultSpecError {
    /// There is nothing in it.
    #[error("no fault is named; {KNOWN}")]
    Empty,
    /// Something without a value.
    #[error("`{part}` is not of the form NAME=VALUE; {KNOWN}")]
    Form {
        /// What was found.
        part: String,
    },
    /// A name that means nothing.
    #[error("there is no fault `{name}`; {KNOWN}")]
    Name {
        /// The name.
        name: String,
    },
    /// A name for the second time.
    #[error("`{name}` is given twice")]
    Twice {
        /// The name.
        name: String,
    },
    /// A value that is not a probability.
    #[error("`{value}` is not a probability for `{name}`; it must be a number from 0 to 1")]
    Probability {
        /// The name.
        name: String,
        /// The value.
        value: String,
    },
    /// A value that is not a whole number, or too large.
    #[error("`{value}` is not a value for `{name}`; it must be a whole number from 0 to {most}")]
    Number {
        /// The name.
        name: String,
        /// The value.
        value: String,
        /// The largest.
        most: u64,
    },
}

/// What may be said.
const KNOWN: &str = "faults are loss, duplicate, corrupt, reorder and ecn with a probability from 0 to 1, delay_us, \
                     jitter_us, reorder_us and seed with a whole number: `loss=0.01,seed=7`";

/// An hour: longer than any transport waits.
const DELAY_US_MAX: u64 = 3_600_000_000;

/// A field of a spec.
enum Field<'a> {
    Probability(&'a mut f64),
    Microseconds(&'a mut u64),
    Seed(&'a mut u64),
}

impl FaultSpec {
    /// Whether packets may be held back.
    pub(super) fn holds_back(&self) -> bool {
        self.reorder > 0.0 || self.delay_us > 0 || self.jitter_us > 0
    }

    fn field(&mut self, name: &str) -> Option<Field<'_>> {
        Some(match name {
            "loss" => Field::Probability(&mut self.loss),
            "duplicate" => Field::Probability(&mut self.duplicate),
            "corrupt" => Field::Probability(&mut self.corrupt),
            "reorder" => Field::Probability(&mut self.reorder),
            "ecn" => Field::Probability(&mut self.ecn),
            "reorder_us" => Field::Microseconds(&mut self.reorder_us),
            "delay_us" => Field::Microseconds(&mut self.delay_us),
            "jitter_us" => Field::Microseconds(&mut self.jitter_us),
            "seed" => Field::Seed(&mut self.seed),
            _ => return None,
        })
    }
}

impl FromStr for FaultSpec {
    type Err = FaultSpecError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut spec = Self::default();
        let mut seen: Vec<&str> = Vec::new();
        if text.trim().is_empty() {
            return Err(FaultSpecError::Empty);
        }
        for part in text.split(',') {
            let (name, value) =
                part.split_once('=').ok_or_else(|| FaultSpecError::Form { part: part.trim().to_owned() })?;
            let (name, value) = (name.trim(), value.trim());
            let named = |make: fn(String, String) -> FaultSpecError| make(name.to_owned(), value.to_owned());
            let field = spec.field(name).ok_or_else(|| FaultSpecError::Name { name: name.to_owned() })?;
            if seen.contains(&name) {
                return Err(FaultSpecError::Twice { name: name.to_owned() });
            }
            seen.push(name);
            match field {
                Field::Probability(to) => {
                    *to =
                        value.parse().ok().filter(|p| (0.0..=1.0).contains(p)).ok_or_else(|| {
                            named(|name, value| FaultSpecError::Probability { name, value })
                        })?;
                }
                Field::Microseconds(to) => {
                    *to = value.parse().ok().filter(|us| *us <= DELAY_US_MAX).ok_or_else(|| {
                        named(|name, value| FaultSpecError::Number { name, value, most: DELAY_US_MAX })
                    })?;
                }
                Field::Seed(to) => {
                    *to = value.parse().map_err(|_| {
                        named(|name, value| FaultSpecError::Number { name, value, most: u64::MAX })
                    })?;
                }
            }
        }
        Ok(spec)
    }
}

/// As it can be said again: what is as usual is left out, but for the seed.
impl fmt::Display for FaultSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let usual = Self::default();
        let Self { loss, duplicate, corrupt, reorder, reorder_us, delay_us, jitter_us, ecn, seed } = *self;
        for (name, probability) in [
            ("loss", loss),
            ("duplicate", duplicate),
            ("corrupt", corrupt),
            ("reorder", reorder),
            ("ecn", ecn),
        ] {
            if probability > 0.0 {
                write!(f, "{name}={probability},")?;
            }
        }
        for (name, value, usual) in [
            ("reorder_us", reorder_us, usual.reorder_us),
            ("delay_us", delay_us, usual.delay_us),
            ("jitter_us", jitter_us, usual.jitter_us),
        ] {
            if value != usual {
                write!(f, "{name}={value},")?;
            }
        }
        write!(f, "seed={seed}")
    }
}
