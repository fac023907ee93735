use std::{
    fs,
    os::unix::fs::symlink,
    path::PathBuf,
    sync::atomic::{AtomicU32, Ordering},
};

use ringway_roce::LinkError;
use ringway_tcp::TcpError;

use super::*;

/// Files as the kernel would show them, gone when the test ends.
struct Host(PathBuf);

impl Host {
    /// With nothing wrong: a server with two RoCE cards and a GPU, of which each test spoils something.
    fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let root = std::env::temp_dir().join(format!("ringway-doctor-{}-{number}", std::process::id()));
        let host = Self(root);
        HEALTHY.iter().for_each(|(path, text)| host.write(path, text));
        for (index, net) in ["ens1", "ens2"].iter().enumerate() {
            host.card(index, net);
        }
        host
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        fs::write(path, text).expect("written");
    }

    fn remove(&self, path: &str) {
        let path = self.0.join(path);
        let _ = fs::remove_dir_all(&path).or_else(|_| fs::remove_file(&path));
    }

    fn link(&self, path: &str, target: &str) {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        symlink(target, path).expect("linked");
    }

    /// A card with a port, as mlx5 has it.
    fn card(&self, index: usize, net: &str) {
        let write = |path: String, text: &str| self.write(&path, text);
        write(format!("sys/class/net/{net}/mtu"), "9000\n");
        write(format!("sys/class/net/{net}/flags"), "0x1003\n");
        write(format!("sys/class/net/{net}/device/infiniband/mlx5_{index}/x"), "");
        self.link(&format!("sys/class/net/{net}/device/driver"), "../../bus/pci/drivers/mlx5_core");
        let device = format!("sys/class/infiniband/mlx5_{index}");
        write(format!("{device}/node_type"), "1: CA\n");
        for (name, text) in [
            ("state", "4: ACTIVE\n"),
            ("phys_state", "5: LinkUp\n"),
            ("link_layer", "Ethernet\n"),
            ("rate", "400 Gb/sec (4X NDR)\n"),
            ("lid", "0x0\n"),
            ("gids/3", &format!("0000:0000:0000:0000:0000:ffff:0a00:000{}\n", index + 1)),
            ("gid_attrs/types/3", "RoCE v2\n"),
            ("gid_attrs/ndevs/3", net),
        ] {
            write(format!("{device}/ports/1/{name}"), text);
        }
        write(format!("sys/class/infiniband_verbs/uverbs{index}/ibdev"), &format!("mlx5_{index}\n"));
        write(format!("dev/infiniband/uverbs{index}"), "");
    }

    fn facts(&self) -> Facts {
        self.tried(|_| {})
    }

    fn tried(&self, spoil: impl FnOnce(&mut Tried)) -> Facts {
        let mut tried = Tried {
            address: "10.0.0.1".parse().expect("an address"),
            interface: Ok("ens1".to_owned()),
            memory: Ok(()),
            shm: Ok(()),
            sockets: Ok(()),
            io_uring: Ok(()),
            congestion: Some("cubic".to_owned()),
            roce_xdp: Ok(()),
            roce_udp: Ok(4096),
            has_verbs: true,
            rdma_packets: Vec::new(),
        };
        spoil(&mut tried);
        Facts::gather(&self.0, tried)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const HEALTHY: &[(&str, &str)] = &[
    ("proc/sys/kernel/osrelease", "6.12.1-amd64\n"),
    ("proc/sys/kernel/io_uring_disabled", "0\n"),
    (
        "proc/self/status",
        "Name:\tx\nUid:\t0\t0\t0\t0\nCapEff:\t000001ffffffffff\nCpus_allowed_list:\t0-3,8-11\n",
    ),
    ("proc/self/limits", "Max locked memory         unlimited            unlimited            bytes     \n"),
    ("proc/self/uid_map", "         0          0 4294967295\n"),
    ("proc/sys/user/max_user_namespaces", "1000\n"),
    ("proc/sys/vm/nr_hugepages", "0\n"),
    ("proc/sys/net/ipv4/tcp_congestion_control", "cubic\n"),
    ("proc/sys/net/core/rmem_max", "16777216\n"),
    ("proc/sys/net/core/wmem_max", "16777216\n"),
    ("proc/modules", "mlx5_ib 1 0 - Live 0x0\nnvidia_peermem 1 0 - Live 0x0\n"),
    (
        "proc/driver/nvidia/version",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\nGCC version: 12\n",
    ),
    ("sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de\n"),
    ("sys/bus/pci/devices/0000:01:00.0/class", "0x030200\n"),
    ("sys/kernel/mm/transparent_hugepage/shmem_enabled", "always within_size [advise] never deny force\n"),
    ("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n"),
    ("sys/devices/system/cpu/online", "0-3,8-11\n"),
    ("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance\n"),
    ("sys/devices/system/cpu/cpu0/cpufreq/scaling_driver", "intel_pstate\n"),
    ("sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc\n"),
    ("sys/devices/system/clocksource/clocksource0/available_clocksource", "tsc hpet acpi_pm \n"),
    ("etc/os-release", "ID=ubuntu\nID_LIKE=debian\nNAME=\"x\"\n"),
    ("etc/ld.so.cache", "glibc-ld.so.cache1.1\0\x01\x02libibverbs.so.1\0/opt/rdma/lib/libibverbs.so.1\0"),
    ("opt/rdma/lib/libibverbs.so.1", ""),
    ("opt/rdma/lib/libibverbs/libmlx5-rdmav34.so", ""),
];

fn find(facts: &Facts, check: &str) -> Finding {
    let all = findings(facts);
    all.into_iter().find(|finding| finding.check == check).unwrap_or_else(|| panic!("no {check}"))
}

/// The check has this status, what it says has these words, and a command has the last one.
#[track_caller]
fn expect(facts: &Facts, check: &str, status: Status, words: &[&str], command: &str) {
    let finding = find(facts, check);
    let said = format!("{} {}", finding.found, finding.why.as_deref().unwrap_or_default());
    assert_eq!(finding.status, status, "{finding:?}");
    assert!(words.iter().all(|word| said.contains(word)), "{finding:?}");
    assert!(command.is_empty() == finding.mend.is_empty(), "{finding:?}");
    assert!(command.is_empty() || finding.mend.iter().any(|mend| mend.contains(command)), "{finding:?}");
}

#[test]
fn a_healthy_host_has_nothing_to_mend_and_takes_verbs() {
    let host = Host::new();
    let all = findings(&host.facts());
    for finding in &all {
        assert_eq!((finding.status, finding.mend.len()), (Status::Ok, 0), "{finding:?}");
    }
    expect(&host.facts(), "auto", Status::Ok, &["verbs"], "");
    expect(
        &host.facts(),
        "rdma_ports",
        Status::Ok,
        &["mlx5_0:1 ACTIVE, RoCE on ens1, 400 Gb/sec", "mlx5_1:1"],
        "",
    );
    expect(&host.facts(), "rdma_gids", Status::Ok, &["mlx5_1:1 has 10.0.0.2 at index 3"], "");
    expect(&host.facts(), "verbs", Status::Ok, &["/opt/rdma/lib/libibverbs.so.1, 1 drivers"], "");
    expect(&host.facts(), "cpus", Status::Ok, &["8 CPUs", "performance"], "");
    expect(&host.facts(), "gpu_direct", Status::Ok, &["1 NVIDIA GPU,", "570.86.15 (open)", "dma-buf"], "");
    assert!(show::table(&all, false).lines().count() < 45);
}

#[test]
fn names_are_distinct_and_documented() {
    let host = Host::new();
    let mut names: Vec<&str> = findings(&host.facts()).iter().map(|finding| finding.check).collect();
    for name in &names {
        assert!(AFTER_HELP.contains(&format!(" {name}")), "{name}");
    }
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);
}

/// Nothing but what a container shows that has neither devices nor most of `/proc` and `/sys`.
#[test]
fn where_nothing_can_be_read_nothing_is_claimed() {
    let host = Host::new();
    host.remove("");
    let facts = host.facts();
    for check in ["rdma_ports", "rdma_transport", "rdma_access", "rdma_gids", "rdma_mtu", "gpu_direct"] {
        assert_eq!(find(&facts, check).status, Status::Absent, "{check}");
    }
    assert!(findings(&facts).iter().all(|finding| finding.status != Status::Fail));
    assert_eq!(facts.version(), (0, 0));
}

#[test]
fn ports_that_are_down_are_woken() {
    let host = Host::new();
    host.write("sys/class/infiniband/mlx5_1/ports/1/state", "1: DOWN\n");
    expect(&host.facts(), "rdma_ports", Status::Note, &["nothing goes through mlx5_1:1", "the cable"], "");
    host.write("sys/class/net/ens2/flags", "0x1002\n");
    expect(&host.facts(), "rdma_ports", Status::Note, &["mlx5_1:1 DOWN"], "ip link set dev ens2 up");
    host.write("sys/class/infiniband/mlx5_0/ports/1/state", "1: DOWN\n");
    expect(&host.facts(), "rdma_ports", Status::Warn, &["mlx5_0:1, mlx5_1:1"], "ip link set dev ens2 up");
    expect(&host.facts(), "auto", Status::Ok, &["roce-xdp", "not verbs", "`mlx5_0` is down"], "");
    // InfiniBand waits for its manager.
    host.write("sys/class/infiniband/mlx5_0/ports/1/link_layer", "InfiniBand\n");
    host.write("sys/class/infiniband/mlx5_0/ports/1/state", "2: INIT\n");
    expect(&host.facts(), "rdma_ports", Status::Warn, &["subnet"], "systemctl start opensm");
}

#[test]
fn a_card_without_its_rdma_module_is_seen() {
    let host = Host::new();
    host.remove("sys/class/infiniband");
    expect(&host.facts(), "rdma_ports", Status::Absent, &["no RDMA device"], "");
    host.write("proc/modules", "");
    expect(&host.facts(), "rdma_ports", Status::Warn, &["ens1", "mlx5_ib"], "modprobe mlx5_ib");
}

#[test]
fn files_of_devices_must_be_there() {
    let host = Host::new();
    host.remove("dev/infiniband/uverbs1");
    expect(&host.facts(), "rdma_access", Status::Warn, &["uverbs1", "container"], "--device /dev/infiniband");
    host.remove("sys/class/infiniband_verbs");
    expect(&host.facts(), "rdma_access", Status::Warn, &["mlx5_0"], "modprobe ib_uverbs");
    expect(&host.facts(), "auto", Status::Ok, &["mlx5_0 may not be used"], "");
    let refused = facts::Access::Refused;
    let node =
        facts::Node { device: "mlx5_0".into(), file: "/dev/infiniband/uverbs0".into(), access: refused };
    let mut facts = host.facts();
    facts.nodes = vec![node.clone(), facts::Node { device: "mlx5_1".into(), ..node }];
    expect(&facts, "rdma_access", Status::Warn, &["may not use"], "chmod a+rw /dev/infiniband/uverbs0");
}

#[test]
fn interfaces_of_rdma_need_an_address_of_ip() {
    let host = Host::new();
    let gid = "sys/class/infiniband/mlx5_1/ports/1/gids/3";
    host.write(gid, "fe80:0000:0000:0000:0000:0000:0000:0001\n");
    expect(
        &host.facts(),
        "rdma_gids",
        Status::Warn,
        &["link-local", "mlx5_0:1 has 10"],
        "ip addr add ADDRESS/24 dev ens2",
    );
    host.write(gid, "2001:0db8:0000:0000:0000:0000:0000:0001\n");
    expect(&host.facts(), "rdma_gids", Status::Ok, &["2001:db8::1"], "");
    host.write("sys/class/infiniband/mlx5_1/ports/1/gid_attrs/types/3", "IB/RoCE v1\n");
    expect(&host.facts(), "rdma_gids", Status::Warn, &["no address of RoCE v2"], "dev ens2");
    host.remove(gid);
    expect(&host.facts(), "rdma_gids", Status::Warn, &["mlx5_1:1 has no address"], "dev ens2");
}

#[test]
fn packets_of_rdma_are_large_and_alike() {
    let host = Host::new();
    host.write("sys/class/net/ens2/mtu", "1500\n");
    expect(
        &host.facts(),
        "rdma_mtu",
        Status::Warn,
        &["ens2: MTU 1500", "1024", "do not fit"],
        "ip link set dev ens2 mtu 9000",
    );
    assert_eq!(find(&host.facts(), "rdma_mtu").mend.len(), 1);
    host.write("sys/class/net/ens1/mtu", "1500\n");
    expect(&host.facts(), "rdma_mtu", Status::Warn, &["could carry 4096"], "ip link set dev ens1 mtu 9000");
    let tried = host.tried(|tried| tried.roce_udp = Ok(1024));
    expect(
        &tried,
        "network",
        Status::Note,
        &["MTU 1500", "1024", "passes it over"],
        "ip link set dev ens1 mtu 9000",
    );
    // In a container the devices are there and their interfaces are not.
    host.remove("sys/class/net");
    expect(&host.facts(), "rdma_mtu", Status::Note, &["namespace"], "");
    expect(&host.facts(), "auto", Status::Ok, &["roce-xdp", "mlx5_0 is in another network namespace"], "");
}

/// What the port itself says goes before what its interface's MTU allows.
#[test]
fn ports_that_have_not_followed_their_interfaces_are_seen() {
    let host = Host::new();
    let with = |bytes| host.tried(|tried| tried.rdma_packets = vec![("mlx5_1".to_owned(), 1, bytes)]);
    expect(&with(4096), "rdma_mtu", Status::Ok, &["ens2: MTU 9000, packets carry 4096"], "");
    expect(
        &with(1024),
        "rdma_mtu",
        Status::Warn,
        &["ens2: MTU 9000, packets carry 1024", "mlx5_1:1 has not followed", "4096"],
        "ip link set dev ens2 up",
    );
    // Drivers leave room for longer headers than there are.
    host.write("sys/class/net/ens2/mtu", "4200\n");
    expect(
        &with(2048),
        "rdma_mtu",
        Status::Warn,
        &["do not fit each other"],
        "ip link set dev ens2 mtu 9000",
    );
    host.write("sys/class/net/ens2/mtu", "1500\n");
    expect(
        &with(4096),
        "rdma_mtu",
        Status::Warn,
        &["mlx5_1:1 do not pass", "1024"],
        "ip link set dev ens2 down",
    );
}

#[test]
fn what_speaks_iwarp_is_said_not_to_be_supported() {
    let host = Host::new();
    expect(&host.facts(), "rdma_transport", Status::Ok, &["mlx5_0:1 speaks RoCE; mlx5_1:1 speaks RoCE"], "");
    host.write("sys/class/infiniband/mlx5_1/node_type", "4: RNIC\n");
    let said =
        ["mlx5_1:1 speaks iWARP", "InfiniBand and RoCE v2 are supported", "iWARP is not", "rdma_cm", "tcp"];
    expect(&host.facts(), "rdma_transport", Status::Note, &said, "");
    expect(&host.facts(), "auto", Status::Ok, &["verbs"], "");
    // Such cards can be told what to speak.
    host.remove("sys/class/net/ens2/device/driver");
    host.link("sys/class/net/ens2/device/driver", "../../bus/pci/drivers/ice");
    expect(&host.facts(), "rdma_transport", Status::Note, &said, "name enable_roce value true");
    host.write("sys/class/infiniband/mlx5_0/node_type", "4: RNIC\n");
    expect(
        &host.facts(),
        "rdma_transport",
        Status::Warn,
        &["mlx5_0:1 speaks iWARP"],
        "name enable_iwarp value false",
    );
    expect(&host.facts(), "auto", Status::Ok, &["roce-xdp", "not verbs", "iWARP"], "");
    host.write("sys/class/infiniband/mlx5_0/node_type", "6: usNIC UDP\n");
    host.write("sys/class/infiniband/mlx5_1/node_type", "1: CA\n");
    expect(&host.facts(), "rdma_transport", Status::Note, &["without reliable connections"], "");
    host.write("sys/class/infiniband/mlx5_0/ports/1/link_layer", "InfiniBand\n");
    host.write("sys/class/infiniband/mlx5_0/node_type", "1: CA\n");
    expect(&host.facts(), "rdma_transport", Status::Ok, &["mlx5_0:1 speaks InfiniBand"], "");
}

#[test]
fn software_devices_are_called_so() {
    let host = Host::new();
    host.write("sys/class/infiniband/mlx5_0/parent", "ens1\n");
    expect(
        &host.facts(),
        "rdma_ports",
        Status::Ok,
        &["mlx5_0:1 ACTIVE, RoCE on ens1, in software (rdma_rxe)"],
        "",
    );
}

#[test]
fn locked_memory_is_needed_by_whoever_lacks_the_capability() {
    let host = Host::new();
    let limit = "Max locked memory         65536                65536                bytes     \n";
    host.write("proc/self/limits", limit);
    expect(&host.facts(), "memlock", Status::Ok, &["64 KiB", "CAP_IPC_LOCK"], "");
    host.write("proc/self/status", "Uid:\t1000\t1000\t1000\t1000\nCapEff:\t0000000000000000\n");
    expect(
        &host.facts(),
        "memlock",
        Status::Warn,
        &["64 KiB", "RDMA"],
        "sudo prlimit --pid $$ --memlock=unlimited",
    );
    host.write("proc/self/limits", &limit.replacen("65536     ", "1073741824", 1));
    expect(&host.facts(), "memlock", Status::Note, &["1 GiB"], "limits.d");
    host.remove("sys/class/infiniband");
    host.write("proc/self/limits", limit);
    expect(&host.facts(), "memlock", Status::Note, &["io_uring"], "limits.d");
    let tried = host.tried(|tried| tried.io_uring = Err(TcpError::Memory));
    expect(&tried, "memlock", Status::Warn, &["io_uring"], "limits.d");
    expect(&tried, "io_uring", Status::Warn, &["tcp-epoll"], "prlimit");
    // Root without the capability is in a container.
    host.write("proc/self/status", "Uid:\t0\t0\t0\t0\nCapEff:\t0000000000000000\n");
    expect(&host.facts(), "memlock", Status::Note, &[], "--ulimit memlock=-1:-1");
}

#[test]
fn capabilities_of_a_user_namespace_are_less() {
    let host = Host::new();
    host.write("proc/self/uid_map", "0 1000 1\n");
    expect(&host.facts(), "privileges", Status::Note, &["root", "user namespace"], "");
    expect(&host.facts(), "af_xdp", Status::Note, &["CAP_NET_RAW"], "docker run --cap-add NET_RAW");
    host.write("proc/sys/kernel/unprivileged_userns_clone", "0\n");
    expect(&host.facts(), "privileges", Status::Note, &["forbidden"], "");
}

#[test]
fn the_kernels_own_limits_are_told() {
    let host = Host::new();
    host.write("proc/sys/kernel/osrelease", "5.15.0-91-generic\n");
    expect(&host.facts(), "kernel", Status::Warn, &["5.15.0", "6.1"], "");
    host.write(
        "sys/kernel/mm/transparent_hugepage/shmem_enabled",
        "always within_size advise [never] deny force\n",
    );
    let setting = "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled";
    expect(&host.facts(), "huge_pages", Status::Warn, &["shmem never"], setting);
    host.write("proc/sys/kernel/osrelease", "6.1.0\n");
    expect(&host.facts(), "huge_pages", Status::Ok, &["collapsed"], "");
    host.write(
        "sys/kernel/mm/transparent_hugepage/shmem_enabled",
        "always within_size advise never [deny] force\n",
    );
    expect(&host.facts(), "huge_pages", Status::Warn, &["shmem deny"], setting);
    host.remove("sys/kernel/mm");
    expect(&host.facts(), "huge_pages", Status::Note, &["no transparent huge pages"], "");

    let forbidden = || host.tried(|tried| tried.io_uring = Err(TcpError::Forbidden));
    expect(&forbidden(), "io_uring", Status::Warn, &["tcp-epoll"], "seccomp");
    host.write("proc/sys/kernel/io_uring_disabled", "2\n");
    expect(&forbidden(), "io_uring", Status::Warn, &["tcp-epoll"], "sysctl -w kernel.io_uring_disabled=0");
}

#[test]
fn processors_and_clocks_are_set_for_speed() {
    let host = Host::new();
    let governor = "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor";
    host.write(governor, "powersave\n");
    expect(&host.facts(), "cpus", Status::Note, &["powersave (intel_pstate)"], "echo performance");
    host.write("sys/devices/system/cpu/cpu0/cpufreq/scaling_driver", "acpi-cpufreq\n");
    expect(&host.facts(), "cpus", Status::Warn, &["powersave"], "scaling_governor");
    host.write("proc/self/status", "Uid:\t0\t0\t0\t0\nCpus_allowed_list:\t3\n");
    expect(&host.facts(), "cpus", Status::Warn, &["1 of 8 CPUs", "take turns"], "");

    let clocks = "sys/devices/system/clocksource/clocksource0";
    host.write(&format!("{clocks}/current_clocksource"), "hpet\n");
    expect(&host.facts(), "clock", Status::Warn, &["hpet"], "echo tsc > /sys/devices/system/clocksource");
    host.write(&format!("{clocks}/available_clocksource"), "hpet acpi_pm\n");
    expect(&host.facts(), "clock", Status::Warn, &["hpet"], "update-grub");
}

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

#[test]
fn the_library_is_found_as_the_loader_finds_it_or_installed() {
    let host = Host::new();
    let without = host.tried(|tried| tried.has_verbs = false);
    expect(
        &without,
        "verbs",
        Status::Warn,
        &["built without it"],
        "cargo build --release -p ringway --bins --features verbs",
    );
    expect(&without, "auto", Status::Ok, &["roce-xdp", "not verbs: this program is built without it"], "");
    host.remove("opt/rdma/lib/libibverbs");
    expect(
        &host.facts(),
        "verbs",
        Status::Warn,
        &["0 drivers"],
        "apt-get install -y libibverbs1 ibverbs-providers",
    );
    host.remove("opt");
    expect(&host.facts(), "verbs", Status::Warn, &["not installed"], "apt-get install -y libibverbs1");
    host.write("etc/os-release", "ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n");
    expect(&host.facts(), "verbs", Status::Warn, &["not installed"], "dnf install -y libibverbs");
    host.write("usr/lib64/libibverbs.so.1", "");
    expect(&host.facts(), "verbs", Status::Warn, &["/usr/lib64/libibverbs.so.1"], "dnf install");
    host.remove("sys/class/infiniband");
    let without = host.tried(|tried| tried.has_verbs = false);
    expect(&without, "verbs", Status::Absent, &["built without it"], "");
}

#[test]
fn a_way_to_gpu_memory_is_looked_for() {
    let host = Host::new();
    host.write("proc/modules", "mlx5_ib 1 0 - Live 0x0\n");
    expect(&host.facts(), "gpu_direct", Status::Ok, &["dma-buf is there", "memory of the host only"], "");
    let closed = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19\n";
    host.write("proc/driver/nvidia/version", closed);
    expect(
        &host.facts(),
        "gpu_direct",
        Status::Warn,
        &["535.104.05 (proprietary)"],
        "modprobe nvidia_peermem",
    );
    host.write("sys/module/nvidia_peermem/initstate", "live\n");
    expect(&host.facts(), "gpu_direct", Status::Ok, &["nvidia_peermem"], "");
    host.remove("proc/driver");
    expect(&host.facts(), "gpu_direct", Status::Warn, &["not loaded"], "modprobe nvidia");
    host.remove("sys/bus");
    expect(&host.facts(), "gpu_direct", Status::Absent, &["no NVIDIA GPU"], "");
}

#[test]
fn only_what_every_path_needs_fails() {
    let host = Host::new();
    let no = || Err("no".to_owned());
    let memory = host.tried(|tried| tried.memory = no());
    expect(&memory, "shared_memory", Status::Fail, &["no"], "seccomp");
    let shm = host.tried(|tried| tried.shm = no());
    expect(&shm, "shared_memory", Status::Warn, &["TCP"], "");
    let sockets = host.tried(|tried| tried.sockets = no());
    expect(&sockets, "tcp", Status::Fail, &["no"], "ip link set lo up");
    let nothing = host.tried(|tried| {
        (tried.sockets, tried.has_verbs, tried.io_uring) = (no(), false, Err(TcpError::TooOld));
        let address = tried.address;
        tried.roce_udp = Err(LinkError::PortTaken { address, port: 4791, rxe: true });
        tried.roce_xdp = Err(LinkError::PortTaken { address, port: 4791, rxe: true });
    });
    expect(
        &nothing,
        "auto",
        Status::Fail,
        &["none", "not roce-udp: UDP port 4791 is taken", "not tcp-epoll: no"],
        "",
    );
}
