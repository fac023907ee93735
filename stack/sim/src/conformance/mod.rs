//! The rules of the verbs contract as tests over any device.
//!
//! A device's crate implements [`Harness`] and writes `ringway_sim::conformance_suite!(MyHarness);` in a test file: the
//! macro makes one `#[test]` of every function of this module's parts. Each function panics when a rule is broken.
#![expect(
    clippy::expect_used,
    clippy::panic,
    clippy::missing_panics_doc,
    reason = "these functions are the bodies of tests"
)]

mod connecting;
mod draining;
mod errors;
mod fixture;
mod limits;
mod load;
mod messages;
mod order;
mod traffic;

use std::{sync::Arc, time::Duration};

pub use connecting::*;
pub use draining::*;
pub use errors::*;
pub use fixture::{Fixture, Memory, pattern, request};
pub use limits::*;
pub use load::*;
pub use messages::*;
pub use order::*;
use ringway_mem::Mapping;
use ringway_verbs::{Device, Endpoint, Time};
pub use traffic::Traffic;

/// Which of the two devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The one that connects actively.
    Left,
    /// The one that waits.
    Right,
}

impl Side {
    /// Both.
    pub const BOTH: [Self; 2] = [Self::Left, Self::Right];

    /// The other one.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::Left => Self::Right,
            Self::Right => Self::Left,
        }
    }
}

/// Two devices that can reach each other, and the time they live in.
pub trait Harness {
    /// The device under test.
    type Device: Device<Region = Arc<Mapping>>;

    /// Makes both devices.
    fn new() -> Self;

    /// Whether this process may make such devices at all. If not it says so, and nothing is tested.
    #[must_use]
    fn is_possible() -> bool {
        true
    }

    /// Memory to be registered.
    #[must_use]
    fn memory(length: usize) -> Mapping {
        Mapping::private(length).expect("memory")
    }

    /// One of them; only called for those not killed.
    fn device(&mut self, side: Side) -> &mut Self::Device;

    /// What the clock shows.
    fn now(&self) -> Time;

    /// Called between rounds of polls: does what the device's surroundings have to do (accept connections, let
    /// virtual time pass). `idle` says that the round completed nothing. Returns `false` when the test has run for
    /// too long.
    fn pause(&mut self, idle: bool) -> bool;

    /// This much time passes in which nobody polls.
    fn skip(&mut self, time: Duration);

    /// Ends one side as if its process had died.
    fn kill(&mut self, side: Side);

    /// An endpoint of the right kind behind which there is nobody.
    fn unreachable_endpoint(&mut self) -> Endpoint;
}

/// Makes one `#[test]` per rule for a [`conformance::Harness`](crate::conformance::Harness).
#[macro_export]
macro_rules! conformance_suite {
    ($harness:ty) => {
        $crate::conformance_suite!(@tests $harness;
            // Order and completion.
            completes_each_queue_in_post_order,
            bytes_are_in_place_before_the_completion,
            bytes_written_earlier_are_in_place_before_a_later_receive,
            a_signalled_completion_implies_all_earlier_ones,
            unsignalled_requests_are_silent,
            a_send_without_a_receive_waits,
            a_write_with_immediate_without_a_receive_waits,
            a_waiting_message_holds_back_only_its_own_queue_pair,
            both_sides_may_wait_for_receives_at_once,
            a_fenced_request_waits_for_earlier_reads,
            // Messages.
            send_delivers_length_and_immediate,
            send_may_be_shorter_than_the_receive,
            write_changes_only_its_range,
            write_with_immediate_delivers_length_and_immediate,
            read_fetches_remote_bytes,
            two_segments_are_gathered_and_scattered,
            zero_length_messages_work,
            every_length_around_the_interesting_ones_arrives,
            atomics_return_the_old_value_and_update,
            // Errors.
            a_send_longer_than_the_receive_fails_both_sides,
            a_remote_range_outside_the_region_is_refused,
            a_remote_key_nobody_has_is_refused,
            a_deregistered_remote_key_is_refused,
            remote_access_that_was_not_granted_is_refused,
            a_misaligned_atomic_is_refused,
            an_unsignalled_failure_completes,
            completions_before_a_failure_are_successes,
            failure_flushes_both_queues_in_order,
            requests_posted_after_failure_are_flushed,
            a_failed_queue_pair_leaves_the_others_alone,
            // Local checks and limits.
            local_memory_is_checked_when_posted,
            local_write_access_is_checked_when_posted,
            access_combinations_are_checked,
            a_full_send_queue_refuses_and_loses_nothing,
            a_full_receive_queue_refuses_and_loses_nothing,
            a_region_in_use_is_busy,
            unknown_names_are_refused,
            remote_keys_are_told_for_known_names_only,
            messages_longer_than_the_limit_are_refused,
            a_destroyed_queue_pair_says_nothing_more,
            // Connecting and losing connections.
            sends_before_init_ends_are_refused_and_while_connecting_wait,
            foreign_endpoints_are_refused,
            connecting_twice_is_refused,
            connecting_to_nobody_fails,
            time_to_connect_begins_when_it_is_asked_for,
            the_peers_death_is_noticed,
            the_peers_destroyed_queue_pair_is_noticed,
            failing_a_queue_pair_is_noticed_by_the_peer,
            a_queue_pair_can_be_made_again_after_a_failure,
            a_connection_within_one_device_works,
            // Draining.
            draining_is_offered_or_refused,
            a_drained_send_queue_ends_what_has_begun_and_begins_nothing,
            a_drained_queue_pair_receives,
            what_waits_in_a_drained_queue_pair_is_flushed,
            // Load.
            large_messages_in_both_directions,
            thousands_of_small_messages,
            both_directions_at_once_with_every_operation,
            many_queue_pairs,
        );
    };
    (@tests $harness:ty; $($name:ident),* $(,)?) => {
        $(
            #[test]
            fn $name() {
                if <$harness as $crate::conformance::Harness>::is_possible() {
                    $crate::conformance::$name::<$harness>();
                }
            }
        )*
    };
}
