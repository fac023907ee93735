//! The devices that an end can have in its own process.

use std::{
    io::{self, Read as _},
    net::{IpAddr, TcpListener, TcpStream},
    sync::Arc,
    thread,
};

use ringway_mem::Mapping;
use ringway_roce::{Link, LinkError, RoceConfig, RoceDevice, UdpConfig, UdpLink, XdpConfig, XdpLink};
use ringway_shm::{ShmConfig, ShmDevice};
use ringway_tcp::{PREFACE_LENGTH, Preface, TcpAcceptor, TcpConfig, TcpDevice, TcpDriver};
use ringway_verbs::Device;

use super::sockets::SAYING;

/// A device of any kind.
pub(super) type AnyDevice = Box<dyn Device<Region = Arc<Mapping>>>;

/// A device, and how often the kernel copies each byte at this end, if the device knows that better than the path's definition.
type Made = (AnyDevice, Option<f64>);

/// Makes the device of this name at this address; `port` is for those that have packets, `connections` for those over TCP: how many
/// it has with the other end if it opens them.
pub(super) fn device(name: &str, address: IpAddr, port: u16, connections: u32) -> Result<Made, String> {
    let device = match name {
        "shm" => ShmDevice::new(ShmConfig::default())
            .map(|device| Box::new(device) as AnyDevice)
            .map_err(|e| e.to_string()),
        "roce-udp" => {
            roce("roce-udp", UdpLink::new(UdpConfig { port, ..UdpConfig::new(address) }).map(Box::new))
        }
        "roce-xdp" => {
            let link =
                XdpLink::new(XdpConfig { port, ..XdpConfig::new(address) }).map_err(|e| e.to_string())?;
            let copies = if link.is_zero_copy() { 0.0 } else { 1.0 };
            return Ok((roce("roce-xdp", Ok(Box::new(link)))?, Some(copies)));
        }
        #[cfg(feature = "verbs")]
        "verbs" => {
            let config =
                ringway_ibverbs::IbverbsConfig::new(ringway_ibverbs::Selector::default(), Some(address));
            ringway_ibverbs::IbverbsDevice::open(config)
                .map(|device| Box::new(device) as AnyDevice)
                .map_err(|e| e.to_string())
        }
        "tcp" => tcp(TcpDriver::IoUring, address, connections),
        "tcp-epoll" => tcp(TcpDriver::Epoll, address, connections),
        _ => Err(format!("there is no device `{name}`")),
    };
    Ok((device?, None))
}

fn roce<L: Link + 'static>(name: &'static str, link: Result<Box<L>, LinkError>) -> Result<AnyDevice, String> {
    let link = link.map_err(|e| e.to_string())?;
    Ok(Box::new(RoceDevice::new(link, RoceConfig::new(name)).map_err(|e| e.to_string())?))
}

fn tcp(driver: TcpDriver, address: IpAddr, connections: u32) -> Result<AnyDevice, String> {
    let failed = |error: io::Error| format!("cannot listen on {address}: {error}");
    tcp_behind(TcpListener::bind((address, 0)).map_err(failed)?, driver, connections)
        .map_err(|e| format!("no device at {address}: {e}"))
}

/// A device whose connections, if the other end opens them, a thread accepts, as long as the process is there.
fn tcp_behind(listener: TcpListener, driver: TcpDriver, connections: u32) -> Result<AnyDevice, String> {
    let own = listener.local_addr().map_err(|e| e.to_string())?;
    let mut config = TcpConfig::new(own);
    (config.source, config.driver, config.connections) = (Some(own.ip()), driver, connections);
    let (device, acceptor) = TcpDevice::new(config).map_err(|e| e.to_string())?;
    acceptor.prepare(&listener).map_err(|e| e.to_string())?;
    thread::spawn(move || {
        // Whoever is not the other end, or does not say so in time, is hung up on. Without its connections the end says that it
        // could not connect.
        listener.incoming().flatten().for_each(|stream| _ = offer(stream, &acceptor));
    });
    Ok(Box::new(device))
}

/// Hands on a connection on which somebody says whose it is.
fn offer(mut stream: TcpStream, acceptor: &TcpAcceptor) -> Option<()> {
    let mut preface = [0; PREFACE_LENGTH];
    stream.set_read_timeout(Some(SAYING)).ok()?;
    stream.read_exact(&mut preface).ok()?;
    stream.set_read_timeout(None).ok()?;
    acceptor.offer(Preface::parse(&preface)?, stream.into()).ok()
}

#[cfg(test)]
mod tests {
    use std::{
        net::SocketAddr,
        sync::mpsc::{Receiver, Sender, channel},
    };

    use super::{
        super::{Address, DeviceEnd, Messenger as _},
        *,
    };

    /// An end of a thread's own, connected to the one that it hears of. Whoever is connected first stays until the other one is as
    /// well, or is gone.
    fn end(
        (connections, is_active): (u32, bool),
        told: &Sender<(SocketAddr, Address)>,
        peer: &Receiver<Address>,
        (connected, other): (Sender<()>, Receiver<()>),
    ) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
        let at = listener.local_addr().expect("its address");
        let device = tcp_behind(listener, TcpDriver::Epoll, connections).expect("a device");
        let mut end = DeviceEnd::open((device, None)).expect("an end");
        told.send((at, end.address().expect("an address"))).expect("heard");
        end.connect(&peer.recv().expect("a peer"), is_active).expect("connected");
        let _ = connected.send(());
        let _ = other.recv();
    }

    /// Over as many connections as were asked for, whoever connects before.
    #[test]
    fn the_other_end_is_found_among_those_who_connect() {
        for connections in [1, 3] {
            let (tell_one, one) = channel();
            let (tell_other, other) = channel();
            let (tell, told) = channel();
            let [(first, by_first), (second, by_second)] = [channel(), channel()];
            let mut silent = None;
            thread::scope(|scope| {
                let told_by_one = tell.clone();
                scope.spawn(move || end((connections, true), &told_by_one, &one, (first, by_second)));
                let (_, one) = told.recv().expect("an end");
                scope.spawn(move || end((1, false), &tell, &other, (second, by_first)));
                let (at, other) = told.recv().expect("an end");
                silent = TcpStream::connect(at).ok();
                tell_one.send(other).expect("heard");
                tell_other.send(one).expect("heard");
            });
            assert!(silent.is_some());
        }
    }
}
