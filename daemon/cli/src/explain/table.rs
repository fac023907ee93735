//! What is explained, as text for people.

use ringway_plan::tuner::Constants;

use super::{ExplainArgs, Explained};
use crate::perf::significant;

/// What holds for all sizes.
pub(super) fn head(args: &ExplainArgs, constants: &Constants, origin: &str) -> String {
    let Constants { latency_ns, message_ns, byte_ns, reduce_ns, copy_ns, .. } = *constants;
    let (nodes, ranks) = (args.nodes, args.ranks_per_node);
    let operation = args.operation.name();
    let plural = |count: u32| if count == 1 { "" } else { "s" };
    format!(
        "# {operation}, {nodes} node{} with {ranks} rank{} each, {}, order {}\n\
         # constants {origin}:\n\
         #   a message takes {} us and its engine thread {} us; a byte {} ns ({} GB/s)\n\
         #   to combine a byte takes {} ns, to copy one {} ns",
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

/// One size.
pub(super) fn rows(explained: &Explained) -> String {
    let measured = explained.candidates.iter().any(|candidate| candidate.measured_us.is_some());
    let mut text = format!("\n{} bytes ({})\n", explained.bytes, size(explained.bytes));
    text +=
        &format!("  {:<34} {:>8} {:>8} {:>13} {:>8}", "algorithm", "chunk", "chunks", "predicted", "of best");
    text += if measured { "      measured  of best\n" } else { "\n" };
    let best = explained.candidates.first().map_or(1.0, |first| first.predicted_us);
    let fastest =
        explained.candidates.iter().filter_map(|c| c.measured_us).reduce(f64::min).unwrap_or(f64::INFINITY);
    for candidate in &explained.candidates {
        let mark = if explained.chosen == candidate.algorithm { '>' } else { ' ' };
        text += &format!(
            "{mark} {:<34} {:>8} {:>8} {:>10} us {:>8.2}",
            candidate.algorithm,
            size(candidate.chunk_bytes),
            candidate.chunks,
            significant(candidate.predicted_us),
            candidate.predicted_us / best.max(1e-9),
        );
        if let Some(us) = candidate.measured_us {
            text += &format!(" {:>10} us {:>8.2}", significant(us), us / fastest.max(1e-9));
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
