//! GPUs by what sysfs shows and what a management library says, among it libraries that fail and that talk nonsense.

use std::{
    fs,
    path::PathBuf,
    time::{Duration, Instant},
};

use ringway_topology::{Document, NvLinkEnd, NvLinks, Nvml, PathClass, Place, Topology};

use super::{
    library::{Card, Library, Odd},
    path, read,
    trees::{Host, board, eight, machine, server, uuid, workstation},
};

/// NVML_ERROR_NOT_SUPPORTED, NVML_ERROR_NO_PERMISSION, NVML_ERROR_DRIVER_NOT_LOADED, NVML_ERROR_GPU_IS_LOST.
const NOT_SUPPORTED: i32 = 3;
const NO_PERMISSION: i32 = 4;
const DRIVER_NOT_LOADED: i32 = 9;
const GPU_IS_LOST: i32 = 15;
const NEVER: i32 = -1;
const ALL: i32 = -1;
/// What an end has for an address that a virtual machine is not shown.
const HIDDEN: [u32; 3] = [0x0fff_ffff, 0xffff, 0xff];
const SWITCHES: [u32; 4] = [0, 1, 2, 3];

/// The buses of the server's GPUs.
const BUSES: [u32; 8] = [0x13, 0x14, 0x33, 0x34, 0x53, 0x54, 0x73, 0x74];

fn card(bus: u32, name: &'static str, gib: u64) -> Card {
    let uuid = uuid(&format!("0000:{bus:02x}:00.0"));
    Card { bus, name, uuid, memory: gib << 30, links: (0, 0), ends: Vec::new(), peers: [0; 3] }
}

/// All eight reach each other through four switches, over 18 links each.
fn switched() -> Vec<Card> {
    let ends: Vec<[u32; 3]> = (0..18).map(|link| [0, 0xf0, SWITCHES[link % 4]]).collect();
    let one = |bus| Card {
        links: (18, (1 << 18) - 1),
        ends: ends.clone(),
        peers: [0xff; 3],
        ..card(bus, "NVIDIA H100 80GB HBM3", 80)
    };
    BUSES.map(one).to_vec()
}

/// Two with a bridge of four links between them.
fn bridged() -> Vec<Card> {
    let one = |(bus, other): (u32, u32)| Card {
        links: (4, 0b1111),
        ends: vec![[0, other, 0]],
        peers: [0b11; 3],
        ..card(bus, "NVIDIA RTX A6000", 48)
    };
    [(0x01, 0x41), (0x41, 0x01)].map(one).to_vec()
}

fn asked(host: &Host, cards: &[Card], odd: &Odd<'_>) -> Topology {
    let library = Library::new(cards, odd);
    let nvml = Nvml { library: library.path().to_owned(), ..Nvml::default() };
    let topology = Topology::read_and_ask(host.root(), &nvml);
    topology.check().expect("what is read fits together");
    topology
}

/// The hosts of the tests as files, for those who only want to show one.
#[test]
fn the_files_are_these_hosts() {
    let hosts = [
        ("machine", read(&machine())),
        ("server", asked(&server(), &switched(), &Odd::default())),
        ("workstation", asked(&workstation(), &bridged(), &Odd::default())),
        ("board", read(&board())),
    ];
    for (name, host) in hosts {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/hosts/{name}.json"));
        let text = Document::from(host.clone()).to_json();
        if std::env::var_os("RINGWAY_WRITE_HOSTS").is_some() {
            fs::write(&path, &text).expect("written");
        }
        let file = fs::read_to_string(&path).expect("a file");
        assert!(file == text, "{name}.json is another host: run with RINGWAY_WRITE_HOSTS=1 to write it");
        assert_eq!(Document::read(&path).expect("read"), Document::from(host));
    }
}

#[test]
fn eight_gpus_reach_each_other_through_switches() {
    let server = server();
    let host = asked(&server, &switched(), &Odd::default());
    assert!(host.notes.is_empty(), "{:?}", host.notes);
    for gpu in &host.gpus {
        assert_eq!(gpu.nvlinks, Some(vec![NvLinks { to: NvLinkEnd::Switch, links: 18 }]));
        assert_eq!((gpu.memory_bytes, gpu.peers.as_ref().map(Vec::len)), (Some(80 << 30), Some(7)));
        assert_eq!(gpu.uuid, Some(uuid(&gpu.pci.address.to_string())));
    }
    let between = |a, b| path(&host, Place::Gpu(a), Place::Gpu(b));
    assert!((0..8).all(|b| (0..b).all(|a| between(a, b) == PathClass::NvLink(18))));
    assert_eq!(path(&host, Place::Gpu(0), Place::Nic(1)), PathClass::Switch, "NICs are where they were");

    // Some links are down.
    let mut cards = switched();
    cards[3].links = (18, 0b11_1111);
    let host = asked(&server, &cards, &Odd::default());
    assert_eq!(path(&host, Place::Gpu(3), Place::Gpu(0)), PathClass::NvLink(6));
    assert_eq!(path(&host, Place::Gpu(1), Place::Gpu(0)), PathClass::NvLink(18));
}

#[test]
fn two_gpus_have_a_bridge_of_four_links() {
    let host = asked(&workstation(), &bridged(), &Odd::default());
    let [first, second] = [0, 1].map(|gpu: usize| host.gpus[gpu].pci.address);
    assert_eq!(host.gpus[0].nvlinks, Some(vec![NvLinks { to: NvLinkEnd::Gpu(second), links: 4 }]));
    assert_eq!(host.gpus[1].peers, Some(vec![first]));
    assert_eq!(host.gpus[0].name.as_deref(), Some("NVIDIA RTX A6000"), "which the kernel does not show");
    assert_eq!(path(&host, Place::Gpu(0), Place::Gpu(1)), PathClass::NvLink(4));

    // A peer is who can be read and written.
    let mut half = bridged();
    (half[0].peers[0], half[1].peers[1]) = (0, 0);
    let host = asked(&workstation(), &half, &Odd::default());
    assert_eq!((&host.gpus[0].peers, &host.gpus[1].peers), (&Some(vec![]), &Some(vec![])));

    // Without the bridge they are as sysfs shows them, and may or may not reach each other.
    let plain = [0x01, 0x41].map(|bus| card(bus, "NVIDIA RTX A6000", 48));
    let host = asked(&workstation(), &plain, &Odd::default());
    assert_eq!((&host.gpus[0].nvlinks, &host.gpus[0].peers), (&Some(vec![]), &Some(vec![])));
    assert_eq!(path(&host, Place::Gpu(0), Place::Gpu(1)), PathClass::HostBridge);
}

#[test]
fn ends_that_are_not_shown_are_switches_where_all_are_reached() {
    let eight = eight();
    let mut cards = switched();
    for card in &mut cards {
        card.ends = vec![HIDDEN, [0, 0xc0, 0], HIDDEN, [7, 0xc1, 0]];
    }
    // Not the last one, whose NVLinks may go to another machine's GPU.
    cards[7].peers[2] = 0b11_1111;
    let host = asked(&eight, &cards, &Odd::default());
    let to = |gpu: usize| host.gpus[gpu].nvlinks.as_ref().map(|ends| (ends[0].to, ends.len(), ends[0].links));
    assert_eq!((to(0), to(7)), (Some((NvLinkEnd::Switch, 1, 18)), Some((NvLinkEnd::Unknown, 1, 18))));
    assert_eq!(path(&host, Place::Gpu(0), Place::Gpu(6)), PathClass::NvLink(18));
    assert_eq!(path(&host, Place::Gpu(0), Place::Gpu(7)), PathClass::NumaNode);

    // A processor's end, one that is the GPU itself, and one that is a NIC.
    let mut cards = bridged();
    cards[0].links = (18, 0b11_0101);
    cards[0].ends = vec![[0, 0, 6], [0, 0, 6], [0, 0x01, 0], [0, 0x41, 0], [0, 0, 5], [0, 0x41, 0]];
    let host = workstation();
    host.pci("pci0000:00/0000:00:06.0", "0x068001", "0x1014", 0, None);
    let host = asked(&host, &cards, &Odd::default());
    let ends: Vec<(NvLinkEnd, u8)> =
        host.gpus[0].nvlinks.iter().flatten().map(|ends| (ends.to, ends.links)).collect();
    let second = NvLinkEnd::Gpu(host.gpus[1].pci.address);
    assert_eq!(ends, [(second, 1), (NvLinkEnd::Cpu, 1), (NvLinkEnd::Unknown, 2)]);
}

#[track_caller]
fn noted(host: &Topology, words: &[&str]) {
    let [note] = host.notes.as_slice() else { panic!("{:?}", host.notes) };
    assert!(words.iter().all(|word| note.contains(word)), "{note}");
}

#[test]
fn without_the_library_gpus_are_as_sysfs_shows_them() {
    let eight = eight();
    let alone = read(&eight);
    let as_before = |host: &Topology| {
        let bare = Topology { notes: Vec::new(), ..host.clone() };
        assert_eq!(bare, alone);
    };
    let host = Topology::read_and_ask(
        eight.root(),
        &Nvml { library: PathBuf::from("libringway-is-not-there.so.1"), ..Nvml::default() },
    );
    host.check().expect("it fits");
    as_before(&host);
    noted(
        &host,
        &["GPUs 0-7: from sysfs alone", "libringway-is-not-there.so.1: cannot open shared object file"],
    );

    for (failing, absent, word) in [
        (&[("nvmlInit_v2", ALL, DRIVER_NOT_LOADED)][..], &[][..], "driver is not loaded"),
        (&[("nvmlInit_v2", ALL, 12345)], &[], "12345"),
        (&[("nvmlDeviceGetCount_v2", ALL, GPU_IS_LOST)], &[], "fell off the bus"),
        (&[], &["nvmlInit_v2"], "nvmlInit_v2"),
        (&[], &["nvmlDeviceGetCount_v2"], "nvmlDeviceGetCount_v2"),
    ] {
        let host = asked(&eight, &switched(), &Odd { failing, absent, ..Odd::default() });
        as_before(&host);
        noted(&host, &["GPUs 0-7: from sysfs alone", word]);
    }
    // Where there is no GPU of NVIDIA's nobody misses it.
    let nvml = Nvml { library: PathBuf::from("libringway-is-not-there.so.1"), ..Nvml::default() };
    assert_eq!(Topology::read_and_ask(machine().root(), &nvml).notes, [""; 0]);
}

#[test]
fn a_library_that_never_answers_is_not_waited_for() {
    let eight = eight();
    let failing = [("nvmlDeviceGetPciInfo_v3", 5, NEVER)];
    let library = Library::new(&switched(), &Odd { failing: &failing, ..Odd::default() });
    let nvml = Nvml { library: library.path().to_owned(), patience: Duration::from_millis(50) };
    let start = Instant::now();
    let host = Topology::read_and_ask(eight.root(), &nvml);
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    noted(&host, &["GPUs 0-7: from sysfs alone", "did not answer in 50ms"]);
    assert_eq!(host.gpus[0].name.as_deref(), Some("NVIDIA H100 80GB HBM3"));
}

#[test]
fn one_failing_call_costs_what_it_would_have_told() {
    let eight = eight();
    let whole = asked(&eight, &switched(), &Odd::default());
    let with = |failing: &[(&str, i32, i32)], absent: &[&str]| {
        asked(&eight, &switched(), &Odd { failing, absent, count: None })
    };
    let host = with(&[("nvmlDeviceGetHandleByIndex_v2", 2, NO_PERMISSION)], &[]);
    noted(&host, &["GPU 2: not shown by NVIDIA's management library", "permission"]);
    assert_eq!((&host.gpus[2].nvlinks, host.gpus[2].memory_bytes), (&None, None));
    assert_eq!(host.gpus[3].nvlinks, whole.gpus[3].nvlinks);

    let host = with(
        &[("nvmlDeviceGetNvLinkState", 1, GPU_IS_LOST), ("nvmlDeviceGetNvLinkState", 6, GPU_IS_LOST)],
        &[],
    );
    noted(&host, &["GPUs 1,6: NVLinks are not known", "fell off the bus"]);
    assert_eq!((&host.gpus[6].nvlinks, host.gpus[6].memory_bytes), (&None, Some(80 << 30)));
    assert_eq!(path(&host, Place::Gpu(0), Place::Gpu(1)), PathClass::NumaNode);

    let host = with(
        &[("nvmlDeviceGetMemoryInfo_v2", ALL, NOT_SUPPORTED)],
        &["nvmlDeviceGetUUID", "nvmlDeviceGetName"],
    );
    assert!(host.notes.is_empty() && host.gpus.iter().all(|gpu| gpu.memory_bytes.is_none()));
    assert_eq!(host.gpus[4].uuid, whole.gpus[4].uuid, "the kernel shows it too");

    let host = with(&[("nvmlDeviceGetP2PStatus", 0, NOT_SUPPORTED)], &[]);
    assert_eq!((&host.gpus[0].peers, &host.gpus[1].peers), (&None, &whole.gpus[1].peers));
    // Where links go is not told: that they go to switches is not proven either for one GPU, whose peers are not known.
    let host = with(
        &[("nvmlDeviceGetP2PStatus", 0, NOT_SUPPORTED)],
        &["nvmlDeviceGetNvLinkRemotePciInfo_v2", "nvmlShutdown", "nvmlSystemGetDriverVersion"],
    );
    let to = |gpu: usize| host.gpus[gpu].nvlinks.as_ref().map(|ends| ends[0].to);
    assert_eq!((to(0), to(1)), (Some(NvLinkEnd::Unknown), Some(NvLinkEnd::Switch)));
}

#[test]
fn nonsense_is_passed_over() {
    let eight = eight();
    let mut cards = switched();
    cards[0].name = r"\x1b[31m\xc3\xa9";
    cards[1].name = r"\xff\xfe";
    cards[2].name = "";
    cards[3].uuid = "U".repeat(95);
    cards[4].memory = 0;
    cards[5].memory = u64::MAX;
    // Two at one place, and one where there is no GPU, or no place.
    cards[6].bus = 0x14;
    cards[7].bus = 0x1_0000;
    cards[2].links = (18, u32::MAX);
    cards[5].links = (u32::MAX, (1 << 18) - 1);
    cards[5].ends = vec![[0, 0x13, 32], [u32::MAX; 3], [0, 0x14, 0]];
    let host = asked(&eight, &cards, &Odd { count: Some(u32::MAX), ..Odd::default() });
    let names: Vec<Option<&str>> = host.gpus.iter().map(|gpu| gpu.name.as_deref()).collect();
    let known = Some("NVIDIA H100 80GB HBM3");
    assert_eq!(names, [Some("[31mé"), known, known, known, known, known, known, known]);
    assert_eq!(host.gpus[3].uuid.as_deref().map(str::len), Some(95));
    assert_eq!((host.gpus[4].memory_bytes, host.gpus[5].memory_bytes), (None, Some(u64::MAX)));
    let [missing, state] = host.notes.as_slice() else { panic!("{:?}", host.notes) };
    assert!(missing.contains("GPUs 6-7: not shown by NVIDIA's management library: a supplied"), "{missing}");
    assert!(state.contains("GPU 2: NVLinks are not known: ") && state.contains("77"), "{state}");
    assert_eq!(host.gpus[5].nvlinks.iter().flatten().map(|ends| ends.links).sum::<u8>(), 18);

    // What is no library, and one that shows nothing.
    let empty = Library::new(&[], &Odd::default());
    fs::write(empty.path(), "not a library").expect("written");
    let nvml = Nvml { library: empty.path().to_owned(), ..Nvml::default() };
    noted(&Topology::read_and_ask(eight.root(), &nvml), &["from sysfs alone"]);
    let none = asked(&eight, &[], &Odd::default());
    noted(&none, &["GPUs 0-7: not shown by NVIDIA's management library"]);
}
