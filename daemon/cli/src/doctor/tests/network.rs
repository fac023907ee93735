//! The network, the UDP port of RoCE and AF_XDP.

use super::*;

#[test]
fn the_network_is_told_as_a_daemon_would_use_it() {
    let host = Host::new();
    let paced = host.tried(|tried| tried.congestion = Some("bbr".to_owned()));
    expect(&paced, "congestion_control", Status::Warn, &["timers"], "tcp_allowed_congestion_control");
    host.write("proc/sys/net/ipv4/tcp_congestion_control", "bbr\n");
    expect(&host.facts(), "congestion_control", Status::Ok, &["bbr", "cubic"], "");
    host.write("proc/sys/net/core/rmem_max", "212992\n");
    expect(&host.facts(), "udp_buffers", Status::Ok, &["208 KiB", "CAP_NET_ADMIN"], "");
    host.write("proc/self/status", "Uid:\t1000\t1000\t1000\t1000\nCapEff:\t0\n");
    expect(&host.facts(), "udp_buffers", Status::Note, &["208 KiB"], "sudo sysctl -w net.core.rmem_max");
    expect(&host.facts(), "af_xdp", Status::Note, &["CAP_BPF"], "sudo setcap cap_net_raw");

    host.write("sys/class/net/lo/mtu", "65536\n");
    host.write("sys/class/net/lo/flags", "0x9\n");
    let trie = "Main:\n  |-- 10.0.0.0\n     /24 link UNICAST\n  |-- 10.0.0.1\n     /32 host LOCAL\n  |-- 127.0.0.1\n     /32 host LOCAL\n";
    host.write("proc/net/fib_trie", trie);
    let alone = host.tried(|tried| {
        tried.address = "127.0.0.1".parse().expect("an address");
        tried.interface = Ok("lo".to_owned());
    });
    expect(&alone, "network", Status::Note, &["no default route"], "ringway doctor --listen 10.0.0.1");
    let wrong =
        host.tried(|tried| tried.interface = Err("10.0.0.1 is not an address of this host".to_owned()));
    expect(&wrong, "network", Status::Warn, &["not an address"], "");
}

#[test]
fn whoever_has_the_port_of_roce_is_named() {
    let host = Host::new();
    expect(&host.facts(), "roce_port", Status::Ok, &["UDP port 4791 of 10.0.0.1 is free"], "");
    let head =
        "   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n";
    let rest = "00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 4711 2 0 0\n";
    let listen = |address: &str| host.write("proc/net/udp", &format!("{head}  478: {address}:12B7 {rest}"));
    // Another address of this host.
    listen(if cfg!(target_endian = "little") { "0200000A" } else { "0A000002" });
    expect(&host.facts(), "roce_port", Status::Ok, &["free"], "");
    listen("00000000");
    expect(&host.facts(), "roce_port", Status::Note, &["every address", "may not see"], "ss -lunp");
    host.write("proc/modules", "rdma_rxe 1 0 - Live 0x0\n");
    host.write("sys/class/infiniband/mlx5_0/parent", "ens1\n");
    expect(&host.facts(), "roce_port", Status::Note, &["rdma_rxe", "removes mlx5_0"], "rmmod rdma_rxe");
    host.link("proc/42/fd/7", "socket:[4711]");
    host.write("proc/42/comm", "ringwayd\n");
    expect(&host.facts(), "roce_port", Status::Ok, &["ringwayd (process 42), a daemon of ours"], "");
    // That daemon may be the one that is asked about.
    let taken = host.tried(|tried| {
        let address = tried.address;
        (tried.has_verbs, tried.roce_xdp) = (false, Err(LinkError::NoAfXdp { what: "x", errno: 97 }));
        tried.roce_udp = Err(LinkError::PortTaken { address, port: 4791, rxe: false });
    });
    expect(&taken, "auto", Status::Ok, &["roce-udp"], "");
    let attached = host.tried(|tried| {
        let interface = "ens1".to_owned();
        (tried.has_verbs, tried.roce_xdp) = (false, Err(LinkError::ProgramAttached { interface, id: None }));
    });
    expect(&attached, "auto", Status::Ok, &["roce-xdp"], "");
    expect(&attached, "af_xdp", Status::Ok, &["a daemon's program"], "");
    host.write("proc/42/comm", "other\n");
    expect(&host.facts(), "roce_port", Status::Note, &["other (process 42)"], "ringwayd --roce-port");
    host.remove("proc/net/udp");
    host.write("proc/net/udp6", &format!("{head}  1: {}:12B7 {rest}", "0".repeat(32)));
    expect(&host.facts(), "roce_port", Status::Note, &["other (process 42)"], "ringwayd --roce-port");
}

#[test]
fn what_hinders_af_xdp_is_said() {
    let host = Host::new();
    let with = |error: LinkError| host.tried(|tried| tried.roce_xdp = Err(error));
    let (interface, what) = ("ens1".to_owned(), "open an AF_XDP socket");
    let copies = LinkError::Copies { interface: interface.clone(), known: true };
    expect(&with(copies), "af_xdp", Status::Note, &["ens1 copies each frame"], "");
    let unknown = LinkError::Copies { interface: interface.clone(), known: false };
    expect(&with(unknown), "af_xdp", Status::Note, &["6.3"], "");
    let queues = LinkError::TooManyQueues { interface: interface.clone(), queues: 63, most: 32 };
    expect(&with(queues), "af_xdp", Status::Note, &["63 receive queues"], "ethtool -L ens1 combined");
    let attached = LinkError::ProgramAttached { interface, id: Some(3) };
    expect(&with(attached), "af_xdp", Status::Note, &["program already"], "ip link set dev ens1 xdp off");
    expect(
        &with(LinkError::NoAfXdp { what, errno: 97 }),
        "af_xdp",
        Status::Note,
        &["CONFIG_XDP_SOCKETS"],
        "",
    );
}
