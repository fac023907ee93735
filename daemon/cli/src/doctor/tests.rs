use std::{
    fs,
    os::unix::fs::symlink,
    path::PathBuf,
    sync::atomic::{AtomicU32, Ordering},
};

use ringway_client::cuda::Listed;
use ringway_roce::LinkError;
use ringway_tcp::TcpError;

use super::*;

mod machine;
mod network;
mod rdma;

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
            cuda: Ok(vec![gpu(true)]),
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
    expect(&host.facts(), "cuda", Status::Ok, &["1 NVIDIA GPU (NVIDIA H100)", "by MPS"], "");
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

pub(super) fn gpu(has_mps: bool) -> Listed {
    Listed { name: "NVIDIA H100".to_owned(), uuid: [7; 16], capability: (9, 0), has_mps }
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
