//! RDMA devices, the library for them, and GPUs.

use super::*;

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
fn gpus_are_what_the_driver_shows() {
    let host = Host::new();
    let expect_cuda = |cuda: Result<Vec<_>, &str>, status, parts: &[&str]| {
        let facts = host.tried(|tried| tried.cuda = cuda.map_err(str::to_owned));
        expect(&facts, "cuda", status, parts, "");
    };
    expect_cuda(
        Ok(vec![gpu(false); 2]),
        Status::Ok,
        &["2 NVIDIA GPUs (NVIDIA H100)", "nvidia-cuda-mps-control -d"],
    );
    expect_cuda(Ok(Vec::new()), Status::Absent, &["shows no GPU"]);
    expect_cuda(Err("no CUDA driver on this host"), Status::Warn, &["1 NVIDIA GPU, and no CUDA driver"]);
    host.remove("sys/bus");
    expect_cuda(Err("no CUDA driver on this host"), Status::Absent, &["no CUDA driver, and no NVIDIA GPU"]);
}

#[test]
fn a_way_to_gpu_memory_is_looked_for() {
    let host = Host::new();
    host.write("proc/modules", "mlx5_ib 1 0 - Live 0x0\n");
    expect(&host.facts(), "gpu_direct", Status::Ok, &["dma-buf is there", "stages memory of GPUs"], "");
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
