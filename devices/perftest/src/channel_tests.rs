use std::thread;

use super::*;
use crate::keys::tests::{RECORDED, recorded};

/// What `ib_write_bw` 6.06 (perftest 4.5) says on rxe, turn by turn.
const TURNS: [&[u8]; 5] = [b"6.06\0\0\0\0\0\0\0\0\0\0\0\0", b"\0\0\x10\0", b"\0\0\0\x40", b"5\0", RECORDED];

const MINE: Agreement = Agreement { cycle_bytes: 4096, line_bytes: 64, mtu: PathMtu::Mtu1024 };

/// A channel whose other end says this, in turn, however it comes; what it heard is returned.
fn against(side: Side, turns: &[&[u8]], test: impl FnOnce(&mut Channel)) -> Vec<Vec<u8>> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let own = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut other, _) = listener.accept().unwrap();
    thread::scope(|scope| {
        let peer = scope.spawn(move || {
            let mut heard = Vec::new();
            for turn in turns {
                let mut bytes = vec![0; turn.len()];
                let (first, rest) = turn.split_at(turn.len() / 2);
                let mut speak = || other.write_all(first).and_then(|()| other.write_all(rest));
                let spoken = if side == Side::Server { speak() } else { Ok(()) };
                if spoken.is_err() || other.read_exact(&mut bytes).is_err() {
                    return heard;
                }
                heard.push(bytes);
                if side == Side::Client && other.write_all(turn).is_err() {
                    return heard;
                }
            }
            heard
        });
        let mut channel = Channel::over(own, side).unwrap();
        test(&mut channel);
        drop(channel);
        peer.join().unwrap()
    })
}

#[test]
fn a_recorded_perftest_is_understood_from_both_sides() {
    for side in [Side::Client, Side::Server] {
        let heard = against(side, &TURNS, |channel| {
            // The smaller path MTU, and the larger of the others.
            let mine = Agreement { line_bytes: 32, ..MINE };
            assert_eq!(channel.agree(mine).unwrap(), MINE);
            assert_eq!(channel.keys(&recorded(), false, &mut || {}).unwrap(), recorded());
        });
        let expected: [&[u8]; 5] = [TURNS[0], TURNS[1], b"\0\0\0\x20", b"3\0", RECORDED];
        assert_eq!(heard, expected);
    }
}

/// It would be waited for without an end, as its connection stands for as long as nobody sends.
#[test]
fn a_host_that_vanishes_is_missed() {
    use rustix::net::sockopt::{socket_keepalive, tcp_keepcnt, tcp_keepidle, tcp_keepintvl};
    against(Side::Server, &[], |channel| {
        let stream = &channel.stream;
        assert!(socket_keepalive(stream).unwrap());
        let silence = [tcp_keepidle(stream).unwrap(), tcp_keepintvl(stream).unwrap()];
        assert_eq!((silence, tcp_keepcnt(stream).unwrap()), ([SILENCE; 2], QUESTIONS));
    });
}

#[test]
fn strangers_are_told_what_is_wrong() {
    let refused = |turns: &[&[u8]]| {
        let mut message = String::new();
        against(Side::Client, turns, |channel| message = channel.agree(MINE).unwrap_err().to_string());
        message
    };
    for (version, shown) in [
        (b"5.61\0\0\0\0\0\0\0\0\0\0\0\0", "5.61"),
        (b"infinity\0\0\0\0\0\0\0\0", "infinity"),
        (b"GET / HTTP/1.1\r\n", "GET / HTTP"),
        (b"\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", "version"),
    ] {
        let message = refused(&[version]);
        assert!(message.contains(shown) && message.contains("5.70"), "{message}");
    }
    assert!(refused(&[TURNS[0], b"\0\0\0\0"]).contains("page size"));
    assert!(refused(&[TURNS[0], b"\xff\xff\xff\xff"]).contains("page size"));
    assert!(refused(&[TURNS[0], TURNS[1], b"\x7f\0\0\0"]).contains("cache line"));
    assert!(refused(&[TURNS[0], TURNS[1], TURNS[2], b"x\0"]).contains("path MTU"));
    assert!(refused(&[TURNS[0]]).contains("hung up"));
}

#[test]
fn outcomes_cross() {
    let theirs = Outcome {
        bytes: 65_536,
        iterations: 5000,
        peak_mib_s: 11_000.25,
        average_mib_s: 10_999.5,
        messages_m_s: 0.176,
    };
    let words = [
        theirs.bytes,
        theirs.iterations,
        theirs.peak_mib_s.to_bits(),
        theirs.average_mib_s.to_bits(),
        theirs.messages_m_s.to_bits(),
    ]
    .map(u64::to_be_bytes);
    let turns: Vec<&[u8]> = words.iter().map(<[u8; 8]>::as_slice).collect();
    let heard = against(Side::Server, &turns, |channel| {
        assert_eq!(channel.outcome(&Outcome::default(), &mut || {}).unwrap(), theirs);
    });
    assert_eq!(heard, vec![vec![0; 8]; 5]);
}

#[test]
fn who_hangs_up_is_missed() {
    against(Side::Client, &[], |channel| {
        let start = Instant::now();
        while !channel.hung_up() {
            assert!(start.elapsed() < Duration::from_secs(20));
        }
        channel.done(Duration::from_secs(20), &mut || {});
    });
}

#[test]
fn peers_are_waited_for_over_ipv4_and_ipv6() {
    for address in [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)] {
        let free = TcpListener::bind((address, 0)).unwrap().local_addr().unwrap().port();
        thread::scope(|scope| {
            let server = scope.spawn(move || accept(free).unwrap());
            let client = connect(&address.to_string(), free).unwrap();
            assert_eq!(client.local_address().unwrap(), address);
            assert_eq!(server.join().unwrap().local_address().unwrap(), address);
        });
    }
}
