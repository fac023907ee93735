//! A network as a file: TOML in, [`Network`] out, with errors that name the field and say what is allowed.

use serde::Deserialize;
use thiserror::Error;

use super::network::{Costs, Fabric, Link, Network, Picoseconds, Routing, Tree};

/// What a file says of a network. Fields that are missing have the values of [`Description::default`].
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Description {
    /// How nodes are connected.
    pub kind: Kind,
    /// Nodes, where nobody says otherwise.
    pub nodes: Option<u32>,
    /// Ranks on each of them, where nobody says otherwise.
    pub ranks_per_node: Option<u32>,
    /// Nodes on a leaf switch.
    pub nodes_per_leaf: u32,
    /// Spine switches, of each rail.
    pub spines: u32,
    /// What the ports of a leaf's nodes carry together, divided by what its links to spines do.
    pub oversubscription: f64,
    /// Ports of a node, each to a leaf switch of its own (`rail-optimised` only).
    pub rails: u32,
    /// Which of several spines a message takes.
    pub routing: RoutingKind,
    /// From a node to its switch, or in a mesh to another node.
    pub link: LinkDescription,
    /// From a leaf to a spine.
    pub trunk: TrunkDescription,
    /// What a node takes for its own part.
    pub node: NodeDescription,
}

/// How nodes are connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Every pair of nodes by a link of its own.
    Mesh,
    /// Each node by one port to one switch that hinders nobody.
    Ports,
    /// Nodes on leaf switches, leaves on spines.
    FatTree,
    /// The same once for each of several ports of a node.
    RailOptimised,
}

/// Which of several spines a message takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RoutingKind {
    /// By the destination's place on its leaf.
    Destination,
    /// By a hash of both ends.
    Hash,
}

/// A link.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LinkDescription {
    /// Microseconds from one end to the other.
    pub latency_us: f64,
    /// Microseconds that every message takes of the link besides its bytes.
    pub gap_us: f64,
    /// Bytes per second, or a text such as `"400Gb/s"`.
    pub bandwidth: Rate,
}

/// A link between switches. Its bandwidth follows from the others' and the oversubscription.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TrunkDescription {
    /// Microseconds from one end to the other.
    pub latency_us: f64,
    /// Microseconds that every message takes of the link besides its bytes.
    pub gap_us: f64,
    /// Bytes per second, in place of what the oversubscription gives.
    pub bandwidth: Option<Rate>,
}

/// What a node takes for its own part.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NodeDescription {
    /// Microseconds of the engine's thread for each message sent and each received.
    pub message_us: f64,
    /// Nanoseconds to combine one byte of one more operand.
    pub reduce_ns_per_byte: f64,
    /// Nanoseconds to copy one byte to one place.
    pub copy_ns_per_byte: f64,
    /// Bytes of scratch memory, or a text such as `"1GiB"`.
    pub scratch: Bytes,
    /// Longer messages wait for word from the receiver first: bytes, or a text such as `"8KiB"`.
    pub eager: Bytes,
}

/// Bytes per second.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(try_from = "Quantity")]
pub struct Rate(pub f64);

/// Bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Quantity")]
pub struct Bytes(pub u64);

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a number, or a text of a number and a unit")]
enum Quantity {
    Whole(u64),
    Number(f64),
    Text(String),
}

/// What a file must not say.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Invalid {
    /// It is not TOML, or has fields or values that there are not: the parser's words, which show the place.
    #[error("{0}")]
    Syntax(String),
    /// A value out of range.
    #[error("{field} is {value}; it must be {allowed}")]
    Value {
        /// The field.
        field: &'static str,
        /// What it says.
        value: String,
        /// What it may say.
        allowed: &'static str,
    },
}

impl Default for Description {
    fn default() -> Self {
        Self {
            kind: Kind::FatTree,
            nodes: None,
            ranks_per_node: None,
            nodes_per_leaf: 32,
            spines: 16,
            oversubscription: 1.0,
            rails: 8,
            routing: RoutingKind::Destination,
            link: LinkDescription::default(),
            trunk: TrunkDescription::default(),
            node: NodeDescription::default(),
        }
    }
}

impl Default for LinkDescription {
    fn default() -> Self {
        Self { latency_us: 0.6, gap_us: 0.0, bandwidth: Rate(50e9) }
    }
}

impl Default for TrunkDescription {
    fn default() -> Self {
        Self { latency_us: 0.6, gap_us: 0.0, bandwidth: None }
    }
}

impl Default for NodeDescription {
    fn default() -> Self {
        Self {
            message_us: 0.5,
            reduce_ns_per_byte: 0.02,
            copy_ns_per_byte: 0.01,
            scratch: Bytes(4 << 30),
            eager: Bytes(crate::EAGER_BYTES as u64),
        }
    }
}

impl TryFrom<Quantity> for Rate {
    type Error = String;

    fn try_from(quantity: Quantity) -> Result<Self, String> {
        const UNITS: [(&str, f64); 6] = [
            ("Gb/s", 1e9 / 8.0),
            ("Mb/s", 1e6 / 8.0),
            ("Tb/s", 1e12 / 8.0),
            ("GB/s", 1e9),
            ("MB/s", 1e6),
            ("B/s", 1.0),
        ];
        match quantity {
            Quantity::Whole(number) => Ok(Self(number as f64)),
            Quantity::Number(number) => Ok(Self(number)),
            Quantity::Text(text) => with_unit(&text, &UNITS).map(Self).ok_or_else(|| {
                format!("`{text}` is not a bandwidth: write bytes per second, or a text such as \"400Gb/s\" or \"50GB/s\"")
            }),
        }
    }
}

impl TryFrom<Quantity> for Bytes {
    type Error = String;

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "checked to be a small whole number"
    )]
    fn try_from(quantity: Quantity) -> Result<Self, String> {
        const UNITS: [(&str, f64); 4] =
            [("KiB", 1024.0), ("MiB", 1048576.0), ("GiB", 1073741824.0), ("B", 1.0)];
        let (number, text) = match quantity {
            Quantity::Whole(number) => return Ok(Self(number)),
            Quantity::Number(number) => (Some(number), number.to_string()),
            Quantity::Text(text) => (with_unit(&text, &UNITS), text),
        };
        match number.filter(|number| number.fract() == 0.0 && (0.0..9e15).contains(number)) {
            Some(number) => Ok(Self(number as u64)),
            None => {
                Err(format!("`{text}` is not a size: write bytes, or a text such as \"8KiB\" or \"1GiB\""))
            }
        }
    }
}

/// The number before one of the units, times the unit.
fn with_unit(text: &str, units: &[(&str, f64)]) -> Option<f64> {
    let (name, unit) = units.iter().find(|(name, _)| text.trim_end().ends_with(name))?;
    let number: f64 = text.trim_end().strip_suffix(name)?.trim().parse().ok()?;
    Some(number * unit)
}

impl Description {
    /// Reads a file's text.
    ///
    /// # Errors
    /// [`Invalid`], with the line.
    pub fn from_toml(text: &str) -> Result<Self, Invalid> {
        let description: Self = toml::from_str(text).map_err(|error| Invalid::Syntax(error.to_string()))?;
        description.check()?;
        Ok(description)
    }

    fn check(&self) -> Result<(), Invalid> {
        let whole: [(&'static str, Option<u32>, u32, &'static str); 5] = [
            ("nodes", self.nodes, MOST_NODES, "1 to 1048576"),
            ("ranks_per_node", self.ranks_per_node, 1024, "1 to 1024"),
            ("nodes_per_leaf", Some(self.nodes_per_leaf), MOST_NODES, "1 to 1048576"),
            ("spines", Some(self.spines), 65536, "1 to 65536"),
            ("rails", Some(self.rails), 64, "1 to 64"),
        ];
        for (field, value, most, allowed) in whole {
            if let Some(value) = value.filter(|value| !(1..=most).contains(value)) {
                return Err(Invalid::Value { field, value: value.to_string(), allowed });
            }
        }
        let (link, trunk, node) = (&self.link, &self.trunk, &self.node);
        let rate = |rate: Rate| ("bytes per second from 1 to 1e15", (1.0..=1e15).contains(&rate.0), rate.0);
        let time = |us: f64| ("microseconds from 0 to 1e9", (0.0..=1e9).contains(&us), us);
        let cost = |ns: f64| ("nanoseconds from 0 to 1e6", (0.0..=1e6).contains(&ns), ns);
        let factor = self.oversubscription;
        let numbers = [
            ("oversubscription", ("a factor from 0.01 to 1000", (0.01..=1e3).contains(&factor), factor)),
            ("link.latency_us", time(link.latency_us)),
            ("link.gap_us", time(link.gap_us)),
            ("link.bandwidth", rate(link.bandwidth)),
            ("trunk.latency_us", time(trunk.latency_us)),
            ("trunk.gap_us", time(trunk.gap_us)),
            ("trunk.bandwidth", rate(trunk.bandwidth.unwrap_or(link.bandwidth))),
            ("node.message_us", time(node.message_us)),
            ("node.reduce_ns_per_byte", cost(node.reduce_ns_per_byte)),
            ("node.copy_ns_per_byte", cost(node.copy_ns_per_byte)),
        ];
        match numbers.into_iter().find(|(_, (_, is_allowed, _))| !is_allowed) {
            Some((field, (allowed, _, value))) => {
                Err(Invalid::Value { field, value: value.to_string(), allowed })
            }
            None => Ok(()),
        }
    }

    /// Nodes of a group as [`crate::Tuning::group_nodes`] has them: those on a leaf switch, or 0 where there are none or that
    /// does not make two groups or more of equal size.
    #[must_use]
    pub fn group_nodes(&self, nodes: u32) -> u32 {
        let group = match self.kind {
            Kind::Mesh | Kind::Ports => 0,
            Kind::FatTree | Kind::RailOptimised => self.nodes_per_leaf,
        };
        if group >= 2 && nodes > group && nodes.is_multiple_of(group) { group } else { 0 }
    }

    /// The network of so many nodes; routes that are picked by a hash are picked by this seed.
    #[must_use]
    pub fn network(&self, nodes: u32, seed: u64) -> Network {
        let link = Link {
            latency: picoseconds(self.link.latency_us * 1e6),
            gap: picoseconds(self.link.gap_us * 1e6),
            bandwidth: self.link.bandwidth.0,
        };
        let down = link.bandwidth * f64::from(self.nodes_per_leaf);
        let share = down / self.oversubscription / f64::from(self.spines.max(1));
        let trunk = Link {
            latency: picoseconds(self.trunk.latency_us * 1e6),
            gap: picoseconds(self.trunk.gap_us * 1e6),
            bandwidth: self.trunk.bandwidth.map_or(share, |rate| rate.0),
        };
        let routing = match self.routing {
            RoutingKind::Destination => Routing::Destination,
            RoutingKind::Hash => Routing::Hash(seed),
        };
        let tree = |rails, nodes_per_leaf, spines| {
            Fabric::Tree(Tree { rails, nodes_per_leaf, spines, port: link, trunk, routing })
        };
        let fabric = match self.kind {
            Kind::Mesh => Fabric::Mesh(link),
            Kind::Ports => tree(1, nodes.max(1), 0),
            Kind::FatTree => tree(1, self.nodes_per_leaf, self.spines),
            Kind::RailOptimised => tree(self.rails, self.nodes_per_leaf, self.spines),
        };
        let costs = Costs {
            message: picoseconds(self.node.message_us * 1e6),
            reduce: self.node.reduce_ns_per_byte * 1e3,
            copy: self.node.copy_ns_per_byte * 1e3,
            scratch: self.node.scratch.0,
            eager: self.node.eager.0,
        };
        Network::new(nodes, fabric, costs)
    }
}

/// The most nodes that there may be.
const MOST_NODES: u32 = 1 << 20;

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a time, rounded")]
fn picoseconds(time: f64) -> Picoseconds {
    time.round() as Picoseconds
}
