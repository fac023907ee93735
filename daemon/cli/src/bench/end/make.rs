//! The devices that an end can have in its own process.

use std::{
    io::{self, Read as _},
    net::{IpAddr, TcpListener},
    sync::Arc,
    thread,
};

use ringway_mem::Mapping;
use ringway_roce::{Link, LinkError, RoceConfig, RoceDevice, UdpConfig, UdpLink, XdpConfig, XdpLink};
use ringway_shm::{ShmConfig, ShmDevice};
use ringway_tcp::{PREFACE_LENGTH, Preface, TcpConfig, TcpDevice, TcpDriver};
use ringway_verbs::Device;

/// A device of any kind.
pub(super) type AnyDevice = Box<dyn Device<Region = Arc<Mapping>>>;

/// Makes the device of this name at this address.
pub(super) fn device(name: &str, address: IpAddr, port: u16) -> Result<AnyDevice, String> {
    match name {
        "shm" => Ok(Box::new(ShmDevice::new(ShmConfig::default()).map_err(|e| e.to_string())?)),
        "roce-udp" => {
            roce("roce-udp", UdpLink::new(UdpConfig { port, ..UdpConfig::new(address) }).map(Box::new))
        }
        "roce-xdp" => {
            roce("roce-xdp", XdpLink::new(XdpConfig { port, ..XdpConfig::new(address) }).map(Box::new))
        }
        #[cfg(feature = "verbs")]
        "verbs" => {
            let config =
                ringway_ibverbs::IbverbsConfig::new(ringway_ibverbs::Selector::default(), Some(address));
            Ok(Box::new(ringway_ibverbs::IbverbsDevice::open(config).map_err(|e| e.to_string())?))
        }
        "tcp" => tcp(TcpDriver::IoUring, address),
        "tcp-epoll" => tcp(TcpDriver::Epoll, address),
        _ => Err(format!("there is no device `{name}`")),
    }
}

fn roce<L: Link + 'static>(name: &'static str, link: Result<Box<L>, LinkError>) -> Result<AnyDevice, String> {
    let link = link.map_err(|e| e.to_string())?;
    Ok(Box::new(RoceDevice::new(link, RoceConfig::new(name)).map_err(|e| e.to_string())?))
}

/// A device whose only connection, if the other end opens it, a thread accepts.
fn tcp(driver: TcpDriver, address: IpAddr) -> Result<AnyDevice, String> {
    let failed = |error: io::Error| format!("cannot listen on {address}: {error}");
    let listener = TcpListener::bind((address, 0)).map_err(failed)?;
    let mut config = TcpConfig::new(listener.local_addr().map_err(failed)?);
    (config.source, config.driver) = (Some(address), driver);
    let (device, acceptor) = TcpDevice::new(config).map_err(|e| e.to_string())?;
    acceptor.prepare(&listener).map_err(failed)?;
    thread::spawn(move || -> Option<()> {
        let (mut stream, _) = listener.accept().ok()?;
        let mut preface = [0; PREFACE_LENGTH];
        stream.read_exact(&mut preface).ok()?;
        // Without the connection the end says that it could not connect.
        acceptor.offer(Preface::parse(&preface)?, stream.into()).ok()
    });
    Ok(Box::new(device))
}
