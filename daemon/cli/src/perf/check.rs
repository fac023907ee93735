//! Exact checks of what an operation wrote.

use ringway_client::Arena;

use super::{
    call::{Buffers, Call},
    pattern::{Case, Sample},
    spec::Measured,
};

/// Runs the call once on known inputs; returns how many elements of this rank's buffers are wrong afterwards.
pub(crate) fn wrong_elements<T: Sample>(call: &Call<'_>, arena: &Arena) -> Result<u64, String> {
    let mut buffers = call.buffers::<T>(arena)?;
    fill(call, &mut buffers);
    call.run(&mut buffers)?;
    Ok(count_wrong(call, &buffers))
}

/// How many elements are wrong after the call was made on what [`fill`] puts there.
pub(crate) fn count_wrong<T: Sample>(call: &Call<'_>, buffers: &Buffers<T>) -> u64 {
    let rank = call.world.rank();
    let case = &call.case;
    let (input_at, output_at) = call.touched_apart();
    let expected = |index: u64| {
        if call.what == Measured::SendRecv {
            return Some(case.input::<T>(call.neighbours().1, index));
        }
        case.output::<T>(rank, index)
    };
    let mut wrong = 0;
    if let Some(output) = &buffers.output {
        for (index, value) in (0..output_at.1).zip(output.iter().skip(output_at.0 as usize)) {
            let untouched = || if call.in_place { before(case, rank, index) } else { T::of(SENTINEL) };
            wrong += u64::from(*value != expected(index).unwrap_or_else(untouched));
        }
    }
    if let Some(input) = &buffers.input {
        for (index, value) in (0..input_at.1).zip(input.iter()) {
            wrong += u64::from(*value != case.input::<T>(rank, index));
        }
    }
    wrong
}

/// What lies in an output that must not be written.
const SENTINEL: i64 = 77;

fn before<T: Sample>(case: &Case, rank: u32, index: u64) -> T {
    case.input(rank, index)
}

/// Writes known inputs, and into outputs what is none.
pub(crate) fn fill<T: Sample>(call: &Call<'_>, buffers: &mut Buffers<T>) {
    let rank = call.world.rank();
    let (first, length) = if call.in_place { call.places().0 } else { (0, u64::MAX) };
    if let Some(output) = &mut buffers.output {
        output.fill(T::of(SENTINEL));
    }
    let input = if call.in_place { &mut buffers.output } else { &mut buffers.input };
    for (index, value) in (0..length).zip(input.iter_mut().flat_map(|b| b.iter_mut().skip(first as usize))) {
        *value = call.case.input(rank, index);
    }
}
