//! Full rings and full quotas.

use ringway_client::{Client, Error, Reduction};

use crate::harness::{Daemon, Rank, assert_mentions, eventually, form, tell_all, two_nodes};

fn nothing_is_lost(mut ranks: Vec<Rank>) {
    tell_all(&mut ranks, "many 300 50");
    for rank in &mut ranks {
        assert_eq!(rank.answer().as_deref(), Ok("300 exact"));
    }
    // A rank that comes late finds the others with full rings.
    let last = ranks.len() - 1;
    tell_all(&mut ranks[..last], "many 200 9");
    std::thread::sleep(std::time::Duration::from_millis(300));
    ranks[last].tell("many 200 9");
    for rank in &mut ranks {
        assert_eq!(rank.answer().as_deref(), Ok("200 exact"));
    }
}

#[test]
fn a_full_ring_loses_nothing_on_one_node() {
    let daemon = [Daemon::start("")];
    nothing_is_lost(form(&daemon, 3, "ring=4"));
}

#[test]
fn a_full_ring_loses_nothing_on_two_nodes() {
    let nodes = two_nodes("");
    nothing_is_lost(form(&nodes, 2, "ring=4"));
}

#[test]
fn a_group_beyond_the_ring_is_refused_whole() {
    let daemon = Daemon::start("");
    let client = daemon.client();
    let id = client.unique_id(false).expect("an id");
    let world = client.communicator(&id, 0, 1).ring_size(4).join().expect("joined");
    let arena = client.arena(1 << 16).expect("memory");
    let group = world.group(|g| {
        let sums = (0..5).map(|_| Ok(g.allreduce_in_place(arena.buffer::<f32>(4)?, Reduction::Sum)?));
        sums.collect::<Result<Vec<_>, Error>>().map(drop)
    });
    assert_mentions(&group.expect_err("too large").to_string(), &["may have 4", "nothing of it was sent"]);
    assert_eq!(world.group_max(), 4);
    world.blocking().barrier().expect("nothing is stuck");
}

#[test]
fn memory_beyond_the_quota_is_refused_with_the_limit() {
    let daemon = Daemon::start("[quotas]\nregion_mib = 2");
    let client = daemon.client();
    let first = client.arena(1 << 20).expect("within the limit");
    let error = client.arena(3 << 19).expect_err("beyond it").to_string();
    assert_mentions(&error, &["1572864 bytes", "1048576 bytes", "2097152", "quotas.region_mib"]);
    for immense in [1 << 40, usize::MAX] {
        let error = client.arena(immense).expect_err("more than any machine has").to_string();
        assert_mentions(&error, &[&immense.to_string(), "2097152", "quotas.region_mib"]);
    }
    drop(first);
    client.arena(2 << 20).expect("what was released can be had again");
}

#[test]
fn what_a_process_that_is_gone_held_can_be_had_again() {
    let daemon = Daemon::start("[quotas]\nregion_mib = 100");
    for _ in 0..3 {
        let mut ranks = form(std::slice::from_ref(&daemon), 1, "");
        // 64 MiB.
        ranks[0].must("call allreduce f32 sum 8 0");
        ranks[0].kill();
        eventually("the session's end", || {
            daemon.status()["sessions"].as_array().is_some_and(|s| s.len() == 1)
        });
    }
}

#[test]
fn counts_beyond_the_quota_are_refused_with_the_limit() {
    let daemon = Daemon::start("[quotas]\nregions = 2\ncommunicators = 1");
    let client = daemon.client();
    let _arenas = [client.arena(1).expect("one"), client.arena(1).expect("two")];
    assert_mentions(&client.arena(1).expect_err("three").to_string(), &["limit 2", "quotas.regions"]);
    let id = client.unique_id(false).expect("an id");
    let _world = client.communicator(&id, 0, 1).join().expect("one");
    let id = client.unique_id(false).expect("an id");
    let error = client.communicator(&id, 0, 1).join().expect_err("two").to_string();
    assert_mentions(&error, &["limit 1", "quotas.communicators"]);
}

#[test]
fn sessions_beyond_the_quota_are_refused() {
    let daemon = Daemon::start("[quotas]\nsessions = 3");
    let mut clients: Vec<Client> = Vec::new();
    // The daemon may not have seen yet that those who tried whether it serves are gone.
    eventually("three sessions", || {
        clients.extend(Client::builder().socket(&daemon.socket).connect());
        clients.len() == 3
    });
    let error = Client::builder().socket(&daemon.socket).connect().expect_err("a fourth").to_string();
    assert_mentions(
        &error,
        &["does not serve this process", "as many connections as it may", "quotas.sessions"],
    );
    drop(clients);
    eventually("room again", || Client::builder().socket(&daemon.socket).connect().is_ok());
}

#[test]
fn a_ring_beyond_the_limit_is_refused_with_the_limit() {
    let daemon = Daemon::start("ring_submissions_max = 64");
    let client = daemon.client();
    let id = client.unique_id(false).expect("an id");
    let error = client.communicator(&id, 0, 1).ring_size(65).join().expect_err("128").to_string();
    assert_mentions(&error, &["power of two", "64", "128"]);
}
