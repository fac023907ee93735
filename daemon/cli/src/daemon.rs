//! The daemon's command line: `ringwayd`, and `ringway daemon`, which is the same.

use std::{io::IsTerminal, path::PathBuf, process::ExitCode};

use clap::Args;
use ringway_service::{Config, LogFormat, QuotaSettings, Settings, stop_pair};
use signal_hook::consts::{SIGINT, SIGTERM};
use tracing_subscriber::{
    Layer as _,
    filter::{LevelFilter, Targets},
    fmt,
    layer::SubscriberExt as _,
    util::SubscriberInitExt as _,
};

/// Serve the processes of this node: collectives and messages, here and with other nodes.
///
/// Each setting can stand in the configuration file as well: `--spin-us` is `spin_us` there,
/// `--quota-regions` is `regions` under `[quotas]`. Flags win over the file. Without any the
/// daemon serves this node only, on a socket where clients look for it:
///
///   root          /run/ringway/ringwayd.sock
///   other users   $XDG_RUNTIME_DIR/ringway/ringwayd.sock, else /tmp/ringway-UID/ringwayd.sock
///
/// To work with other nodes, give every node the same key file:
///
///   (umask 077; od -An -tx1 -N32 /dev/urandom | tr -d ' \n' > cluster.key)
///   ringwayd --cluster-key-file cluster.key
///
/// SIGTERM or SIGINT ends it in good order.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment, next_line_help = false)]
pub struct DaemonArgs {
    /// Read settings from a TOML file; a setting that does not exist is an error
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print the settings that would hold, as TOML, and exit
    #[arg(long)]
    print_config: bool,
    /// Listen for clients on this Unix socket (an absolute path)
    #[arg(long, value_name = "PATH")]
    socket: Option<String>,
    /// Serve all users of this host, or only the daemon's own [default: all for root, else own]
    #[arg(long, value_name = "all|own")]
    users: Option<String>,
    /// What ranks of one node may share: cell (those of one user work on each other's memory) or strict (nothing)
    #[arg(long, value_name = "cell|strict")]
    isolation: Option<String>,
    /// How to wait for work: spin (lowest latency, one core), adaptive (spin, then sleep) or block (always sleep)
    #[arg(long, value_name = "MODE")]
    polling: Option<String>,
    /// Microseconds to spin after the last work before sleeping; 0 measures what a wake-up costs here
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    spin_us: Option<i64>,
    /// Pin the engine thread to this CPU
    #[arg(long, value_name = "CPU", allow_negative_numbers = true)]
    engine_cpu: Option<i64>,
    /// Address, or address:port, on which daemons of other nodes reach this one [default port: 7411]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// The same as others see it, when it differs
    #[arg(long, value_name = "ADDRESS")]
    advertise: Option<String>,
    /// Addresses of the network cards that data goes over, with commas, in the same order on every node: the first cards of all
    /// nodes reach each other, the second ones too, and so on [default: the address of --listen alone]
    #[arg(long, value_name = "ADDRESSES", value_delimiter = ',')]
    rails: Option<Vec<String>>,
    /// Queue pairs to each other node of a communicator, over the rails by turns: long messages are spread over as many of them as
    /// it takes to carry what all can
    /// [default: one for each rail]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    channels: Option<i64>,
    /// File with the cluster's key (64 hex digits, mode 0600): work with other nodes that have the same key
    #[arg(long, value_name = "FILE")]
    cluster_key_file: Option<String>,
    /// What moves data between nodes: shm (memory shared by daemons of one host and network namespace), verbs (RDMA hardware;
    /// verbs:NAME, verbs:NAME:PORT or verbs:NAME:PORT:GID say which device, port and address; once for each of several
    /// --rails where their addresses do not say it), roce-xdp or roce-udp
    /// (RoCEv2 in user space over AF_XDP or UDP), tcp (over io_uring) or tcp-epoll (over ordinary sockets); of several
    /// (roce-udp,tcp) the first that works and that the nodes of a communicator have in common; auto: of all, in this order,
    /// those that can be expected not to be slower than what comes after them here, and says why
    #[arg(long, value_name = "DEVICE")]
    device: Option<String>,
    /// Algorithm for collectives over several nodes, where it can be used: local, direct, ring; for one operation:
    /// allreduce=ring; several of these with commas; or auto. That of the node whose address is in a communicator's id holds
    /// for all its nodes; programs can ask for others (RINGWAY_ALGORITHM)
    #[arg(long, value_name = "NAMES")]
    algorithm: Option<String>,
    /// Which algorithms may be chosen: stable (the same bits in every run with the same layout and constants), strict (ranks
    /// ascending within a node, then nodes ascending, whatever the size), any (as stable, with links measured anew for every
    /// communicator)
    #[arg(long, value_name = "ORDER")]
    order: Option<String>,
    /// Consecutive nodes of a communicator that are a group, such as those on one leaf switch, for algorithms that do one thing
    /// within groups and another between them [default: as many as make fewest messages]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    group_nodes: Option<i64>,
    /// File with constants of links, and rules of which algorithm is used up to how many bytes: what `ringway explain
    /// --save` writes
    #[arg(long, value_name = "FILE")]
    tuning_file: Option<String>,
    /// File in which what is measured of links is kept, or `off`: a daemon that starts anew then measures again, and may
    /// choose algorithms that give other bits [default: beside the socket]
    #[arg(long, value_name = "FILE")]
    link_cache: Option<String>,
    /// What links are taken for of which neither file knows anything: measured, or usual (as of kernel TCP between nodes on
    /// one host: daemons that start anew choose the same algorithms)
    #[arg(long, value_name = "CONSTANTS")]
    link_constants: Option<String>,
    /// UDP port of RoCE packets, the same on all nodes (other RoCE devices know 4791 alone), so that daemons can share an
    /// address
    #[arg(long, value_name = "PORT", allow_negative_numbers = true)]
    roce_port: Option<i64>,
    /// Interface that the roce devices use, which must have the node's address [default: the one that has it]
    #[arg(long, value_name = "NAME")]
    roce_interface: Option<String>,
    /// The verbs device, and the roce devices toward it, repeat what is not answered after 4.096 us times two to this power, or
    /// up to four times that; the default of 16 is 268 ms
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    verbs_timeout: Option<i64>,
    /// How often, 1 to 7, before the connection counts as broken; with the time-out, for how long a link may be down
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    verbs_retries: Option<i64>,
    /// Traffic class of the verbs device's packets: on RoCE the type-of-service byte, by which switches tell lossless traffic
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    verbs_traffic_class: Option<i64>,
    /// InfiniBand's service level, or on RoCE the priority, of the verbs device
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    verbs_service_level: Option<i64>,
    /// Whether the PCIe bus may reorder what RDMA hardware writes to memory, which some hosts need for full speed: auto (where
    /// library, kernel and device take it), on (memory that is refused with it is an error) or off
    #[arg(long, value_name = "WHEN")]
    verbs_relaxed_ordering: Option<String>,
    /// Microseconds for which reading a socket of the tcp devices polls the network card itself (SO_BUSY_POLL); 0 leaves that
    /// to interrupts. For cards whose driver can be polled; needs CAP_NET_ADMIN
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    tcp_busy_poll_us: Option<i64>,
    /// Whether the tcp device sends long payloads without a copy: auto (where the kernel says that it need not copy them after
    /// all, which over loopback and virtual links it has to) or never
    #[arg(long, value_name = "WHEN")]
    tcp_zero_copy: Option<String>,
    /// TCP connections to each peer that this node connects to, in each communicator, 1 to 8: long messages are divided among
    /// them, which pays where one does not fill the link
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    tcp_connections: Option<i64>,
    /// Congestion control of the tcp devices' connections: auto (the system's, unless that is BBR, whose pacing makes
    /// collectives wait for timers: then cubic or reno), system, cubic, reno, dctcp or bbr
    #[arg(long, value_name = "NAME")]
    tcp_congestion: Option<String>,
    /// Lose, spoil, repeat, delay or mark packets that come in over a roce device, for tests: loss=0.01,seed=7
    #[arg(long, value_name = "SPEC")]
    fault: Option<String>,
    /// Delay all that arrives from other nodes by so many microseconds, for tests: daemons that both do behave as if the way
    /// between them were so much longer
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    delay_us: Option<i64>,
    /// Capture all packets of a roce device into this file, for Wireshark
    #[arg(long, value_name = "FILE")]
    pcap: Option<String>,
    /// Milliseconds of silence after which a peer that is waited for counts as lost
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    peer_timeout_ms: Option<i64>,
    /// Files with plans of collectives, as `ringway plan export` writes them, with commas: each is proved right, and used for
    /// its operation between its number of nodes, of several the last one; the same on all nodes
    #[arg(long, value_name = "FILES", value_delimiter = ',')]
    plans: Option<Vec<String>>,
    /// MiB of memory for data on its way
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    workspace_mib: Option<i64>,
    /// Seconds after which a rank that others wait for is named in the log
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    late_after_s: Option<i64>,
    /// Leave after so many seconds without clients; 0 stays
    #[arg(long, visible_alias = "idle-exit", value_name = "N", allow_negative_numbers = true)]
    idle_exit_s: Option<i64>,
    /// Least important log lines to write: error, warn, info, debug or trace; RINGWAY_LOG refines it by module, as in
    /// `info,ringway_service=debug`
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<String>,
    /// Log lines for people (text) or programs (json)
    #[arg(long, value_name = "text|json")]
    log_format: Option<String>,
    /// The most submissions a client's ring may hold (a power of two)
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    ring_submissions_max: Option<i64>,
    /// 64-bit words for lists of counts in each ring (a power of two)
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    ring_argument_words: Option<i64>,
    /// Connections that one user may have
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    quota_sessions: Option<i64>,
    /// Ranks in communicators that one user may have
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    quota_communicators: Option<i64>,
    /// Regions that one user may register
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    quota_regions: Option<i64>,
    /// MiB of regions that one user may register [default: half of the memory]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    quota_region_mib: Option<i64>,
}

/// Runs the daemon until it is told to stop.
///
/// # Errors
/// A line for the user: what is wrong and what to do.
pub fn daemon(args: DaemonArgs) -> Result<ExitCode, String> {
    let file = args.config.as_deref().map(Settings::read).transpose().map_err(|e| e.to_string())?;
    let print = args.print_config;
    let settings = args.into_settings().over(file.unwrap_or_default());
    // What is printed is checked as well.
    let config = settings.clone().resolve().map_err(|e| e.to_string())?;
    if print {
        print_settings(&settings.with_defaults());
        return Ok(ExitCode::SUCCESS);
    }
    start_logging(&config)?;
    let system = |e: std::io::Error| format!("cannot watch for signals: {e}");
    let (handle, stop) = stop_pair().map_err(system)?;
    handle.on_signals(&[SIGTERM, SIGINT]).map_err(system)?;
    ringway_service::run(config, stop).map_err(|e| e.to_string())?;
    // Until here the handle must live: dropping it stops the daemon.
    drop(handle);
    Ok(ExitCode::SUCCESS)
}

#[expect(clippy::print_stdout, reason = "this is what was asked for")]
fn print_settings(settings: &Settings) {
    print!("{}", settings.to_toml());
}

/// The variable that says how much which modules log.
const LOG: &str = "RINGWAY_LOG";

fn start_logging(config: &Config) -> Result<(), String> {
    let filter = log_filter(config.log_level, std::env::var(LOG).ok().as_deref())?;
    let lines = fmt::layer().with_writer(std::io::stderr).with_ansi(std::io::stderr().is_terminal());
    let lines = match config.log_format {
        LogFormat::Json => lines.json().boxed(),
        LogFormat::Text => lines.with_target(false).boxed(),
    };
    // Only a second call in one process could fail.
    let _ = tracing_subscriber::registry().with(filter).with(lines).try_init();
    Ok(())
}

/// What is logged: from a level on, but where `refined` says otherwise of a module, or of all.
fn log_filter(level: &str, refined: Option<&str>) -> Result<Targets, String> {
    let level: LevelFilter = level.parse().map_err(|_| format!("`{level}` is no log level"))?;
    let Some(refined) = refined.filter(|refined| !refined.is_empty()) else {
        return Ok(Targets::new().with_default(level));
    };
    let targets = refined.parse::<Targets>().map_err(|e| {
        format!(
            "{LOG}=`{refined}`: {e}; it is a list such as `info,ringway_service=debug`, of modules and levels"
        )
    })?;
    Ok(if targets.default_level().is_some() { targets } else { targets.with_default(level) })
}

impl DaemonArgs {
    fn into_settings(self) -> Settings {
        Settings {
            socket: self.socket,
            users: self.users,
            isolation: self.isolation,
            polling: self.polling,
            spin_us: self.spin_us,
            engine_cpu: self.engine_cpu,
            listen: self.listen,
            advertise: self.advertise,
            rails: self.rails,
            channels: self.channels,
            cluster_key_file: self.cluster_key_file,
            device: self.device,
            algorithm: self.algorithm,
            order: self.order,
            group_nodes: self.group_nodes,
            tuning_file: self.tuning_file,
            link_cache: self.link_cache,
            link_constants: self.link_constants,
            roce_port: self.roce_port,
            roce_interface: self.roce_interface,
            verbs_timeout: self.verbs_timeout,
            verbs_retries: self.verbs_retries,
            verbs_traffic_class: self.verbs_traffic_class,
            verbs_service_level: self.verbs_service_level,
            verbs_relaxed_ordering: self.verbs_relaxed_ordering,
            tcp_busy_poll_us: self.tcp_busy_poll_us,
            tcp_zero_copy: self.tcp_zero_copy,
            tcp_connections: self.tcp_connections,
            tcp_congestion: self.tcp_congestion,
            fault: self.fault,
            delay_us: self.delay_us,
            pcap: self.pcap,
            peer_timeout_ms: self.peer_timeout_ms,
            plans: self.plans,
            workspace_mib: self.workspace_mib,
            late_after_s: self.late_after_s,
            idle_exit_s: self.idle_exit_s,
            log_level: self.log_level,
            log_format: self.log_format,
            ring_submissions_max: self.ring_submissions_max,
            ring_argument_words: self.ring_argument_words,
            quotas: QuotaSettings {
                sessions: self.quota_sessions,
                communicators: self.quota_communicators,
                regions: self.quota_regions,
                region_mib: self.quota_region_mib,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::filter::LevelFilter;

    use super::*;

    #[test]
    fn a_module_may_log_more_than_others() {
        let filter = log_filter("warn", Some("ringway_service::peers=debug")).expect("a list");
        assert_eq!(filter.default_level(), Some(LevelFilter::WARN));
        let enables =
            |target, level: LevelFilter| filter.would_enable(target, &level.into_level().expect("a level"));
        assert!(enables("ringway_service::peers::link", LevelFilter::DEBUG));
        assert!(!enables("ringway_service", LevelFilter::INFO));
        let all = log_filter("warn", Some("debug")).expect("a level");
        assert_eq!(all.default_level(), Some(LevelFilter::DEBUG));
        assert_eq!(
            log_filter("info", Some("")).expect("nothing"),
            log_filter("info", None).expect("nothing")
        );
    }

    #[test]
    fn nonsense_is_named() {
        let why = log_filter("info", Some("ringway_service=loud")).expect_err("no level");
        assert!(why.contains("RINGWAY_LOG") && why.contains("ringway_service=loud"), "{why}");
    }
}
