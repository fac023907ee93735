//! Half round trip and goodput of the tcp device on loopback beside those of bare TCP sockets, in one run.
//!
//! `cargo run --release -p ringway-tcp --example pingpong`
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a measurement at the terminal")]

use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::os::fd::OwnedFd;
use std::thread;

use ringway_sim::ping_pong::{Amount, ping_pong, ping_pong_over_tcp};
use ringway_tcp::{PREFACE_LENGTH, Preface, TcpConfig, TcpDevice, TcpDriver, ZeroCopy};
use ringway_verbs::Device;

/// Makes the device with a listener, of which a thread accepts the connection.
fn device(driver: TcpDriver, zero_copy: ZeroCopy) -> TcpDevice {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut config = TcpConfig::new(listener.local_addr().unwrap());
    config.driver = driver;
    config.zero_copy = zero_copy;
    let (device, acceptor) = TcpDevice::new(config).unwrap();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut preface = [0; PREFACE_LENGTH];
        stream.read_exact(&mut preface).unwrap();
        acceptor.offer(Preface::parse(&preface).unwrap(), OwnedFd::from(stream)).unwrap();
    });
    device
}

fn main() {
    let figures = ping_pong_over_tcp(IpAddr::from(Ipv4Addr::LOCALHOST), Amount::default(), |_| ());
    println!("{:<24} {figures}", "bare, spinning");
    let asked = [
        (TcpDriver::IoUring, ZeroCopy::WherePays, "tcp device"),
        (TcpDriver::IoUring, ZeroCopy::Never, "copying always"),
        (TcpDriver::IoUring, ZeroCopy::Always, "never, if it can"),
        (TcpDriver::Epoll, ZeroCopy::Never, "tcp-epoll device"),
    ];
    for (driver, zero_copy, name) in asked {
        let (figures, devices) = ping_pong([device(driver, zero_copy), device(driver, zero_copy)]);
        println!("{name:<24} {figures}");
        for device in devices {
            let mut counts = Vec::new();
            device.for_each_counter(&mut |name, value| {
                counts.push(format!("{} {value}", name.replace('_', " ")))
            });
            println!("{:<24} {}", "", counts.join(", "));
        }
    }
}
