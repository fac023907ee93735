//! What no file tells: it is tried, and undone at once.

use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};

use ringway_client::cuda;
use ringway_mem::MemFd;
use ringway_roce::{Link as _, LinkError, UdpConfig, UdpLink, XdpConfig, XdpLink, ZeroCopy};
use ringway_shm::{ShmConfig, ShmDevice};
use ringway_tcp::{Congestion, TcpConfig, TcpDevice, TcpDriver, TcpError};

/// What came of it.
#[derive(Debug)]
pub(in crate::doctor) struct Tried {
    /// The node's address, as a daemon would have it.
    pub(in crate::doctor) address: IpAddr,
    /// The interface that has it.
    pub(in crate::doctor) interface: Result<String, String>,
    /// Memory that processes can share.
    pub(in crate::doctor) memory: Result<(), String>,
    /// The device for daemons of one host.
    pub(in crate::doctor) shm: Result<(), String>,
    /// A connection to this host itself, and the device over ordinary sockets.
    pub(in crate::doctor) sockets: Result<(), String>,
    /// The device over io_uring.
    pub(in crate::doctor) io_uring: Result<(), TcpError>,
    /// What connections would have.
    pub(in crate::doctor) congestion: Option<String>,
    /// RoCE over AF_XDP at the address, as `auto` wants it: where the driver does without copies.
    pub(in crate::doctor) roce_xdp: Result<(), LinkError>,
    /// RoCE over UDP at the address: how many bytes packets carry.
    pub(in crate::doctor) roce_udp: Result<usize, LinkError>,
    /// Whether this program has a device for RDMA hardware.
    pub(in crate::doctor) has_verbs: bool,
    /// How many bytes packets of RDMA ports carry at the moment, by device and port, of those that could be asked.
    pub(in crate::doctor) rdma_packets: Vec<(String, u8, usize)>,
    /// The GPUs that the CUDA driver shows to this process.
    pub(in crate::doctor) cuda: Result<Vec<cuda::Listed>, String>,
}

impl Tried {
    /// Tries everything, for a node with this address.
    pub(in crate::doctor) fn at(address: IpAddr) -> Self {
        let interface = ringway_roce::interface_of(address).map_err(|error| error.to_string());
        Self {
            memory: MemFd::region("ringway-doctor", 64 << 10).map(drop).map_err(|error| error.to_string()),
            shm: ShmDevice::new(ShmConfig::default()).map(drop).map_err(|error| error.to_string()),
            sockets: loopback()
                .and_then(|()| device(TcpDriver::Epoll, address).map_err(|error| error.to_string())),
            io_uring: device(TcpDriver::IoUring, address),
            congestion: Congestion::Unpaced.name().ok(),
            roce_udp: UdpLink::new(UdpConfig::new(address)).map(|link| link.mtu().bytes()),
            roce_xdp: XdpLink::check(&XdpConfig { zero_copy: ZeroCopy::Required, ..XdpConfig::new(address) }),
            has_verbs: cfg!(feature = "verbs"),
            rdma_packets: rdma_packets(),
            cuda: cuda::list().map_err(|error| error.to_string()),
            address,
            interface,
        }
    }
}

fn device(driver: TcpDriver, address: IpAddr) -> Result<(), TcpError> {
    let mut config = TcpConfig::new((address, 0).into());
    config.driver = driver;
    TcpDevice::new(config).map(drop)
}

fn loopback() -> Result<(), String> {
    let connect = || TcpStream::connect(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?);
    connect().map(drop).map_err(|error| format!("a TCP connection over loopback fails: {error}"))
}

#[cfg(feature = "verbs")]
fn rdma_packets() -> Vec<(String, u8, usize)> {
    let ports = ringway_ibverbs::ports().unwrap_or_default().into_iter();
    let asked = ports.filter(ringway_ibverbs::Port::is_active).filter_map(|port| {
        let bytes = ringway_ibverbs::IbverbsDevice::packet_bytes_at(&port.device, port.number).ok()?;
        Some((port.device, port.number, bytes))
    });
    asked.collect()
}

#[cfg(not(feature = "verbs"))]
fn rdma_packets() -> Vec<(String, u8, usize)> {
    Vec::new()
}
