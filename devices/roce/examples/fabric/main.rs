//! The device beside spinning TCP sockets and bare AF_XDP frames, over one veth pair between two network namespaces. See
//! `README.md` beside this file.
//!
//! `cargo run --release -p ringway-roce --example fabric [-- [--quick] [--json] [--rounds N] [--only KIND,...] [--small N]
//! [--large N]]`, as root
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a measurement at the terminal")]

mod bare;
mod figures;
mod frames;
#[path = "../../tests/namespaces/mod.rs"]
mod namespaces;

use std::env;

use ringway_roce::{Link, RoceConfig, RoceDevice, UdpConfig, UdpLink, XdpConfig, XdpLink};
use ringway_sim::ping_pong::{Amount, ping_pong_between};
use ringway_wrap::{FaultSpec, Faulty};

use self::{
    figures::{Figures, median},
    namespaces::Node,
};

/// What carries a packet of 4096 bytes and TCP's as well; AF_XDP takes 2048 of it, as a frame must fit a page.
const INTERFACE_MTU: usize = 9000;
const LOSS: f64 = 0.01;

/// What is measured, in this order in every round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Tcp,
    BareUdp,
    BareXdp,
    Udp,
    Xdp,
    UdpLossy,
    XdpLossy,
}

const KINDS: [Kind; 7] =
    [Kind::Tcp, Kind::BareUdp, Kind::BareXdp, Kind::Udp, Kind::Xdp, Kind::UdpLossy, Kind::XdpLossy];

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::BareUdp => "bare-udp",
            Self::BareXdp => "bare-xdp",
            Self::Udp => "roce-udp",
            Self::Xdp => "roce-xdp",
            Self::UdpLossy => "roce-udp-lossy",
            Self::XdpLossy => "roce-xdp-lossy",
        }
    }

    fn measure(self, nodes: &[Node; 2], amount: Amount) -> Figures {
        match self {
            Self::Tcp => bare::tcp(nodes, amount),
            Self::BareUdp => bare::link(nodes, amount, udp),
            Self::BareXdp => bare::link(nodes, amount, xdp),
            Self::Udp => device(nodes, amount, udp),
            Self::Xdp => device(nodes, amount, xdp),
            Self::UdpLossy => device(nodes, amount, |node| lossy(udp(node))),
            Self::XdpLossy => device(nodes, amount, |node| lossy(xdp(node))),
        }
    }
}

fn udp(node: &Node) -> Box<dyn Link> {
    Box::new(UdpLink::new(UdpConfig::new(node.address(false))).unwrap())
}

fn xdp(node: &Node) -> Box<dyn Link> {
    Box::new(XdpLink::new(XdpConfig::new(node.address(false))).unwrap())
}

fn lossy(link: Box<dyn Link>) -> Box<dyn Link> {
    Box::new(Faulty::new(link, FaultSpec { loss: LOSS, seed: 7, ..FaultSpec::default() }))
}

fn device(nodes: &[Node; 2], amount: Amount, open: impl Fn(&Node) -> Box<dyn Link> + Sync) -> Figures {
    let devices = nodes
        .each_ref()
        .map(|node| RoceDevice::new(node.inside(|| open(node)), RoceConfig::new("roce")).unwrap());
    let (found, devices) = ping_pong_between(devices, amount, |side| nodes[side].enter());
    Figures::of(&found).with(devices.each_ref().map(RoceDevice::counters))
}

/// A requirement: one kind's figure over another's, within a bound.
struct Ratio {
    what: &'static str,
    kinds: [Kind; 2],
    figure: fn(&Figures) -> f64,
    least: f64,
    most: f64,
}

const HALF_ROUND_TRIP: fn(&Figures) -> f64 = |figures| figures.half_round_trip_us;
const GOODPUT: fn(&Figures) -> f64 = |figures| figures.goodput_gbps;

const fn at_most(what: &'static str, kinds: [Kind; 2], most: f64) -> Ratio {
    Ratio { what, kinds, figure: HALF_ROUND_TRIP, least: 0.0, most }
}

const fn at_least(what: &'static str, kinds: [Kind; 2], least: f64) -> Ratio {
    Ratio { what, kinds, figure: GOODPUT, least, most: f64::INFINITY }
}

const RATIOS: [Ratio; 7] = [
    at_most("8 B half round trip, roce-xdp to tcp", [Kind::Xdp, Kind::Tcp], 0.5),
    at_most("8 B half round trip, roce-xdp to bare-xdp", [Kind::Xdp, Kind::BareXdp], 1.3),
    at_most("8 B half round trip, roce-udp to tcp", [Kind::Udp, Kind::Tcp], 0.9),
    at_least("1 MiB goodput, roce-xdp to bare-xdp", [Kind::Xdp, Kind::BareXdp], 0.85),
    at_least("1 MiB goodput, roce-udp to tcp", [Kind::Udp, Kind::Tcp], 1.0),
    at_least("1 MiB goodput, roce-udp with 1 % loss to without", [Kind::UdpLossy, Kind::Udp], 0.5),
    at_least("1 MiB goodput, roce-xdp with 1 % loss to without", [Kind::XdpLossy, Kind::Xdp], 0.5),
];

/// What was measured in one round, by kind.
type Round = Vec<(Kind, Figures)>;

fn figure(round: &Round, kind: Kind, of: fn(&Figures) -> f64) -> Option<f64> {
    round.iter().find(|(found, _)| *found == kind).map(|(_, figures)| of(figures))
}

fn report(rounds: &[Round], kinds: &[Kind], json: bool) {
    for kind in kinds {
        let of = |figure_of| median(rounds.iter().filter_map(|round| figure(round, *kind, figure_of)));
        let (name, half, goodput) = (kind.name(), of(HALF_ROUND_TRIP), of(GOODPUT));
        let frames = of(|figures| figures.frame_gbps);
        if json {
            println!(
                r#"{{"kind":"{name}","half_round_trip_us":{half:.3},"goodput_gbps":{goodput:.3},"frame_gbps":{frames:.3}}}"#
            );
        } else {
            let frames = if frames > 0.0 { format!(", {frames:.2} Gb/s of frames") } else { String::new() };
            println!("{name:<16} {half:8.2} us {goodput:8.2} Gb/s{frames}");
        }
    }
    for Ratio { what, kinds: [one, other], figure: of, least, most } in &RATIOS {
        let ratios: Vec<f64> = rounds
            .iter()
            .filter_map(|round| Some(figure(round, *one, *of)? / figure(round, *other, *of)?))
            .collect();
        if ratios.is_empty() {
            continue;
        }
        let ratio = median(ratios.into_iter());
        let met = ratio >= *least && ratio <= *most;
        let bound = if *least > 0.0 { format!(">= {least}") } else { format!("<= {most}") };
        if json {
            println!(r#"{{"ratio":"{what}","median":{ratio:.3},"bound":"{bound}","met":{met}}}"#);
        } else {
            println!("{what:<52} {ratio:5.2} ({bound}){}", if met { "" } else { "  MISSED" });
        }
    }
}

fn main() {
    let words: Vec<String> = env::args().skip(1).collect();
    let has = |word: &str| words.iter().any(|found| found == word);
    let value = |name: &str| words.iter().skip_while(|word| *word != name).nth(1);
    let (json, quick) = (has("--json"), has("--quick"));
    let number = |name: &str, usual: usize| value(name).map_or(usual, |text| text.parse().unwrap());
    let amount = Amount {
        rounds: number("--small", if quick { 10_000 } else { 20_000 }),
        large_count: number("--large", if quick { 300 } else { 1000 }) as u64,
        ..Amount::default()
    };
    let count = number("--rounds", if quick { 3 } else { 5 });
    let only = value("--only");
    let kinds: Vec<Kind> = KINDS
        .into_iter()
        .filter(|kind| only.is_none_or(|only| only.split(',').any(|n| n == kind.name())))
        .collect();
    let Some(nodes) = namespaces::network(INTERFACE_MTU, 1) else { return };
    let mut rounds = Vec::new();
    for _ in 0..count {
        let mut round = Vec::new();
        for kind in &kinds {
            let figures = kind.measure(&nodes, amount);
            if !json {
                println!("{:<16} {figures}", kind.name());
            }
            round.push((*kind, figures));
        }
        rounds.push(round);
    }
    report(&rounds, &kinds, json);
}
