//! Rings in mapped memory, with both sides as threads.
#![cfg(all(feature = "shared", not(loom)))]
#![expect(clippy::expect_used, reason = "helpers of tests may panic")]

use std::{os::fd::AsFd, sync::Arc, thread, time::Duration};

use ringway_mem::{
    Mapping, MemFd, Protection,
    admit::{map_client_written, map_daemon_written},
};
use ringway_ring::{AttachError, ClientRings, DaemonRings, Geometry, PushError, Slept};

/// Both sides of rings in sealed files as the daemon makes them; the client maps what the daemon writes read-only.
fn pair(geometry: Geometry) -> (ClientRings, DaemonRings) {
    let (c, d) = (geometry.client_bytes(), geometry.daemon_bytes());
    let (c_file, c_ours) = MemFd::client_written("c", c as u64).expect("create");
    let (d_file, d_ours) = MemFd::daemon_written("d", d as u64).expect("create");
    let c_theirs = Arc::new(map_client_written(c_file.as_fd(), c).expect("map"));
    let d_theirs = Arc::new(map_daemon_written(d_file.as_fd(), d).expect("map"));
    assert_eq!((c_ours.protection(), d_theirs.protection()), (Protection::Read, Protection::Read));
    let client = ClientRings::attach(&c_theirs, &d_theirs, geometry).expect("attach");
    let daemon = DaemonRings::attach(&Arc::new(c_ours), &Arc::new(d_ours), geometry).expect("attach");
    (client, daemon)
}

#[test]
fn each_side_must_be_able_to_write_its_file() {
    let geometry = Geometry::new(1, 1, 0).expect("geometry");
    let (file, writable) = MemFd::daemon_written("d", 4096).expect("create");
    let read_only = Arc::new(map_daemon_written(file.as_fd(), 4096).expect("map"));
    let writable = Arc::new(writable);
    assert_eq!(ClientRings::attach(&read_only, &writable, geometry).expect_err("c"), AttachError::ReadOnly);
    assert_eq!(DaemonRings::attach(&writable, &read_only, geometry).expect_err("d"), AttachError::ReadOnly);
}

#[test]
fn short_mappings_are_refused() {
    let geometry = Geometry::new(64, 128, 4096).expect("geometry");
    let page = Arc::new(Mapping::private(4096).expect("map"));
    assert!(matches!(ClientRings::attach(&page, &page, geometry), Err(AttachError::TooShort { .. })));
    assert!(matches!(DaemonRings::attach(&page, &page, geometry), Err(AttachError::TooShort { .. })));
}

#[test]
fn every_submission_is_answered_while_both_sides_sleep() {
    const ROUNDS: u64 = 2000;
    let (mut client, mut daemon) = pair(Geometry::new(8, 8, 0).expect("geometry"));
    let server = thread::spawn(move || {
        let mut answered = 0;
        while answered < ROUNDS {
            match daemon.submissions.pop().expect("an honest client") {
                Some(entry) => {
                    daemon.submissions.release();
                    let answer = [entry[0], entry[6], answered, entry[7]];
                    daemon.completions.send(&answer).expect("room");
                    daemon.wake();
                    answered += 1;
                }
                None => thread::yield_now(),
            }
        }
    });
    for round in 0..ROUNDS {
        client.submissions.send(&[round, 0, 0, 0, 0, 0, !round, (round << 32) | 7]).expect("room");
        let answer = loop {
            match client.completions.pop().expect("an honest daemon") {
                Some(answer) => break answer,
                // Were a wake-up lost, this would take the whole time and fail.
                None => assert_eq!(client.sleep(Some(Duration::from_secs(60))), Slept::Woken),
            }
        };
        client.completions.release();
        assert_eq!(answer, [round, !round, round, round << 32]);
    }
    server.join().expect("server");
}

#[test]
fn a_sleep_without_news_times_out() {
    let (mut client, _daemon) = pair(Geometry::new(1, 1, 0).expect("geometry"));
    let mut slept = Slept::Woken;
    for _ in 0..100 {
        slept = client.sleep(Some(Duration::from_millis(5)));
        if slept == Slept::TimedOut {
            break;
        }
    }
    assert_eq!(slept, Slept::TimedOut);
}

#[test]
fn the_slab_is_bounded_and_carries_words() {
    let (mut client, daemon) = pair(Geometry::new(2, 2, 16).expect("geometry"));
    assert_eq!(client.write_slab(14, &[1, 2]), Some(()));
    assert_eq!(client.write_slab(14, &[1, 2, 3]), None);
    assert_eq!(client.write_slab(u32::MAX, &[1]), None);
    assert_eq!(client.write_slab(16, &[]), Some(()));
    let mut back = [0; 2];
    assert_eq!(daemon.read_slab(14, &mut back), Some(()));
    assert_eq!(back, [1, 2]);
    assert_eq!(daemon.read_slab(15, &mut back), None);
}

#[test]
fn the_daemon_says_when_it_needs_a_wake_up() {
    let (mut client, mut daemon) = pair(Geometry::new(2, 2, 0).expect("geometry"));
    assert!(!client.need_wakeup());
    daemon.set_need_wakeup(true);
    assert!(!daemon.is_ready());
    client.submissions.send(&[0; 8]).expect("room");
    assert!(client.need_wakeup());
    assert!(daemon.is_ready());
    daemon.set_need_wakeup(false);
    assert!(!client.need_wakeup());
    assert!(!daemon.wake(), "nobody sleeps");
}

#[test]
fn each_side_says_on_which_cpu_it_is() {
    let (client, mut daemon) = pair(Geometry::new(4, 4, 0).expect("geometry"));
    assert_eq!((daemon.client_cpu(), client.daemon_cpu()), (None, None), "not before it was said");
    for cpu in [0, 3, 1 << 20] {
        client.say_cpu(cpu);
        daemon.say_cpu(Some(cpu ^ 1));
        assert_eq!((daemon.client_cpu(), client.daemon_cpu()), (Some(cpu), Some(cpu ^ 1)));
    }
    daemon.say_cpu(None);
    assert_eq!(client.daemon_cpu(), None, "it sleeps");
    // They stand beside a count and a flag, which they leave alone.
    assert_eq!(daemon.completions.unread(), Ok(0));
    assert!(!client.need_wakeup());
}

#[test]
fn reserved_completion_slots_are_not_given_twice() {
    let (mut client, mut daemon) = pair(Geometry::new(4, 2, 0).expect("geometry"));
    assert_eq!(daemon.completions_free_beyond(0), Ok(2));
    assert_eq!(daemon.completions_free_beyond(2), Ok(0));
    daemon.completions.push(&[1; 4]).expect("room");
    daemon.completions.push(&[2; 4]).expect("room");
    assert_eq!(daemon.completions.push(&[3; 4]), Err(PushError::Full));
    daemon.completions.publish();
    let mut batch = [[0; 4]; 8];
    assert_eq!(client.completions.pop_batch(&mut batch), Ok(2));
    assert_eq!(daemon.completions_free_beyond(1), Ok(0));
    client.completions.release();
    assert_eq!(daemon.completions_free_beyond(1), Ok(1));
}
