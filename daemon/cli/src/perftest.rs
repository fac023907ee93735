//! `ringway perftest`: measures against any RDMA host.

use std::{net::IpAddr, path::PathBuf, process::ExitCode};

use clap::{Args, ValueEnum};
use ringway_perftest::{Options, Report, Row, Test, Verb};
use ringway_roce::{Link, UdpConfig, UdpLink, XdpConfig, XdpLink, ZeroCopy};
use ringway_wire::{PathMtu, Psn};
use ringway_wrap::{Capture, FaultSpec, Faulty};
use serde::Serialize;

use crate::output;

/// Measure against any RDMA host that runs perftest.
///
/// One side is this, the other may be ib_send_lat, ib_send_bw, ib_write_lat, ib_write_bw, ib_read_lat, ib_read_bw,
/// ib_atomic_lat or ib_atomic_bw of perftest 4.5 or later, with its options for RoCE version 2 (`-x`), or this as
/// well. Give both sides the same test, -s, -n and -q. Without PEER this is the server; it ends after one client.
#[derive(Debug, Args)]
pub struct PerftestArgs {
    /// send-lat, send-bw, write-lat, write-bw, read-lat, read-bw, atomic-lat or atomic-bw.
    test: Test,
    /// The server's address or name; none to be the server.
    peer: Option<String>,
    /// Bytes of a message [default: 2 for latency, 65536 for bandwidth].
    #[arg(short, long, value_name = "BYTES", conflicts_with = "all")]
    size: Option<u64>,
    /// Every power of two from 2 to 8388608.
    #[arg(short, long)]
    all: bool,
    /// Messages of each queue pair [default: 1000 for latency, 5000 for bandwidth].
    #[arg(short = 'n', long, value_name = "COUNT")]
    iters: Option<u64>,
    /// Queue pairs, in bandwidth tests.
    #[arg(short, long, value_name = "COUNT", default_value_t = 1)]
    qp: usize,
    /// Path MTU: 256, 512, 1024, 2048 or 4096 [default: what the interface and the peer can].
    #[arg(short, long, value_name = "BYTES", value_parser = path_mtu)]
    mtu: Option<PathMtu>,
    /// What carries packets: UDP sockets, or AF_XDP, past the kernel's network stack; `auto` takes AF_XDP where the
    /// interface's driver does without copying.
    #[arg(short, long, value_enum, default_value = "auto")]
    device: RoceKind,
    /// This side's address, as perftest's GID index [default: that of the TCP connection].
    #[arg(short = 'x', long, value_name = "ADDRESS")]
    address: Option<IpAddr>,
    /// The server's TCP port.
    #[arg(short, long, default_value_t = 18515)]
    port: u16,
    /// Messages outstanding on a queue pair [default: 1 for latency, 128 for bandwidth].
    #[arg(short, long, value_name = "COUNT")]
    tx_depth: Option<u32>,
    /// Receives posted on a queue pair.
    #[arg(short, long, value_name = "COUNT", default_value_t = 512)]
    rx_depth: u32,
    /// READs and atomics outstanding on a queue pair.
    #[arg(short, long, value_name = "COUNT", default_value_t = 16)]
    outs: u8,
    /// ACK timeout: 4.096 us * 2^N.
    #[arg(short = 'u', long, value_name = "N", default_value_t = 14)]
    qp_timeout: u8,
    /// What atomic tests do.
    #[arg(short = 'A', long, value_enum, default_value = "FETCH_AND_ADD")]
    atomic_type: Atomic,
    /// PSN of the first request [default: any].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(..1 << 24))]
    first_psn: Option<u32>,
    /// Check that what comes are the bytes that perftest sends.
    #[arg(long)]
    check: bool,
    /// Do to incoming packets what bad networks do: `loss=0.01,seed=7`.
    #[arg(long, value_name = "SPEC")]
    fault: Option<FaultSpec>,
    /// Write every packet to a file for Wireshark.
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// What carries packets.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum RoceKind {
    Auto,
    RoceUdp,
    RoceXdp,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
#[value(rename_all = "SCREAMING_SNAKE_CASE")]
enum Atomic {
    FetchAndAdd,
    CmpAndSwap,
}

fn path_mtu(text: &str) -> Result<PathMtu, String> {
    let mtu = text.parse().ok().and_then(PathMtu::from_bytes);
    mtu.ok_or_else(|| "must be 256, 512, 1024, 2048 or 4096".to_owned())
}

impl PerftestArgs {
    fn options(&self) -> Options {
        let mut test = self.test;
        if matches!((test.verb, self.atomic_type), (Verb::FetchAdd, Atomic::CmpAndSwap)) {
            test.verb = Verb::CompareSwap;
        }
        let usual = Options::new(test);
        Options {
            bytes: if self.all { None } else { self.size.or(usual.bytes) },
            iterations: self.iters.unwrap_or(usual.iterations),
            queue_pairs: self.qp,
            send_depth: self.tx_depth.unwrap_or(usual.send_depth),
            receive_depth: self.rx_depth,
            reads: self.outs,
            mtu: self.mtu,
            timeout: self.qp_timeout,
            first_psn: self.first_psn.map(Psn::new),
            address: self.address,
            check: self.check,
            ..usual
        }
    }

    /// The link, in whatever is to be around it, and what it is.
    fn link(&self, address: IpAddr) -> Result<(Box<dyn Link>, String), String> {
        let (mut link, described) = match self.device {
            RoceKind::RoceUdp => udp(address)?,
            RoceKind::RoceXdp => xdp(XdpConfig::new(address))?,
            RoceKind::Auto => self.best(address)?,
        };
        if let Some(file) = &self.pcap {
            let capture = Capture::create(link, file);
            link = Box::new(capture.map_err(|error| format!("cannot write {}: {error}", file.display()))?);
        }
        if let Some(spec) = self.fault {
            link = Box::new(Faulty::new(link, spec));
        }
        Ok((link, described))
    }

    /// AF_XDP where nothing is copied and packets may be as long as was asked for, else UDP sockets.
    fn best(&self, address: IpAddr) -> Result<(Box<dyn Link>, String), String> {
        let config = XdpConfig { zero_copy: ZeroCopy::Required, ..XdpConfig::new(address) };
        let why_not = match xdp(config) {
            Ok((link, _)) if self.mtu.is_some_and(|wished| wished > link.mtu()) => {
                format!("its packets carry {} bytes", link.mtu().bytes())
            }
            Ok(best) => return Ok(best),
            Err(reason) => reason,
        };
        let (link, described) = udp(address)?;
        Ok((link, format!("{described}; not AF_XDP: {why_not}")))
    }
}

fn udp(address: IpAddr) -> Result<(Box<dyn Link>, String), String> {
    let link = UdpLink::new(UdpConfig::new(address)).map_err(|error| error.to_string())?;
    Ok((Box::new(link), "UDP sockets".to_owned()))
}

fn xdp(config: XdpConfig) -> Result<(Box<dyn Link>, String), String> {
    let link = XdpLink::new(config).map_err(|error| error.to_string())?;
    let described = link.describe();
    Ok((Box::new(link), described))
}

/// The report as JSON.
#[derive(Debug, Serialize)]
struct Told<'a> {
    link: &'a str,
    #[serde(flatten)]
    report: &'a Report,
}

/// Runs the test and prints its results.
///
/// # Errors
/// When it fails, as a sentence.
pub fn perftest(args: &PerftestArgs) -> Result<ExitCode, String> {
    let options = args.options();
    options.check().map_err(|error| error.to_string())?;
    // Where the address is given, what is wrong with it need not wait for a client.
    let given = options.address.map(|address| args.link(address)).transpose()?;
    let channel = match &args.peer {
        Some(peer) => ringway_perftest::connect(peer, args.port),
        None => {
            if !args.json {
                output::line(&format!("waiting for a client on TCP port {}", args.port));
            }
            ringway_perftest::accept(args.port)
        }
    };
    let channel = channel.map_err(|error| error.to_string())?;
    let own = channel.local_address().map_err(|error| error.to_string())?;
    let (link, described) = given.map_or_else(|| args.link(own), Ok)?;
    let latency = options.test.latency;
    let report = ringway_perftest::run(options, channel, link).map_err(|error| error.to_string())?;
    if args.json {
        let told = Told { link: &described, report: &report };
        let text = serde_json::to_string_pretty(&told).map_err(|error| error.to_string())?;
        output::line(&text);
    } else {
        output::line(&described);
        output::line(Row::heading(latency));
        report.rows.iter().for_each(|row| output::line(&row.line()));
    }
    Ok(ExitCode::SUCCESS)
}
