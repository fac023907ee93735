//! Checks settings.

use std::{
    net::{IpAddr, SocketAddr, UdpSocket},
    ops::RangeInclusive,
    path::{Path, PathBuf},
    time::Duration,
};

use ringway_abi::{DEFAULT_PORT, paths};
use ringway_group::CHANNELS_MAX;
use ringway_ibverbs::{IbverbsConfig, RelaxedOrdering, Selector, SelectorError};
use ringway_plan::{Preference, PreferenceError, tuner::Order};
use ringway_roce::ROCE_PORT;
use ringway_tcp::{Congestion, MAX_CONNECTIONS, ZeroCopy};
use ringway_wrap::{FaultSpec, FaultSpecError};

use super::{
    ClusterKey, Config, ConfigError, DEVICE_NAMES, DeviceChoice, DeviceKind, Isolation, LogFormat,
    NetworkConfig, PollingMode, QuotaSettings, Quotas, Settings, Users,
};

const MIB: u64 = 1 << 20;
const LOG_LEVELS: [(&str, &str); 5] =
    [("error", "error"), ("warn", "warn"), ("info", "info"), ("debug", "debug"), ("trace", "trace")];

impl Settings {
    /// Fills in the defaults, so that what is printed is what holds.
    #[must_use]
    pub fn with_defaults(self) -> Self {
        let uid = rustix::process::geteuid().as_raw();
        let xdg = std::env::var("XDG_RUNTIME_DIR").ok();
        let text = |s: &str| Some(s.to_owned());
        let half_of_memory = i64::try_from(host_memory_bytes() / 2 / MIB).unwrap_or(i64::MAX).max(1);
        let listen = self.cluster_key_file.is_some().then(|| format!("0.0.0.0:{DEFAULT_PORT}"));
        let verbs = IbverbsConfig::new(Selector::default(), None);
        self.over(Self {
            socket: Some(paths::daemon_socket(uid, xdg.as_deref())),
            users: text(if uid == 0 { "all" } else { "own" }),
            isolation: text("cell"),
            polling: text("adaptive"),
            spin_us: Some(0),
            engine_cpu: None,
            listen,
            advertise: None,
            rails: None,
            channels: None,
            cluster_key_file: None,
            device: text("auto"),
            algorithm: text("auto"),
            order: text("stable"),
            group_nodes: Some(0),
            tuning_file: None,
            link_cache: None,
            link_constants: text("measured"),
            roce_port: Some(i64::from(ROCE_PORT)),
            roce_interface: None,
            verbs_timeout: Some(verbs.timeout.into()),
            verbs_retries: Some(verbs.retries.into()),
            verbs_traffic_class: Some(verbs.traffic_class.into()),
            verbs_service_level: Some(verbs.service_level.into()),
            verbs_relaxed_ordering: text("auto"),
            tcp_busy_poll_us: Some(0),
            tcp_zero_copy: text("auto"),
            tcp_connections: Some(1),
            tcp_congestion: text("auto"),
            fault: None,
            delay_us: Some(0),
            pcap: None,
            peer_timeout_ms: Some(1000),
            plans: None,
            workspace_mib: Some(16),
            late_after_s: Some(5),
            idle_exit_s: Some(0),
            log_level: text("info"),
            log_format: text("text"),
            ring_submissions_max: Some(1024),
            ring_argument_words: Some(16 * 1024),
            quotas: QuotaSettings {
                sessions: Some(1024),
                communicators: Some(4096),
                regions: Some(4096),
                region_mib: Some(half_of_memory),
            },
        })
    }

    /// Checks every setting.
    ///
    /// # Errors
    /// [`ConfigError`] for the first setting that makes no sense: its name, its value and what is allowed.
    pub fn resolve(self) -> Result<Config, ConfigError> {
        let s = self.with_defaults();
        let (device, verbs_ports) = device(s.device.as_deref())?;
        let order = choice("order", s.order.as_deref(), &ORDERS)?;
        Ok(Config {
            socket: socket(s.socket.as_deref().unwrap_or_default())?,
            users: choice("users", s.users.as_deref(), &[("all", Users::All), ("own", Users::Own)])?,
            isolation: choice(
                "isolation",
                s.isolation.as_deref(),
                &[("cell", Isolation::Cell), ("strict", Isolation::Strict)],
            )?,
            polling: choice(
                "polling",
                s.polling.as_deref(),
                &[
                    ("spin", PollingMode::Spin),
                    ("adaptive", PollingMode::Adaptive),
                    ("block", PollingMode::Block),
                ],
            )?,
            spin: Some(number("spin_us", s.spin_us, 0..=1_000_000, "microseconds; 0 measures it at start")?)
                .filter(|us| *us > 0)
                .map(Duration::from_micros),
            engine_cpu: engine_cpu(s.engine_cpu)?,
            network: network(&s)?,
            device,
            verbs: verbs(&s, verbs_ports.first().cloned().unwrap_or_default())?,
            verbs_ports,
            algorithm: algorithm(s.algorithm.as_deref())?,
            order,
            group_nodes: group_nodes(s.group_nodes)?,
            tuning_file: s.tuning_file.as_deref().map(PathBuf::from),
            link_cache: link_cache(&s),
            measures_links: choice("link_constants", s.link_constants.as_deref(), &LINK_CONSTANTS)?,
            tcp_busy_poll_us: short_number(
                "tcp_busy_poll_us",
                s.tcp_busy_poll_us,
                0..=1_000_000,
                "microseconds; 0 leaves it to interrupts",
            )?,
            tcp_zero_copy: choice("tcp_zero_copy", s.tcp_zero_copy.as_deref(), &ZERO_COPY)?,
            tcp_connections: connections(s.tcp_connections)?,
            tcp_congestion: choice("tcp_congestion", s.tcp_congestion.as_deref(), &CONGESTIONS)?,
            fault: fault(&s)?,
            delay: Duration::from_micros(number("delay_us", s.delay_us, 0..=100_000, "microseconds")?),
            pcap: for_packets("pcap", s.pcap.as_deref(), &s)?.map(PathBuf::from),
            plans: super::plans::read(s.plans.as_deref().unwrap_or_default(), order)?,
            workspace_bytes: number("workspace_mib", s.workspace_mib, 1..=65_536, "MiB")? * MIB,
            late_after: Duration::from_secs(number("late_after_s", s.late_after_s, 1..=86_400, "seconds")?),
            idle_exit: Some(number(
                "idle_exit_s",
                s.idle_exit_s,
                0..=31_536_000,
                "seconds; 0 stays for ever",
            )?)
            .filter(|s| *s > 0)
            .map(Duration::from_secs),
            log_level: choice("log_level", s.log_level.as_deref(), &LOG_LEVELS)?,
            log_format: choice(
                "log_format",
                s.log_format.as_deref(),
                &[("text", LogFormat::Text), ("json", LogFormat::Json)],
            )?,
            ring_submissions_max: power_of_two("ring_submissions_max", s.ring_submissions_max, 2..=32_768)?,
            ring_argument_words: power_of_two("ring_argument_words", s.ring_argument_words, 16..=1_048_576)?,
            quotas: quotas(&s.quotas)?,
        })
    }
}

pub(super) fn invalid(
    setting: &'static str,
    value: impl ToString,
    allowed: impl Into<String>,
) -> ConfigError {
    ConfigError::Invalid { setting, value: value.to_string(), allowed: allowed.into() }
}

/// What `tcp_congestion` may be.
const CONGESTIONS: [(&str, Congestion); 6] = [
    ("auto", Congestion::Unpaced),
    ("system", Congestion::System),
    ("cubic", Congestion::Named("cubic")),
    ("reno", Congestion::Named("reno")),
    ("dctcp", Congestion::Named("dctcp")),
    ("bbr", Congestion::Named("bbr")),
];

fn choice<T: Copy>(setting: &'static str, value: Option<&str>, all: &[(&str, T)]) -> Result<T, ConfigError> {
    let value = value.unwrap_or_default();
    all.iter().find(|(name, _)| *name == value).map(|(_, t)| *t).ok_or_else(|| {
        let names: Vec<_> = all.iter().map(|(name, _)| format!("`{name}`")).collect();
        invalid(setting, value, format!("expected one of {}", names.join(", ")))
    })
}

fn number(
    setting: &'static str,
    value: Option<i64>,
    range: RangeInclusive<i64>,
    unit: &str,
) -> Result<u64, ConfigError> {
    let value = value.unwrap_or(*range.start());
    match u64::try_from(value) {
        Ok(number) if range.contains(&value) => Ok(number),
        _ => {
            let (low, high) = range.into_inner();
            Err(invalid(setting, value, format!("expected {low} to {high} ({unit})")))
        }
    }
}

/// A number of 32 bits, as all of the range are.
fn short_number(
    setting: &'static str,
    value: Option<i64>,
    range: RangeInclusive<i64>,
    unit: &str,
) -> Result<u32, ConfigError> {
    number(setting, value, range, unit).map(|number| u32::try_from(number).unwrap_or(u32::MAX))
}

/// What the verbs device is told.
fn verbs(s: &Settings, selector: Selector) -> Result<IbverbsConfig, ConfigError> {
    let byte = |setting, value: Option<i64>, range: RangeInclusive<i64>, unit: &str| {
        number(setting, value, range, unit).map(|number| u8::try_from(number).unwrap_or(u8::MAX))
    };
    let mut verbs = IbverbsConfig::new(selector, None);
    verbs.timeout = byte("verbs_timeout", s.verbs_timeout, 1..=31, "4.096 us times two to this power")?;
    verbs.retries = byte("verbs_retries", s.verbs_retries, 1..=7, "times")?;
    verbs.traffic_class = byte(
        "verbs_traffic_class",
        s.verbs_traffic_class,
        0..=255,
        "a byte; the upper six bits are the DSCP",
    )?;
    verbs.service_level = byte("verbs_service_level", s.verbs_service_level, 0..=15, "a level")?;
    verbs.relaxed_ordering = choice(
        "verbs_relaxed_ordering",
        s.verbs_relaxed_ordering.as_deref(),
        &[("auto", RelaxedOrdering::Auto), ("on", RelaxedOrdering::On), ("off", RelaxedOrdering::Off)],
    )?;
    Ok(verbs)
}

fn connections(value: Option<i64>) -> Result<u32, ConfigError> {
    short_number("tcp_connections", value, 1..=MAX_CONNECTIONS as i64, "connections")
}

fn power_of_two(
    setting: &'static str,
    value: Option<i64>,
    range: RangeInclusive<i64>,
) -> Result<u32, ConfigError> {
    let number = number(setting, value, range, "a power of two")?;
    u32::try_from(number)
        .ok()
        .filter(|n| n.is_power_of_two())
        .ok_or_else(|| invalid(setting, number, "expected a power of two, such as 64 or 1024"))
}

/// Whether a text can be the setting `device`.
///
/// # Errors
/// What it may be.
pub fn check_device(text: &str) -> Result<(), ConfigError> {
    device(Some(text)).map(|_| ())
}

/// What a text that can be the setting `device` has devices speak with other nodes, without the place where only nodes of one
/// understand each other. Of ports of RDMA hardware it is what most of them speak.
///
/// # Errors
/// What it may be.
pub fn protocols(text: &str) -> Result<Vec<&'static str>, ConfigError> {
    let kinds = match device(Some(text))?.0 {
        DeviceChoice::Auto => DeviceKind::ALL.to_vec(),
        DeviceChoice::Listed(kinds) => kinds,
    };
    let mut spoken = Vec::new();
    for protocol in kinds.into_iter().map(|kind| kind.protocol().unwrap_or("roce")) {
        if !spoken.contains(&protocol) {
            spoken.push(protocol);
        }
    }
    Ok(spoken)
}

/// Which kinds, and of `verbs` which devices: it stands once for each, if they are named.
fn device(value: Option<&str>) -> Result<(DeviceChoice, Vec<Selector>), ConfigError> {
    let value = value.unwrap_or_default();
    let mut selectors: Vec<Selector> = Vec::new();
    if value == "auto" {
        return Ok((DeviceChoice::Auto, selectors));
    }
    let mut listed = Vec::new();
    for part in value.split(',').map(str::trim) {
        let which = part.strip_prefix("verbs:");
        if let Some(which) = which {
            let is_further = !selectors.is_empty();
            selectors.push(which.parse().map_err(|error: SelectorError| {
                invalid("device", value, format!("of what comes after `verbs:`, {error}"))
            })?);
            if is_further {
                continue;
            }
        }
        let name = if which.is_some() { DeviceKind::Verbs.name() } else { part };
        let kind = DeviceKind::ALL.into_iter().find(|kind| kind.name() == name && !listed.contains(kind));
        listed.push(kind.ok_or_else(|| {
            let names = DEVICE_NAMES.map(|name| format!("`{name}`")).join(", ");
            let allowed = format!(
                "expected one of {names}, or several kinds such as `roce-udp,tcp`; `verbs:mlx5_0:1:3` names an RDMA device, its \
                 port and its GID, several times for several rails"
            );
            invalid("device", value, allowed)
        })?);
    }
    Ok((DeviceChoice::Listed(listed), selectors))
}

const ORDERS: [(&str, Order); 3] =
    [("stable", Order::Stable), ("strict", Order::Strict), ("any", Order::Any)];

const ZERO_COPY: [(&str, ZeroCopy); 2] = [("auto", ZeroCopy::WherePays), ("never", ZeroCopy::Never)];

/// Whether links are measured.
const LINK_CONSTANTS: [(&str, bool); 2] = [("measured", true), ("usual", false)];

fn group_nodes(value: Option<i64>) -> Result<u32, ConfigError> {
    let unit = "consecutive nodes; 0 for as many as make fewest messages";
    short_number("group_nodes", value, 0..=1 << 20, unit)
}

/// The file that was named, none for the word `off`, or else one beside the socket.
fn link_cache(s: &Settings) -> Option<PathBuf> {
    match s.link_cache.as_deref() {
        Some("off") => None,
        Some(path) => Some(PathBuf::from(path)),
        None => Some(Path::new(s.socket.as_deref()?).with_extension("links.toml")),
    }
}

fn algorithm(value: Option<&str>) -> Result<Preference, ConfigError> {
    let value = value.unwrap_or_default();
    value.parse().map_err(|error: PreferenceError| invalid("algorithm", value, error.to_string()))
}

fn fault(s: &Settings) -> Result<Option<FaultSpec>, ConfigError> {
    let Some(text) = for_packets("fault", s.fault.as_deref(), s)? else { return Ok(None) };
    text.parse().map(Some).map_err(|error: FaultSpecError| invalid("fault", text, error.to_string()))
}

/// A setting that makes sense only where a device handles packets.
fn for_packets<'a>(
    setting: &'static str,
    value: Option<&'a str>,
    s: &Settings,
) -> Result<Option<&'a str>, ConfigError> {
    let Some(text) = value else { return Ok(None) };
    let needs = |needs, why| ConfigError::Missing { setting, needs, why };
    if s.cluster_key_file.is_none() {
        return Err(needs("cluster_key_file", "it is about packets between nodes"));
    }
    match device(s.device.as_deref())?.0 {
        DeviceChoice::Listed(kinds) if !kinds.iter().any(|kind| kind.has_packets()) => Err(needs(
            "device = \"roce-udp\" or \"roce-xdp\"",
            "the kernel keeps the packets of other devices to itself",
        )),
        _ => Ok(Some(text)),
    }
}

fn socket(path: &str) -> Result<PathBuf, ConfigError> {
    // A Unix socket's address holds 108 bytes with the terminating zero; the lock file's name need not fit.
    if path.is_empty() || path.len() > 107 || !Path::new(path).is_absolute() {
        return Err(invalid("socket", path, "expected an absolute path of at most 107 bytes"));
    }
    Ok(PathBuf::from(path))
}

fn engine_cpu(value: Option<i64>) -> Result<Option<usize>, ConfigError> {
    let Some(value) = value else { return Ok(None) };
    let allowed = crate::polling::allowed_cpus();
    match usize::try_from(value) {
        Ok(cpu) if allowed.contains(&cpu) => Ok(Some(cpu)),
        _ => Err(invalid("engine_cpu", value, format!("expected a CPU this process may use: {allowed:?}"))),
    }
}

fn network(s: &Settings) -> Result<Option<NetworkConfig>, ConfigError> {
    let peer_timeout = number("peer_timeout_ms", s.peer_timeout_ms, 100..=600_000, "milliseconds")?;
    let roce_port =
        u16::try_from(number("roce_port", s.roce_port, 1..=65_535, "a UDP port")?).unwrap_or(ROCE_PORT);
    let Some(key_file) = &s.cluster_key_file else {
        let given = [
            ("listen", s.listen.is_some()),
            ("advertise", s.advertise.is_some()),
            ("rails", s.rails.is_some()),
            ("channels", s.channels.is_some()),
        ];
        let (needs, why) = (
            "cluster_key_file",
            "daemons of different nodes must prove that they belong together before they talk",
        );
        let first = given.into_iter().find(|(_, is_given)| *is_given);
        return first.map_or(Ok(None), |(setting, _)| Err(ConfigError::Missing { setting, needs, why }));
    };
    let listen = address("listen", s.listen.as_deref().unwrap_or("0.0.0.0"))?;
    let advertise = match &s.advertise {
        Some(text) => address("advertise", text)?,
        None if listen.ip().is_unspecified() => SocketAddr::new(own_address(listen.ip()), listen.port()),
        None => listen,
    };
    if advertise.ip().is_unspecified() {
        return Err(invalid(
            "advertise",
            advertise,
            "expected an address at which other nodes reach this one",
        ));
    }
    let cluster_key = ClusterKey::read(Path::new(key_file))?;
    let peer_timeout = Duration::from_millis(peer_timeout);
    let roce_interface = s.roce_interface.clone();
    let rails = rails(s)?;
    let channels_per_rail = channels_per_rail(s, rails.len())?;
    Ok(Some(NetworkConfig {
        listen,
        advertise,
        rails,
        channels_per_rail,
        cluster_key,
        roce_port,
        roce_interface,
        peer_timeout,
    }))
}

/// The addresses of the rails: none where none are given.
fn rails(s: &Settings) -> Result<Vec<IpAddr>, ConfigError> {
    let Some(given) = &s.rails else { return Ok(Vec::new()) };
    let text = given.join(",");
    let refuse = |allowed: &str| Err(invalid("rails", &text, allowed));
    let parsed: Result<Vec<IpAddr>, _> = given.iter().map(|one| one.parse()).collect();
    let Ok(rails) = parsed else {
        return refuse("expected IP addresses of this host without ports, such as 10.0.0.1 and 10.1.0.1");
    };
    let is_repeated = (1..rails.len()).any(|at| rails.get(..at).is_some_and(|b| b.contains(&rails[at])));
    if rails.is_empty() || rails.len() > usize::from(CHANNELS_MAX) || is_repeated {
        return refuse("expected 1 to 8 addresses, each once");
    }
    if rails.iter().any(IpAddr::is_unspecified) {
        return refuse("expected the address of one network card each");
    }
    if rails.len() > 1 && s.roce_interface.is_some() {
        return refuse("each rail goes by the interface that has its address; leave out `roce_interface`");
    }
    Ok(rails)
}

fn channels_per_rail(s: &Settings, rails: usize) -> Result<u8, ConfigError> {
    let Some(given) = s.channels else { return Ok(1) };
    let rails = u8::try_from(rails.max(1)).unwrap_or(CHANNELS_MAX);
    let channels = u8::try_from(given)
        .ok()
        .filter(|given| (rails..=CHANNELS_MAX).contains(given) && given.is_multiple_of(rails));
    let Some(channels) = channels else {
        let each = if rails > 1 {
            format!("the same number for each of the {rails} rails, ")
        } else {
            String::new()
        };
        return Err(invalid("channels", given, format!("expected {each}1 to {CHANNELS_MAX} in all")));
    };
    Ok(channels / rails)
}

/// `address`, or `address:port`, without names to look up.
fn address(setting: &'static str, text: &str) -> Result<SocketAddr, ConfigError> {
    let with_port = || text.parse::<SocketAddr>().ok();
    let without = || text.parse::<IpAddr>().ok().map(|ip| SocketAddr::new(ip, DEFAULT_PORT));
    with_port().or_else(without).filter(|a| a.port() != 0).ok_or_else(|| {
        invalid(
            setting,
            text,
            format!(
                "expected an IP address with or without a port, such as 10.0.0.1, 10.0.0.1:{DEFAULT_PORT} or \
                 [fd00::1]:{DEFAULT_PORT}"
            ),
        )
    })
}

/// The address that a daemon has towards others when it listens at all of this host's, of the family of `listen`: what the kernel's
/// routing table says, without sending anything. Where that knows no way to others it is the loopback network's.
#[must_use]
pub fn own_address(listen: IpAddr) -> IpAddr {
    // Addresses reserved for documentation (RFC 5737, RFC 3849): they follow the default route.
    let (bind, towards) = match listen {
        IpAddr::V4(_) => ("0.0.0.0:0", "192.0.2.1:9"),
        IpAddr::V6(_) => ("[::]:0", "[2001:db8::1]:9"),
    };
    let found = UdpSocket::bind(bind).and_then(|socket| {
        socket.connect(towards)?;
        socket.local_addr()
    });
    match (found, listen) {
        (Ok(address), _) if !address.ip().is_unspecified() => address.ip(),
        (_, IpAddr::V4(_)) => IpAddr::V4(std::net::Ipv4Addr::LOCALHOST),
        (_, IpAddr::V6(_)) => IpAddr::V6(std::net::Ipv6Addr::LOCALHOST),
    }
}

fn quotas(q: &QuotaSettings) -> Result<Quotas, ConfigError> {
    let count = |setting, value| {
        number(setting, value, 1..=1_000_000, "for each user").map(|n| u32::try_from(n).unwrap_or(u32::MAX))
    };
    Ok(Quotas {
        sessions: count("quotas.sessions", q.sessions)?,
        communicators: count("quotas.communicators", q.communicators)?,
        regions: count("quotas.regions", q.regions)?,
        region_bytes: number("quotas.region_mib", q.region_mib, 1..=1 << 30, "MiB for each user")? * MIB,
    })
}

fn host_memory_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = text
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))
        .and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(1 << 20).saturating_mul(1024)
}

#[cfg(test)]
mod tests;
