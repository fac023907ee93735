//! Half round trip and goodput of the RoCE device over UDP on loopback, both ends spinning, with selective
//! acknowledgement and as toward any other peer. Say `WINDOW=64` or `SLACK_US=100` to try others than the defaults.
//!
//! `cargo run --release -p ringway-roce --example device`
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a measurement at the terminal")]

use std::{env, net::Ipv4Addr};

use ringway_roce::{RoceConfig, RoceDevice, UdpConfig, UdpLink};
use ringway_sim::ping_pong::ping_pong;

fn device(name: &str, config: RoceConfig) {
    let (figures, [one, two]) = ping_pong([1, 2].map(|last| {
        let link = UdpLink::new(UdpConfig::new(Ipv4Addr::new(127, 99, 99, last).into())).unwrap();
        RoceDevice::new(link, config).unwrap()
    }));
    println!("{name:<24} {figures}\n{:?}\n{:?}", one.counters(), two.counters());
}

fn number<T: std::str::FromStr>(name: &str, usual: T) -> T {
    env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

fn main() {
    let usual = RoceConfig::new("roce-udp");
    let config = RoceConfig {
        window: number("WINDOW", usual.window),
        delay_slack_ns: number("SLACK_US", usual.delay_slack_ns / 1000) * 1000,
        ..usual
    };
    device("selective", config);
    device("go-back-N", RoceConfig { selective: false, ..config });
}
