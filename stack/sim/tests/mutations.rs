//! Rules broken on purpose: the checkers find every one of them. Run with `--features mutations`.
#![cfg(feature = "mutations")]
#![expect(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a helper of tests may panic, and says what it found"
)]

use ringway_rc::Mutation;
use ringway_sim::rc;

/// Worlds until a broken rule must have been found.
const SEEDS: u64 = 200;

fn is_found(mutation: Mutation) {
    let found = (0..SEEDS).find_map(|seed| rc::run_mutated(seed, mutation).err().map(|why| (seed, why)));
    let (seed, violation) = found.expect("the broken rule is found");
    println!("{mutation:?} is found by seed {seed}: {violation}");
}

#[test]
fn executing_duplicates_is_found() {
    is_found(Mutation::ExecuteDuplicates);
}

#[test]
fn ignoring_gaps_is_found() {
    is_found(Mutation::IgnoreGaps);
}

#[test]
fn repeating_atomics_is_found() {
    is_found(Mutation::RepeatAtomics);
}

#[test]
fn completing_without_a_response_is_found() {
    is_found(Mutation::CompleteWithoutResponse);
}

#[test]
fn beginning_while_drained_is_found() {
    is_found(Mutation::BeginWhileDrained);
}

#[test]
fn flushing_backwards_is_found() {
    is_found(Mutation::FlushBackwards);
}

#[test]
fn acknowledging_what_is_missing_is_found() {
    is_found(Mutation::AcknowledgeMissing);
}

#[test]
fn completing_what_is_only_kept_is_found() {
    is_found(Mutation::CompleteReceived);
}
