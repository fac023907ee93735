use std::{io::Write, os::unix::fs::OpenOptionsExt};

use super::*;

fn message(change: impl FnOnce(&mut Settings)) -> String {
    let mut settings = Settings::default();
    change(&mut settings);
    settings.resolve().expect_err("must be refused").to_string()
}

#[test]
fn every_default_is_allowed_and_survives_printing() {
    let defaults = Settings::default().with_defaults();
    let printed: Settings = toml::from_str(&defaults.to_toml()).expect("parse what was printed");
    assert_eq!(printed, defaults);
    assert_eq!(printed.resolve(), Settings::default().resolve());
    assert!(Settings::default().resolve().is_ok());
}

#[test]
fn each_bad_value_is_named_with_what_is_allowed() {
    let text = |s: &str| Some(s.to_owned());
    let cases: &[(&str, &str, String)] = &[
        ("`users`", "`own`", message(|s| s.users = text("me"))),
        ("`isolation`", "`strict`", message(|s| s.isolation = text("none"))),
        ("`polling`", "`adaptive`", message(|s| s.polling = text("fast"))),
        (
            "`device`",
            "`auto`, `shm`, `verbs`, `roce-xdp`, `roce-udp`, `tcp`, `tcp-epoll`",
            message(|s| s.device = text("warp")),
        ),
        ("`device`", "several kinds", message(|s| s.device = text("tcp,auto"))),
        ("`device`", "several kinds", message(|s| s.device = text("tcp,tcp"))),
        ("`device`", "verbs:mlx5_0:1:3", message(|s| s.device = text("tcp:lo"))),
        ("`device`", "several kinds", message(|s| s.device = text("verbs:a,verbs"))),
        ("`device`", "NAME[:PORT[:GID]]", message(|s| s.device = text("verbs:"))),
        ("`device`", "NAME[:PORT[:GID]]", message(|s| s.device = text("verbs:mlx5_0:0,tcp"))),
        ("`device`", "/sys/class/infiniband", message(|s| s.device = text("tcp,verbs:../x"))),
        ("`algorithm`", "auto, local, direct, ring", message(|s| s.algorithm = text("rings"))),
        ("`algorithm`", "does not do barrier", message(|s| s.algorithm = text("barrier=ring"))),
        ("`verbs_timeout`", "1 to 31", message(|s| s.verbs_timeout = Some(0))),
        ("`verbs_retries`", "1 to 7", message(|s| s.verbs_retries = Some(8))),
        ("`verbs_traffic_class`", "0 to 255", message(|s| s.verbs_traffic_class = Some(256))),
        ("`verbs_service_level`", "0 to 15", message(|s| s.verbs_service_level = Some(-1))),
        (
            "`verbs_relaxed_ordering`",
            "`auto`, `on`, `off`",
            message(|s| s.verbs_relaxed_ordering = text("yes")),
        ),
        ("`tcp_busy_poll_us`", "1000000", message(|s| s.tcp_busy_poll_us = Some(-1))),
        ("`tcp_zero_copy`", "never", message(|s| s.tcp_zero_copy = Some("yes".to_owned()))),
        ("`tcp_connections`", "1 to 8", message(|s| s.tcp_connections = Some(9))),
        ("`tcp_congestion`", "`reno`", message(|s| s.tcp_congestion = text("warp"))),
        ("`fault`", "cluster_key_file", message(|s| s.fault = text("loss=0.1"))),
        ("`pcap`", "cluster_key_file", message(|s| s.pcap = text("all.pcap"))),
        ("`group_nodes`", "1048576", message(|s| s.group_nodes = Some(-1))),
        ("`delay_us`", "100000", message(|s| s.delay_us = Some(-1))),
        ("`log_level`", "`debug`", message(|s| s.log_level = text("loud"))),
        ("`log_format`", "`json`", message(|s| s.log_format = text("xml"))),
        ("`socket`", "absolute", message(|s| s.socket = text("here.sock"))),
        ("`socket`", "107", message(|s| s.socket = Some(format!("/{}", "x".repeat(200))))),
        ("`spin_us`", "1000000", message(|s| s.spin_us = Some(-1))),
        ("`engine_cpu`", "may use", message(|s| s.engine_cpu = Some(100_000))),
        ("`roce_port`", "65535", message(|s| s.roce_port = Some(0))),
        ("`peer_timeout_ms`", "100", message(|s| s.peer_timeout_ms = Some(1))),
        ("`plans`", "/nowhere", message(|s| s.plans = Some(vec!["/nowhere/plan.json".to_owned()]))),
        ("`plans`", "at most 64", message(|s| s.plans = Some(vec!["x".to_owned(); 65]))),
        ("`workspace_mib`", "65536", message(|s| s.workspace_mib = Some(0))),
        ("`late_after_s`", "seconds", message(|s| s.late_after_s = Some(0))),
        ("`idle_exit_s`", "0 stays", message(|s| s.idle_exit_s = Some(-5))),
        ("`ring_submissions_max`", "power of two", message(|s| s.ring_submissions_max = Some(100))),
        ("`ring_argument_words`", "power of two", message(|s| s.ring_argument_words = Some(17))),
        ("`quotas.sessions`", "each user", message(|s| s.quotas.sessions = Some(0))),
        ("`quotas.region_mib`", "MiB", message(|s| s.quotas.region_mib = Some(0))),
        ("`listen`", "cluster_key_file", message(|s| s.listen = text("10.0.0.1"))),
        ("`advertise`", "cluster_key_file", message(|s| s.advertise = text("10.0.0.1"))),
        ("`rails`", "cluster_key_file", message(|s| s.rails = Some(vec!["10.0.0.1".to_owned()]))),
        ("`channels`", "cluster_key_file", message(|s| s.channels = Some(2))),
        ("`cluster_key_file`", "od -An", message(|s| s.cluster_key_file = text("/nonexistent/key"))),
    ];
    for (setting, allowed, message) in cases {
        assert!(message.contains(setting) && message.contains(allowed), "{message}");
    }
}

#[test]
fn rdma_hardware_is_chosen_by_name_port_and_address() {
    use DeviceKind::{Tcp, Verbs};
    let none = Selector::default();
    let one = Selector { device: Some("mlx5_0".to_owned()), port: Some(1), gid: Some(3) };
    let some = Selector { device: Some("rxe0".to_owned()), ..none.clone() };
    for (device, kinds, selector) in [
        ("verbs", &[Verbs][..], &none),
        ("tcp", &[Tcp], &none),
        ("verbs:rxe0", &[Verbs], &some),
        ("verbs:mlx5_0:1:3,tcp", &[Verbs, Tcp], &one),
        ("tcp, verbs:mlx5_0:1:3", &[Tcp, Verbs], &one),
    ] {
        let settings = Settings { device: Some(device.to_owned()), ..Settings::default() };
        let config = settings.resolve().expect(device);
        assert_eq!(config.device, DeviceChoice::Listed(kinds.to_vec()), "{device}");
        assert_eq!(config.verbs.selector, *selector, "{device}");
    }
    // One for each rail.
    let of = |device: &str| Settings { device: Some(device.to_owned()), ..Settings::default() }.resolve();
    let config = of("verbs:mlx5_0:1:3, verbs:rxe0,tcp").expect("two ports");
    assert_eq!(config.device, DeviceChoice::Listed(vec![Verbs, Tcp]));
    assert_eq!(config.verbs_ports, [one, some]);
    for device in ["verbs,verbs", "verbs,verbs:rxe0", "verbs:rxe0,verbs"] {
        assert!(of(device).is_err(), "{device}");
    }
    assert_eq!(Settings::default().resolve().expect("the defaults").verbs.selector, none);
}

#[test]
fn relaxed_ordering_is_asked_for_unless_it_is_off() {
    use RelaxedOrdering::{Auto, Off, On};
    for (word, ordering) in [(None, Auto), (Some("auto"), Auto), (Some("on"), On), (Some("off"), Off)] {
        let given = word.map(str::to_owned);
        let settings = Settings { verbs_relaxed_ordering: given, ..Settings::default() };
        assert_eq!(settings.resolve().expect("a word").verbs.relaxed_ordering, ordering, "{word:?}");
    }
}

fn key_file(name: &str, mode: u32, content: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("ringway-key-{}-{name}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(mode).open(&path).expect("create");
    file.write_all(content.as_bytes()).expect("write");
    path
}

#[test]
fn a_key_turns_the_network_on() {
    let path = key_file("good", 0o600, &"5a".repeat(32));
    let mut settings = Settings { cluster_key_file: Some(path.display().to_string()), ..Settings::default() };
    let network = settings.clone().resolve().expect("resolve").network.expect("network");
    assert_eq!(network.listen.to_string(), "0.0.0.0:7411");
    assert!(!network.advertise.ip().is_unspecified());
    assert_eq!(network.cluster_key.bytes(), &[0x5a; 32]);

    settings.listen = Some("127.0.0.1:9000".to_owned());
    let network = settings.clone().resolve().expect("resolve").network.expect("network");
    assert_eq!(network.advertise.to_string(), "127.0.0.1:9000");

    settings.listen = Some("localhost:9000".to_owned());
    let message = settings.resolve().expect_err("a name").to_string();
    assert!(
        message.contains("`listen` is `localhost:9000`") && message.contains("10.0.0.1:7411"),
        "{message}"
    );
    std::fs::remove_file(path).expect("remove");
}

#[test]
fn rails_are_addresses_with_as_many_channels_on_each() {
    let path = key_file("rails", 0o600, &"5a".repeat(32));
    let settings = |rails: &[&str], channels| Settings {
        cluster_key_file: Some(path.display().to_string()),
        rails: (!rails.is_empty()).then(|| rails.iter().map(|rail| (*rail).to_owned()).collect()),
        channels,
        ..Settings::default()
    };
    let two = ["10.0.0.1", "fd00::1"];
    for (rails, channels, each) in
        [(&[][..], None, 1), (&[], Some(3), 3), (&two, None, 1), (&two, Some(2), 1), (&two, Some(8), 4)]
    {
        let network = settings(rails, channels).resolve().expect("resolve").network.expect("network");
        assert_eq!(network.channels_per_rail, each, "{rails:?} {channels:?}");
        let of_rails = network.of_rails();
        assert_eq!(of_rails.len(), rails.len().max(1));
        for (one, rail) in of_rails.iter().zip(rails) {
            assert_eq!(one.listen, SocketAddr::new(rail.parse().expect("an address"), DEFAULT_PORT));
            assert_eq!(one.advertise, one.listen);
        }
    }
    let nine: Vec<String> = (1..=9).map(|n| format!("10.0.0.{n}")).collect();
    let nine: Vec<&str> = nine.iter().map(String::as_str).collect();
    for (rails, channels, said) in [
        (&["10.0.0.1:7411"][..], None, "without ports"),
        (&["10.0.0.1", "10.0.0.1"], None, "each once"),
        (&nine, None, "1 to 8 addresses"),
        (&["10.0.0.1", "0.0.0.0"], None, "one network card each"),
        (&two, Some(3), "each of the 2 rails"),
        (&two, Some(10), "each of the 2 rails"),
        (&[], Some(0), "1 to 8 in all"),
        (&[], Some(9), "1 to 8 in all"),
    ] {
        let error = settings(rails, channels).resolve().expect_err("refused").to_string();
        assert!(error.contains(said), "{error}");
    }
    let one_interface = Settings { roce_interface: Some("eth0".to_owned()), ..settings(&two, None) };
    let error = one_interface.resolve().expect_err("refused").to_string();
    assert!(error.contains("leave out `roce_interface`"), "{error}");
    std::fs::remove_file(path).expect("remove");
}

#[test]
fn keys_that_others_can_read_or_that_are_no_keys_are_refused() {
    for (name, mode, content, part) in [
        ("open", 0o644, "5a".repeat(32), "chmod 600"),
        ("short", 0o600, "5a".repeat(8), "64 hex digits"),
        ("rubbish", 0o600, "zz".repeat(32), "64 hex digits"),
    ] {
        let path = key_file(name, mode, &content);
        let message = message(|s| s.cluster_key_file = Some(path.display().to_string()));
        assert!(message.contains("`cluster_key_file`") && message.contains(part), "{message}");
        assert!(!message.contains(&content), "{message}");
        std::fs::remove_file(path).expect("remove");
    }
}

#[test]
fn files_with_unknown_settings_or_wrong_types_are_refused_with_the_line() {
    for (name, content, part) in [
        ("unknown", "socket = \"/x\"\npoling = \"spin\"\n", "poling"),
        ("type", "spin_us = \"many\"\n", "spin_us"),
        ("toml", "socket = \n", "line 1"),
        ("quota", "[quotas]\nregion_gib = 3\n", "region_gib"),
    ] {
        let path = key_file(name, 0o600, content);
        let message = Settings::read(&path).expect_err("must be refused").to_string();
        assert!(message.contains(part) && message.contains(&path.display().to_string()), "{message}");
        std::fs::remove_file(path).expect("remove");
    }
    assert!(
        Settings::read(Path::new("/nonexistent"))
            .expect_err("no file")
            .to_string()
            .contains("cannot be read")
    );
}
