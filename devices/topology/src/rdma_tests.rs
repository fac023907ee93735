use super::*;

/// A folder as the kernel makes it, gone when the test ends.
struct Tree(PathBuf);

impl Tree {
    fn new(name: &str, files: &[(&str, &str)]) -> Self {
        let root = std::env::temp_dir().join(format!("ringway-sysfs-{}-{name}", std::process::id()));
        for (path, contents) in files {
            let path = root.join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            fs::write(path, contents).expect("written");
        }
        Self(root)
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// What rxe showed on Linux 6.1, with unused entries after the two that are in use.
const RXE: &[(&str, &str)] = &[
    ("rxe0/node_type", "1: CA\n"),
    ("rxe0/parent", "near0\n"),
    ("rxe0/ports/1/state", "4: ACTIVE\n"),
    ("rxe0/ports/1/phys_state", "5: LinkUp\n"),
    ("rxe0/ports/1/link_layer", "Ethernet\n"),
    ("rxe0/ports/1/rate", "2.5 Gb/sec (1X SDR)\n"),
    ("rxe0/ports/1/lid", "0x0\n"),
    ("rxe0/ports/1/gids/0", "fe80:0000:0000:0000:1891:44ff:fe24:dfc0\n"),
    ("rxe0/ports/1/gids/1", "0000:0000:0000:0000:0000:ffff:0a4d:0002\n"),
    ("rxe0/ports/1/gids/10", "0000:0000:0000:0000:0000:0000:0000:0000\n"),
    ("rxe0/ports/1/gid_attrs/types/0", "RoCE v2\n"),
    ("rxe0/ports/1/gid_attrs/types/1", "RoCE v2\n"),
    ("rxe0/ports/1/gid_attrs/ndevs/0", "near0\n"),
    ("rxe0/ports/1/gid_attrs/ndevs/1", "near0\n"),
];

#[test]
fn a_port_is_read_as_the_kernel_words_it() {
    let tree = Tree::new("rxe", RXE);
    let ports = ports_in(&tree.0).expect("read");
    let [port] = ports.as_slice() else { panic!("{ports:?}") };
    assert_eq!((port.device.as_str(), port.number, port.transport), ("rxe0", 1, Transport::InfiniBand));
    assert!(port.is_active() && port.link_layer == LinkLayer::Ethernet && port.lid == 0);
    assert!(port.is_software);
    assert_eq!(port.physical_state, "LinkUp");
    let [link_local, mapped] = port.gids.as_slice() else { panic!("{:?}", port.gids) };
    assert_eq!((link_local.index, link_local.kind), (0, GidKind::RoceV2));
    assert_eq!(mapped.address().to_string(), "10.77.0.2");
    assert_eq!(mapped.interface.as_deref(), Some("near0"));
    assert!(port.is_software, "there is no hardware behind it");
    assert_eq!(port.interfaces, ["near0"]);
}

#[test]
fn infiniband_has_a_lid_and_no_interface() {
    let tree = Tree::new(
        "ib",
        &[
            ("mlx5_0/node_type", "1: CA\n"),
            ("mlx5_0/device/numa_node", "1\n"),
            ("mlx5_0/ports/2/state", "2: INIT\n"),
            ("mlx5_0/ports/2/link_layer", "InfiniBand\n"),
            ("mlx5_0/ports/2/lid", "0x1f\n"),
            ("mlx5_0/ports/2/gids/0", "fe80:0000:0000:0000:0002:c903:0000:0001\n"),
            ("mlx5_0/ports/2/gid_attrs/types/0", "IB/RoCE v1\n"),
        ],
    );
    let ports = ports_in(&tree.0).expect("read");
    let [port] = ports.as_slice() else { panic!("{ports:?}") };
    assert_eq!((port.number, port.lid, port.link_layer), (2, 31, LinkLayer::InfiniBand));
    assert!(!port.is_active() && !port.is_software);
    assert_eq!(port.numa_node, Some(1));
    assert_eq!(
        port.gids.first().map(|gid| (gid.kind, gid.interface.is_some())),
        Some((GidKind::IbOrRoceV1, false))
    );
}

#[test]
fn no_list_is_no_device() {
    assert_eq!(ports_in(Path::new("/nonexistent/ringway")).expect("nothing there"), []);
    // What does not look like a port is none.
    let tree = Tree::new("odd", &[("odd0/ports/1/state", "4: ACTIVE\n"), ("odd1/node_type", "1: CA\n")]);
    assert_eq!(ports_in(&tree.0).expect("read"), []);
}

/// IP over InfiniBand has an interface for each port, or several; they say which port by a number from 0.
#[test]
fn interfaces_belong_to_the_port_that_they_name() {
    let tree = Tree::new(
        "ipoib",
        &[
            ("mlx4_0/node_type", "1: CA\n"),
            ("mlx4_0/ports/1/state", "4: ACTIVE\n"),
            ("mlx4_0/ports/1/link_layer", "InfiniBand\n"),
            ("mlx4_0/ports/2/state", "4: ACTIVE\n"),
            ("mlx4_0/ports/2/link_layer", "InfiniBand\n"),
            ("mlx4_0/device/net/ib0/dev_port", "0\n"),
            ("mlx4_0/device/net/ib1/dev_port", "1\n"),
            ("mlx4_0/device/net/ib1.8001/dev_port", "1\n"),
            ("mlx4_0/device/net/old/mtu", "2044\n"),
        ],
    );
    let ports = ports_in(&tree.0).expect("read");
    let interfaces: Vec<_> = ports.iter().map(|port| port.interfaces.join(" ")).collect();
    assert_eq!(interfaces, ["ib0 old", "ib1 ib1.8001"]);
}
