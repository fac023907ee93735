//! How a piece is done, by whoever does it.

use ringway_mem::{Window, recycle};
use ringway_reduce::{Scalar, ScanStep, Source};

use super::{
    OPERANDS_MAX,
    piece::{Kind, Operand},
};

/// Does pieces. Keeps the lists it needs, since the data path does not allocate.
#[derive(Debug)]
pub struct Executor {
    // Empty between calls.
    sources: Vec<Source<'static>>,
    steps: Vec<ScanStep<'static>>,
}

impl Default for Executor {
    fn default() -> Self {
        Self { sources: Vec::with_capacity(OPERANDS_MAX), steps: Vec::with_capacity(OPERANDS_MAX) }
    }
}

impl Executor {
    /// Does a piece; `windows` are where its operands are. `false` when it makes no sense: then nothing was written.
    pub fn run(&mut self, kind: Kind, operands: &[Operand], windows: &[Window<'_>]) -> bool {
        self.try_run(kind, operands, windows).is_some()
    }

    fn try_run(&mut self, kind: Kind, operands: &[Operand], windows: &[Window<'_>]) -> Option<()> {
        match kind {
            Kind::Reduce { datatype, reduction, sources, divisor } => {
                let (from, to) = windows.split_at_checked(sources as usize)?;
                let mut list: Vec<Source<'_>> = core::mem::take(&mut self.sources);
                list.extend(operands.iter().zip(from).map(|(operand, window)| source(operand, *window)));
                let done = ringway_reduce::reduce(datatype, reduction, &list, to, divisor);
                self.sources = recycle(list);
                done.ok()
            }
            Kind::Scan { datatype, reduction, carry, before, inclusive } => {
                let skipped = usize::from(carry);
                let carry = windows.first().filter(|_| carry).copied();
                let operands = operands.get(skipped..)?.chunks_exact(2);
                let pairs = operands.zip(windows.get(skipped..)?.chunks_exact(2));
                let mut list: Vec<ScanStep<'_>> = core::mem::take(&mut self.steps);
                list.extend(pairs.filter_map(|(operands, windows)| {
                    let input = source(operands.first()?, *windows.first()?);
                    Some(ScanStep { input, output: windows.get(1).copied() })
                }));
                let done = ringway_reduce::scan(datatype, reduction, carry, &list, inclusive, before, None);
                self.steps = recycle(list);
                done.ok()
            }
            Kind::Copy => {
                let (from, to) = windows.split_first()?;
                ringway_reduce::copy(*from, to).ok()
            }
            Kind::Swap => match windows {
                [a, b] => ringway_reduce::swap(*a, *b).ok(),
                _ => None,
            },
        }
    }
}

fn source<'a>(operand: &Operand, window: Window<'a>) -> Source<'a> {
    Source { window, scale: operand.scale.map(|scale| Scalar::from_bytes(scale.to_le_bytes())) }
}
