//! Where in a page buffers begin, and what that costs. Copies can fall to a fraction of their rate when the destination is
//! a little past the source modulo the page size, as what was stored last is taken for what is loaded next; and string
//! instructions, which many a `memcpy` consists of, fall to a tenth on some processors.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::report::{Row, round, significant};

/// What offsets repeat after.
pub(crate) const PAGE: u64 = 4096;

/// Offsets that stand for all: those of bytes, elements, vectors and lines, just before and just past the page, and
/// through it.
const ALL: [u64; 32] = [
    0, 1, 4, 8, 12, 16, 24, 32, 40, 48, 56, 64, 96, 128, 192, 256, 512, 768, 1024, 1536, 2048, 2064, 2560,
    3072, 3584, 3968, 4032, 4064, 4080, 4088, 4092, 4095,
];

/// Where a call's buffers begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Offset {
    /// Bytes from the page to the input.
    pub(crate) input: u64,
    /// Bytes from the input's place in a page to the output's; in place, to the one buffer's.
    pub(crate) output: u64,
}

impl Offset {
    /// Bytes from the page to the output; in place, to the one buffer.
    pub(crate) const fn output_in_page(self) -> u64 {
        (self.input + self.output) % PAGE
    }
}

/// Offsets in a page, as they are asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Offsets {
    /// Those that stand for all, as far as elements can begin there.
    All,
    List(Vec<u64>),
}

impl Offsets {
    /// Reads `all`, `step:N` or a list.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let below_page = |text: &str| text.parse::<u64>().ok().filter(|bytes| *bytes < PAGE);
        if text == "all" {
            return Ok(Self::All);
        }
        let list: Option<Vec<u64>> = match text.strip_prefix("step:") {
            Some(step) => below_page(step)
                .and_then(|step| usize::try_from(step).ok())
                .filter(|step| *step > 0)
                .map(|step| (0..PAGE).step_by(step).collect()),
            None => text.split(',').map(below_page).collect(),
        };
        list.map(Self::List).ok_or_else(|| {
            format!(
                "`{text}` is no list of offsets: bytes below {PAGE}, separated by commas, `step:N` or `all`"
            )
        })
    }

    /// Those at which elements of so many bytes begin.
    fn for_elements(&self, element_bytes: u64) -> Result<Vec<u64>, String> {
        match self {
            Self::All => Ok(ALL.into_iter().filter(|offset| offset.is_multiple_of(element_bytes)).collect()),
            Self::List(list) => match list.iter().find(|offset| !offset.is_multiple_of(element_bytes)) {
                Some(offset) => {
                    Err(format!("no element begins at offset {offset}: give multiples of {element_bytes}"))
                }
                None => Ok(list.clone()),
            },
        }
    }

    /// Every output's offset with every input's; none where neither was asked for. What was not asked for is zero.
    pub(crate) fn pairs(
        inputs: Option<&Self>,
        outputs: Option<&Self>,
        element_bytes: u64,
    ) -> Result<Vec<Offset>, String> {
        if inputs.or(outputs).is_none() {
            return Ok(Vec::new());
        }
        let list =
            |asked: Option<&Self>| asked.map_or(Ok(vec![0]), |asked| asked.for_elements(element_bytes));
        let outputs = list(outputs)?;
        let pairs = |input| outputs.iter().map(move |&output| Offset { input, output });
        Ok(list(inputs)?.into_iter().flat_map(pairs).collect())
    }
}

/// What offsets make of the time of one size.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "summary", rename = "offsets")]
pub(crate) struct OffsetSummary {
    operation: String,
    bytes: u64,
    datatype: String,
    reduction: String,
    in_place: bool,
    unregistered: bool,
    /// How many were measured.
    offsets: usize,
    /// Each with the median time of its fastest pass.
    #[serde(flatten)]
    fastest: Spread,
    /// Each with the median time of its median pass; absent where there was one pass.
    #[serde(skip_serializing_if = "Option::is_none")]
    median_pass: Option<Spread>,
}

/// Times over offsets.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
struct Spread {
    median_us: f64,
    slowest_us: f64,
    slowest_to_median: f64,
    slowest: Offset,
}

impl Spread {
    /// Of one time for each offset; `None` where there is none.
    fn of(mut times: Vec<(f64, Offset)>) -> Option<Self> {
        times.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (&(median_us, _), &(slowest_us, slowest)) = (times.get(times.len() / 2)?, times.last()?);
        let slowest_to_median = round(slowest_us / median_us.max(0.001), 3);
        Some(Self { median_us, slowest_us, slowest_to_median, slowest })
    }

    fn text(&self) -> String {
        let Offset { input, output } = self.slowest;
        let time = significant(self.slowest_us);
        format!("{input}+{output}, takes {time} us, {:.2} times the median", self.slowest_to_median)
    }
}

impl OffsetSummary {
    /// Of rows in the order in which they were measured: one for each that differs in more than offsets.
    pub(crate) fn of(rows: &[Row]) -> Vec<Self> {
        let key = |row: &Row| {
            let named = [&row.operation, &row.datatype, &row.reduction].map(String::clone);
            (named, row.bytes, row.in_place)
        };
        rows.chunk_by(|a, b| key(a) == key(b)).filter_map(Self::of_one).collect()
    }

    fn of_one(rows: &[Row]) -> Option<Self> {
        let mut passes: BTreeMap<Offset, Vec<f64>> = BTreeMap::new();
        for row in rows {
            passes.entry(row.offset?).or_default().push(row.time_us.p50);
        }
        passes.values_mut().for_each(|times| times.sort_by(f64::total_cmp));
        let each = |pass: fn(&[f64]) -> usize| {
            passes.iter().filter_map(|(offset, times)| Some((*times.get(pass(times))?, *offset))).collect()
        };
        let row = rows.first()?;
        Some(Self {
            operation: row.operation.clone(),
            bytes: row.bytes,
            datatype: row.datatype.clone(),
            reduction: row.reduction.clone(),
            in_place: row.in_place,
            unregistered: row.unregistered,
            offsets: passes.len(),
            fastest: Spread::of(each(|_| 0))?,
            median_pass: Spread::of(each(|times| times.len() / 2)).filter(|_| rows.len() > passes.len()),
        })
    }

    /// For the table.
    pub(crate) fn line(&self) -> String {
        let form = if self.in_place { "in place" } else { "out of place" };
        let Self { operation, bytes, datatype, offsets, .. } = self;
        let fastest = self.fastest.text();
        let by_median = self.median_pass.map_or_else(String::new, |spread| {
            format!("; by its median instead of its fastest pass {}", spread.text())
        });
        format!(
            "# {operation} {bytes} B {datatype} {form}: the slowest of {offsets} offsets, {fastest}{by_median}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: &str) -> Vec<u64> {
        match Offsets::parse(text) {
            Ok(Offsets::List(list)) => list,
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn offsets_are_lists_steps_or_all() {
        assert_eq!(list("16,4032,1"), [16, 4032, 1]);
        assert_eq!(list("step:1024"), [0, 1024, 2048, 3072]);
        assert_eq!(list("step:16").len(), 256);
        assert_eq!(Offsets::parse("all"), Ok(Offsets::All));
        for wrong in ["4096", "step:0", "step:4096", "step:", "-8", "8,", ""] {
            assert!(Offsets::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn offsets_are_those_of_whole_elements() {
        let of = |text: &str, bytes| Offsets::pairs(None, Some(&Offsets::parse(text)?), bytes);
        let all = of("all", 8).expect("those that are multiples of 8");
        assert!(all.iter().all(|offset| offset.input == 0 && offset.output % 8 == 0) && all.len() > 16);
        assert_eq!(of("all", 1).map(|all| all.len()), Ok(ALL.len()));
        assert!(of("8,12", 4).is_ok() && of("8,12", 8).is_err_and(|e| e.contains("12")));
    }

    #[test]
    fn every_input_goes_with_every_output() {
        let both = Offsets::List(vec![0, 4088]);
        let pairs = Offsets::pairs(Some(&both), Some(&both), 4).expect("multiples of 4");
        assert_eq!(
            pairs.iter().map(|o| (o.input, o.output)).collect::<Vec<_>>(),
            [(0, 0), (0, 4088), (4088, 0), (4088, 4088)]
        );
        assert_eq!(pairs[3].output_in_page(), 4080);
        assert_eq!(Offsets::pairs(Some(&both), None, 4).map(|o| o.len()), Ok(2));
        assert_eq!(Offsets::pairs(None, None, 4), Ok(Vec::new()));
    }
}
