//! What is explained, as text for people.

use std::cmp::Ordering;

use ringway_plan::tuner::Constants;

use super::{ExplainArgs, Explained};
use crate::perf::significant;

/// What holds for all sizes.
pub(super) fn head(args: &ExplainArgs, constants: &Constants, origin: &str) -> String {
    let Constants { latency_ns, message_ns, byte_ns, reduce_ns, copy_ns, .. } = *constants;
    let (nodes, ranks) = (args.nodes, args.ranks_per_node);
    let operation = args.operation.name();
    let channel = if args.channels > 1 && constants.channel_byte_ns > 0.0 {
        let gbps = significant(1.0 / constants.channel_byte_ns.max(1e-6));
        format!(
            "\n#   over one of {} channels alone a byte takes {} ns ({gbps} GB/s)",
            args.channels,
            significant(constants.channel_byte_ns)
        )
    } else {
        String::new()
    };
    let alone = match nodes {
        1 => "\n# ranks of one node do it in memory they share: `ringway perf` times that, no plan says it",
        _ => "",
    };
    let plural = |count: u32| if count == 1 { "" } else { "s" };
    format!(
        "# {operation}, {nodes} node{} with {ranks} rank{} each, {}, order {}\n\
         # constants {origin}:\n\
         #   a message takes {} us and its engine thread {} us; a byte {} ns ({} GB/s)\n\
         #   to combine a byte takes {} ns, to copy one {} ns{channel}{alone}",
        plural(nodes),
        plural(ranks),
        args.device,
        args.order.name(),
        significant(latency_ns / 1e3),
        significant(message_ns / 1e3),
        significant(byte_ns),
        significant(1.0 / byte_ns.max(1e-6)),
        significant(reduce_ns),
        significant(copy_ns),
    )
}

/// A column of names is so wide at least, so that sizes whose names are short look alike.
const NAME_WIDTH: usize = 34;

/// One size.
pub(super) fn rows(explained: &Explained) -> String {
    let measured = explained.candidates.iter().any(|candidate| candidate.measured_us.is_some());
    let several = explained.channels > 1;
    let mut text = format!("\n{} bytes ({})\n", explained.bytes, size(explained.bytes));
    let channels = if several { " channels" } else { "" };
    let width = explained.candidates.iter().map(|it| it.algorithm.len()).max().unwrap_or(0).max(NAME_WIDTH);
    text += &format!(
        "  {:<width$} {:>8} {:>8}{channels} {:>13} {:>8}",
        "algorithm", "chunk", "chunks", "predicted", "of best"
    );
    text += if measured { "      measured  of best\n" } else { "\n" };
    let best = explained.candidates.first().map_or(1.0, |first| first.predicted_us);
    let fastest =
        explained.candidates.iter().filter_map(|c| c.measured_us).reduce(f64::min).unwrap_or(f64::INFINITY);
    for candidate in &explained.candidates {
        let mark = if explained.chosen == candidate.algorithm { '>' } else { ' ' };
        let channels = if several { format!(" {:>8}", candidate.channels) } else { String::new() };
        text += &format!(
            "{mark} {:<width$} {:>8} {:>8}{channels} {:>10} us {:>8.2}",
            candidate.algorithm,
            size(candidate.chunk_bytes),
            candidate.chunks,
            significant(candidate.predicted_us),
            over(candidate.predicted_us, best),
        );
        if let Some(us) = candidate.measured_us {
            text += &format!(" {:>10} us {:>8.2}", significant(us), over(us, fastest));
        }
        text.push('\n');
    }
    let by_rule = if explained.chosen_by == "rule" { ", by a rule of the tuning file" } else { "" };
    if let Some((us, over)) = explained.chosen_us.zip(explained.chosen_over_best) {
        let (chosen, us) = (&explained.chosen, significant(us));
        text += &format!("  chosen: {chosen}{by_rule}, {us} us, {over:.2} of the best measured\n");
    } else if !by_rule.is_empty() {
        text += &format!("  chosen: {}{by_rule}\n", explained.chosen);
    }
    text.trim_end().to_owned()
}

/// How many times as long; what takes no time by the model, as between ranks of one node, takes as long as itself.
pub(super) fn over(us: f64, fastest_us: f64) -> f64 {
    if us > fastest_us { us / fastest_us.max(1e-9) } else { 1.0 }
}

/// What is said of a choice that takes longer than it may.
pub(super) fn missed(explained: &Explained, within: Option<f64>) -> Option<String> {
    let (over, within) = explained.chosen_over_best.zip(within).filter(|(over, within)| over > within)?;
    let fastest = explained.candidates.iter().filter(|it| it.measured_us.is_some());
    let fastest =
        fastest.min_by(|a, b| a.measured_us.partial_cmp(&b.measured_us).unwrap_or(Ordering::Equal))?;
    let (bytes, chosen) = (explained.bytes, &explained.chosen);
    let best = &fastest.algorithm;
    Some(format!("{bytes} bytes: {chosen} took {over:.2} times as long as {best}, more than {within}"))
}

/// A size as people say it.
fn size(bytes: u64) -> String {
    for (shift, unit) in [(30, "GiB"), (20, "MiB"), (10, "KiB")] {
        if bytes >= 1 << shift {
            let whole = bytes >> shift;
            return if whole << shift == bytes {
                format!("{whole} {unit}")
            } else {
                format!("{:.1} {unit}", bytes as f64 / f64::from(1_u32 << shift))
            };
        }
    }
    format!("{bytes} B")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explain::Explanation;

    #[test]
    fn a_choice_beyond_the_bound_is_named_with_what_was_faster() {
        let timed = |algorithm: &str, us| Explanation {
            algorithm: algorithm.to_owned(),
            chunk_bytes: 65536,
            channels: 1,
            chunks: 1,
            predicted_us: 1.0,
            measured_us: Some(us),
        };
        let explained = Explained {
            operation: "allreduce",
            bytes: 64,
            nodes: 3,
            ranks_per_node: 1,
            channels: 1,
            order: "stable",
            candidates: vec![timed("ring", 30.0), timed("direct", 20.0)],
            chosen: "ring".to_owned(),
            chosen_by: "model",
            chosen_us: Some(30.0),
            chosen_over_best: Some(1.5),
        };
        assert_eq!(missed(&explained, Some(1.6)), None);
        assert_eq!(missed(&explained, None), None);
        let said = missed(&explained, Some(1.25)).unwrap_or_default();
        assert_eq!(said, "64 bytes: ring took 1.50 times as long as direct, more than 1.25");
    }
}
