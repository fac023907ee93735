//! Folders as Linux would show them, made for a test and gone with it.

use std::{
    fmt::Display,
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
};

/// The folder of a host.
pub(crate) struct Host(PathBuf);

impl Drop for Host {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Host {
    pub(crate) fn new(name: &str) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let host =
            Self(std::env::temp_dir().join(format!("ringway-topology-{}-{number}", std::process::id())));
        host.write("proc/sys/kernel/hostname", name);
        host
    }

    pub(crate) fn root(&self) -> &Path {
        &self.0
    }

    pub(crate) fn write(&self, path: &str, text: impl Display) {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        fs::write(path, format!("{text}\n")).expect("written");
    }

    pub(crate) fn remove(&self, path: &str) {
        let path = self.0.join(path);
        fs::remove_dir_all(&path).or_else(|_| fs::remove_file(&path)).expect("removed");
    }

    /// A link to what is at this path below the root, relative as the kernel's are.
    pub(crate) fn link(&self, path: &str, to: &str) {
        let up = "../".repeat(path.split('/').count() - 1);
        let link = self.0.join(path);
        fs::create_dir_all(link.parent().expect("a folder")).expect("made");
        fs::create_dir_all(self.0.join(to)).expect("made");
        symlink(format!("{up}{to}"), link).expect("linked");
    }

    /// A CPU, with the first core's number, and who shares what.
    pub(crate) fn cpu(&self, cpu: u32, package: i32, core: &str, caches: &[(&str, u8, &str, &str)]) {
        let folder = format!("sys/devices/system/cpu/cpu{cpu}");
        self.write(&format!("{folder}/topology/physical_package_id"), package);
        self.write(&format!("{folder}/topology/core_cpus_list"), core);
        for (index, (kind, level, size, shared)) in caches.iter().enumerate() {
            let folder = format!("{folder}/cache/index{index}");
            self.write(&format!("{folder}/type"), kind);
            self.write(&format!("{folder}/level"), level);
            self.write(&format!("{folder}/size"), size);
            self.write(&format!("{folder}/shared_cpu_list"), shared);
        }
    }

    pub(crate) fn numa(&self, node: u32, gib: u64, cpus: &str, distance: &str) {
        let folder = format!("sys/devices/system/node/node{node}");
        self.write(&format!("{folder}/meminfo"), format!("Node {node} MemTotal:       {} kB", gib << 20));
        self.write(&format!("{folder}/cpulist"), cpus);
        self.write(&format!("{folder}/distance"), distance);
    }

    /// A function on PCI, by its path below `sys/devices`.
    pub(crate) fn pci(&self, path: &str, class: &str, vendor: &str, node: i32, link: Option<(&str, u8)>) {
        let folder = format!("sys/devices/{path}");
        self.write(&format!("{folder}/class"), class);
        self.write(&format!("{folder}/vendor"), vendor);
        self.write(&format!("{folder}/numa_node"), node);
        if let Some((speed, lanes)) = link {
            for which in ["current", "max"] {
                self.write(&format!("{folder}/{which}_link_speed"), speed);
                self.write(&format!("{folder}/{which}_link_width"), lanes);
            }
        }
        let address = path.rsplit('/').next().expect("an address");
        self.link(&format!("sys/bus/pci/devices/{address}"), &folder);
    }

    pub(crate) fn driver(&self, path: &str, driver: &str) {
        self.link(&format!("sys/devices/{path}/driver"), &format!("sys/bus/pci/drivers/{driver}"));
    }

    /// An interface whose `device`, if it has one, is at this path below `sys/devices`.
    pub(crate) fn interface(&self, name: &str, device: Option<&str>, files: &[(&str, &str)]) {
        let folder = match device {
            Some(device) => format!("sys/devices/{device}/net/{name}"),
            None => format!("sys/devices/virtual/net/{name}"),
        };
        files.iter().for_each(|(file, text)| self.write(&format!("{folder}/{file}"), text));
        if let Some(device) = device {
            self.link(&format!("{folder}/device"), &format!("sys/devices/{device}"));
        }
        self.link(&format!("sys/class/net/{name}"), &folder);
    }

    /// A port 1 of an RDMA device at this path below `sys/devices`.
    pub(crate) fn rdma(&self, name: &str, device: &str, link_layer: &str, rate: &str) {
        let folder = format!("sys/devices/{device}/infiniband/{name}");
        self.write(&format!("{folder}/node_type"), "1: CA");
        self.write(&format!("{folder}/ports/1/state"), "4: ACTIVE");
        self.write(&format!("{folder}/ports/1/link_layer"), link_layer);
        self.write(&format!("{folder}/ports/1/rate"), rate);
        self.link(&format!("{folder}/device"), &format!("sys/devices/{device}"));
        self.link(&format!("sys/class/infiniband/{name}"), &folder);
    }
}

const ETHERNET: &[(&str, &str)] = &[("flags", "0x1003"), ("mtu", "1500"), ("type", "1"), ("operstate", "up")];

/// A small virtual machine: two processors, one memory, and what virtio has on a bus without links.
pub(crate) fn machine() -> Host {
    let host = Host::new("vm");
    host.write("proc/cpuinfo", "processor\t: 0\nmodel name\t: AMD EPYC\n");
    host.write("sys/devices/system/cpu/online", "0-1");
    for cpu in 0..2 {
        let own = cpu.to_string();
        let caches = [
            ("Data", 1, "48K", own.as_str()),
            ("Instruction", 1, "32K", &own),
            ("Unified", 2, "1024K", &own),
            ("Unified", 3, "32768K", "0-1"),
        ];
        host.cpu(cpu, 0, &own, &caches);
    }
    host.numa(0, 24, "0-1", "10");
    host.pci("pci0000:00/0000:00:00.0", "0x060000", "0x8086", -1, None);
    host.pci("pci0000:00/0000:00:03.0", "0x020000", "0x1af4", -1, None);
    host.driver("pci0000:00/0000:00:03.0/virtio2", "virtio_net");
    let eth0 = [ETHERNET, &[("speed", "-1"), ("dev_port", "0")]].concat();
    host.interface("eth0", Some("pci0000:00/0000:00:03.0/virtio2"), &eth0);
    host.interface("ifb0", None, &[("flags", "0x82"), ("mtu", "1500"), ("type", "1"), ("operstate", "down")]);
    host.interface(
        "lo",
        None,
        &[("flags", "0x9"), ("mtu", "65536"), ("type", "772"), ("operstate", "unknown")],
    );
    host
}

/// A server for training: two processors of 8 cores with two threads each, and at each two PCIe switches with two GPUs and two
/// cards of InfiniBand at each; a management card at the first.
pub(crate) fn server() -> Host {
    let host = Host::new("dgx-01");
    host.write("proc/cpuinfo", "processor\t: 0\nmodel name\t: Intel(R) Xeon(R) Platinum 8480C\n");
    host.write("sys/devices/system/cpu/online", "0-31");
    for cpu in 0..32_u32 {
        let package = cpu / 8 % 2;
        let core = format!("{},{}", cpu % 16, cpu % 16 + 16);
        let all = if package == 0 { "0-7,16-23" } else { "8-15,24-31" };
        let caches = [
            ("Data", 1, "48K", core.as_str()),
            ("Instruction", 1, "32K", &core),
            ("Unified", 2, "2048K", &core),
            ("Unified", 3, "107520K", all),
        ];
        host.cpu(cpu, i32::try_from(package).expect("small"), &core, &caches);
    }
    host.numa(0, 1024, "0-7,16-23", "10 21");
    host.numa(1, 1024, "8-15,24-31", "21 10");
    for switch in 0..4 {
        behind_a_switch(&host, switch);
    }
    // Those of NVLink, which are no network of PCI.
    for slot in 0..4 {
        host.pci(
            &format!("pci0000:f0/0000:f0:{slot:02x}.0"),
            "0x068000",
            "0x10de",
            1,
            Some(("8.0 GT/s PCIe", 2)),
        );
    }
    let management = "pci0000:00/0000:00:1c.0/0000:01:00.0";
    host.pci("pci0000:00/0000:00:1c.0", "0x060400", "0x8086", 0, Some(("8.0 GT/s PCIe", 1)));
    host.pci(management, "0x020000", "0x8086", 0, Some(("5.0 GT/s PCIe", 1)));
    host.driver(management, "igb");
    host.interface("eno1", Some(management), &[ETHERNET, &[("speed", "1000")]].concat());
    host.interface("docker0", None, ETHERNET);
    host.interface(
        "lo",
        None,
        &[("flags", "0x9"), ("mtu", "65536"), ("type", "772"), ("operstate", "unknown")],
    );
    host
}

fn behind_a_switch(host: &Host, switch: u32) {
    let node = i32::try_from(switch / 2).expect("small");
    let bus = 0x10 + 0x20 * switch;
    let (gen5, x16) = ("32.0 GT/s PCIe", 16);
    let root_port = format!("pci0000:{bus:02x}/0000:{bus:02x}:01.0");
    let upstream = format!("{root_port}/0000:{:02x}:00.0", bus + 1);
    for bridge in [&root_port, &upstream] {
        host.pci(bridge, "0x060400", "0x1000", node, Some((gen5, x16)));
    }
    for slot in 0..4 {
        let port = format!("{upstream}/0000:{:02x}:{slot:02x}.0", bus + 2);
        host.pci(&port, "0x060400", "0x1000", node, Some((gen5, x16)));
        let address = format!("0000:{:02x}:00.0", bus + 3 + slot);
        let device = format!("{port}/{address}");
        if slot < 2 {
            h100(host, &device, node);
        } else {
            let number = switch * 2 + slot - 2;
            host.pci(&device, "0x020700", "0x15b3", node, Some((gen5, x16)));
            host.driver(&device, "mlx5_core");
            host.rdma(&format!("mlx5_{number}"), &device, "InfiniBand", "400 Gb/sec (4X NDR)");
            let files = [
                ("flags", "0x1003"),
                ("mtu", "4092"),
                ("type", "32"),
                ("operstate", "up"),
                ("dev_port", "0"),
            ];
            // One port has no interface, as InfiniBand needs none.
            if number != 7 {
                host.interface(&format!("ib{number}"), Some(&device), &files);
            }
        }
    }
}

/// A GPU as its driver shows it.
fn h100(host: &Host, path: &str, node: i32) {
    host.pci(path, "0x030200", "0x10de", node, Some(("32.0 GT/s PCIe", 16)));
    host.driver(path, "nvidia");
    let address = path.rsplit('/').next().expect("an address");
    let uuid = uuid(address);
    host.write(
        &format!("proc/driver/nvidia/gpus/{address}/information"),
        format!("Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 18\nGPU UUID: \t {uuid}"),
    );
}

/// The server's GPUs, each at a host bridge of its own, and nothing else.
pub(crate) fn eight() -> Host {
    let host = Host::new("eight");
    for bus in ["13", "14", "33", "34", "53", "54", "73", "74"] {
        h100(&host, &format!("pci0000:{bus}/0000:{bus}:00.0"), 0);
    }
    host
}

/// The UUID that the GPU at an address has.
pub(crate) fn uuid(address: &str) -> String {
    format!("GPU-00000000-0000-0000-0000-{:0>12}", address.replace([':', '.'], ""))
}

/// A desk's machine with two GPUs at ports of the processor.
pub(crate) fn workstation() -> Host {
    let host = Host::new("desk");
    host.write("proc/cpuinfo", "processor\t: 0\nmodel name\t: AMD Ryzen Threadripper PRO 7975WX\n");
    host.write("sys/devices/system/cpu/online", "0-7");
    for cpu in 0..8 {
        let own = cpu.to_string();
        host.cpu(cpu, 0, &own, &[("Unified", 2, "1024K", &own), ("Unified", 3, "32768K", "0-7")]);
    }
    host.numa(0, 128, "0-7", "10");
    for (port, bus) in [("01.0", "01"), ("03.0", "41")] {
        let port = format!("pci0000:00/0000:00:{port}");
        host.pci(&port, "0x060400", "0x1022", 0, Some(("16.0 GT/s PCIe", 16)));
        let gpu = format!("{port}/0000:{bus}:00.0");
        host.pci(&gpu, "0x030000", "0x10de", 0, Some(("16.0 GT/s PCIe", 16)));
        host.driver(&gpu, "nvidia");
    }
    host.pci("pci0000:00/0000:00:05.0", "0x020000", "0x8086", 0, None);
    host.driver("pci0000:00/0000:00:05.0", "igc");
    host.interface("enp5s0", Some("pci0000:00/0000:00:05.0"), &[ETHERNET, &[("speed", "2500")]].concat());
    host
}

/// A machine whose kernel has no NUMA and shows no caches, and whose one card is no PCI device.
pub(crate) fn board() -> Host {
    let host = Host::new("board");
    host.write("proc/meminfo", "MemTotal:        8000000 kB\nMemFree:         1000000 kB");
    host.write("sys/devices/system/cpu/online", "0-3");
    for cpu in 0..4_u32 {
        host.write(&format!("sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id"), -1);
        host.write(&format!("sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"), cpu);
    }
    host.driver("platform/fd580000.ethernet", "bcmgenet");
    let eth0 = [ETHERNET, &[("speed", "1000")]].concat();
    host.interface("eth0", Some("platform/fd580000.ethernet"), &eth0);
    host
}
