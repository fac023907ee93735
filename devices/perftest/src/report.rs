//! What was measured.

use serde::Serialize;

use crate::channel::Outcome;

/// What came of a test.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// For each size of messages.
    pub rows: Vec<Row>,
    /// For all of them.
    pub packets: Packets,
}

/// RoCE packets of a test.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Packets {
    /// Given to the network.
    pub sent: u64,
    /// Came in.
    pub received: u64,
    /// Of these, with a wrong invariant CRC.
    pub bad_icrc: u64,
    /// Of these, what is no packet at all.
    pub malformed: u64,
}

/// The results for one size of messages.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// Bytes of a message.
    pub bytes: u64,
    /// Messages.
    pub iterations: u64,
    /// How long they took, or what the rate was.
    #[serde(flatten)]
    pub figures: Figures,
    /// The bytes that came were checked.
    pub checked: bool,
}

/// Latencies or rates.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Figures {
    /// Microseconds: half a round trip, but a whole one for what brings something back.
    Latency {
        /// The least.
        min_us: f64,
        /// The most.
        max_us: f64,
        /// The median.
        median_us: f64,
        /// The mean.
        mean_us: f64,
        /// The standard deviation.
        deviation_us: f64,
        /// 99 of 100 are no more.
        p99_us: f64,
        /// 999 of 1000 are no more.
        p999_us: f64,
    },
    /// Rates.
    Bandwidth {
        /// The best between any two messages, in MiB/s; zero when it was not looked for.
        peak_mib_s: f64,
        /// Over all, in MiB/s.
        average_mib_s: f64,
        /// Millions of messages per second.
        messages_m_s: f64,
    },
}

/// When messages were posted and completed, in nanoseconds.
#[derive(Debug)]
pub(crate) struct Times {
    pub(crate) posted: Vec<u64>,
    pub(crate) completed: Vec<u64>,
}

impl Times {
    pub(crate) fn new(messages: u64) -> Self {
        let room = || Vec::with_capacity(usize::try_from(messages).unwrap_or_default());
        Self { posted: room(), completed: room() }
    }
}

/// The most messages whose best rate is looked for, which takes the square of them.
const PEAK_MESSAGES: usize = 20_000;
const MIB: f64 = 1_048_576.0;

impl Row {
    /// The rate of these messages. Without times of posting it is that of all completions.
    pub(crate) fn bandwidth(bytes: u64, times: &Times, begin: u64, end: u64, checked: bool) -> Self {
        let iterations = times.completed.len() as u64;
        let seconds = end.saturating_sub(begin).max(1) as f64 / 1e9;
        let rate = |messages: f64, ns: f64| messages * bytes as f64 / MIB / (ns / 1e9);
        let mut least = f64::INFINITY;
        if times.completed.len() <= PEAK_MESSAGES {
            for (first, posted) in times.posted.iter().enumerate() {
                let later = times.completed.iter().enumerate().skip(first);
                least = later
                    .map(|(last, done)| done.saturating_sub(*posted) as f64 / (last - first + 1) as f64)
                    .fold(least, f64::min);
            }
        }
        let peak_mib_s = if least.is_finite() { rate(1.0, least.max(1.0)) } else { 0.0 };
        let figures = Figures::Bandwidth {
            peak_mib_s,
            average_mib_s: rate(iterations as f64, seconds * 1e9),
            messages_m_s: iterations as f64 / seconds / 1e6,
        };
        Self { bytes, iterations, figures, checked }
    }

    /// The latency of messages that were posted at these times, one after the other: `way` of a round trip is one.
    pub(crate) fn latency(bytes: u64, posted: &[u64], way: f64, checked: bool) -> Self {
        let mut each: Vec<f64> = posted
            .windows(2)
            .filter_map(|pair| match pair {
                [first, second] => Some(second.saturating_sub(*first) as f64 / 1e3 * way),
                _ => None,
            })
            .collect();
        each.sort_by(f64::total_cmp);
        let count = each.len().max(1) as f64;
        let mean = each.iter().sum::<f64>() / count;
        let variance = each.iter().map(|one| (one - mean).powi(2)).sum::<f64>() / count;
        let at = |share: f64| {
            let index = (each.len() as f64 * share).ceil() as usize;
            each.get(index.min(each.len().saturating_sub(1))).copied().unwrap_or_default()
        };
        let figures = Figures::Latency {
            min_us: at(0.0),
            max_us: at(1.0),
            median_us: at(0.5),
            mean_us: mean,
            deviation_us: variance.sqrt(),
            p99_us: at(0.99),
            p999_us: at(0.999),
        };
        Self { bytes, iterations: posted.len() as u64, figures, checked }
    }

    /// What the peer is told.
    pub(crate) fn outcome(&self) -> Outcome {
        let Self { bytes, iterations, figures, .. } = *self;
        match figures {
            Figures::Bandwidth { peak_mib_s, average_mib_s, messages_m_s } => {
                Outcome { bytes, iterations, peak_mib_s, average_mib_s, messages_m_s }
            }
            Figures::Latency { .. } => Outcome { bytes, iterations, ..Outcome::default() },
        }
    }

    /// What the peer told.
    pub(crate) fn of_outcome(outcome: &Outcome, checked: bool) -> Self {
        let Outcome { bytes, iterations, peak_mib_s, average_mib_s, messages_m_s } = *outcome;
        let figures = Figures::Bandwidth { peak_mib_s, average_mib_s, messages_m_s };
        Self { bytes, iterations, figures, checked }
    }

    /// What the columns of a table of such rows are.
    #[must_use]
    pub const fn heading(latency: bool) -> &'static str {
        if latency {
            " #bytes  #iterations   t_min[usec]   t_max[usec]  t_typical[usec]  t_avg[usec]  t_stdev[usec]  99%[usec]  99.9%[usec]"
        } else {
            " #bytes  #iterations   BW peak[MiB/sec]  BW average[MiB/sec]  MsgRate[Mpps]"
        }
    }

    /// The row, for people.
    #[must_use]
    pub fn line(&self) -> String {
        let Self { bytes, iterations, figures, .. } = self;
        match figures {
            Figures::Latency { min_us, max_us, median_us, mean_us, deviation_us, p99_us, p999_us } => {
                format!(
                    " {bytes:<8} {iterations:<12} {min_us:<13.2} {max_us:<12.2} {median_us:<16.2} {mean_us:<12.2} \
                 {deviation_us:<14.2} {p99_us:<10.2} {p999_us:.2}"
                )
            }
            Figures::Bandwidth { peak_mib_s, average_mib_s, messages_m_s } => format!(
                " {bytes:<8} {iterations:<12} {peak_mib_s:<17.2} {average_mib_s:<20.2} {messages_m_s:.6}"
            ),
        }
    }
}
