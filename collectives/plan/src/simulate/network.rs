//! The network that is simulated: nodes, the links between them, what fails and who is slow.

use thiserror::Error;

/// Picoseconds, the unit of simulated time: equal times stay equal, which floating point would not promise.
pub type Picoseconds = u64;

/// A link, one of the two directions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Link {
    /// Until a bit that enters it comes out.
    pub latency: Picoseconds,
    /// What every message takes of the link besides its bytes: LogGP's `g`.
    pub gap: Picoseconds,
    /// Bytes per second.
    pub bandwidth: f64,
}

/// What a node takes for what it does itself.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Costs {
    /// Of the engine's thread, for each message that is sent and for each that is received, one behind the other.
    pub message: Picoseconds,
    /// Picoseconds to combine one byte of one more operand.
    pub reduce: f64,
    /// Picoseconds to copy one byte to one place.
    pub copy: f64,
    /// Bytes of scratch memory for all chunks under way together.
    pub scratch: u64,
    /// Longer messages wait until the receiver has named the memory for them.
    pub eager: u64,
}

/// How nodes are connected.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Fabric {
    /// Every pair of nodes has a full-duplex link of its own: nothing is ever shared.
    Mesh(Link),
    /// Ports into switches.
    Tree(Tree),
}

/// Nodes on leaf switches, leaves on spines: once for every rail, of which each node has one port. Bytes of a message are
/// divided evenly over the rails.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tree {
    /// Ports of a node.
    pub rails: u32,
    /// Nodes on a leaf switch; of a rail. Where all nodes are on one there are no spines.
    pub nodes_per_leaf: u32,
    /// Spine switches of a rail, each with one link to every leaf.
    pub spines: u32,
    /// From a node to its leaf, and back.
    pub port: Link,
    /// From a leaf to a spine, and back.
    pub trunk: Link,
    /// Which spine a message takes.
    pub routing: Routing,
}

/// Which of several spines carries what goes between two nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Routing {
    /// By the destination's place on its leaf (D-mod-k, Zahavi 2010): no two nodes that send to nodes of one leaf each meet
    /// on a link down.
    Destination,
    /// By a hash of both ends and this seed, as ECMP does: some links get more than others.
    Hash(u64),
}

/// One direction of a link, by its ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wire {
    /// Of a mesh.
    Pair {
        /// The sending node.
        from: u32,
        /// The receiving node.
        to: u32,
    },
    /// From a node to its leaf.
    Out {
        /// The node.
        node: u32,
        /// Which of its ports.
        rail: u32,
    },
    /// From a leaf to a node.
    In {
        /// The node.
        node: u32,
        /// Which of its ports.
        rail: u32,
    },
    /// From a leaf to a spine.
    Up {
        /// The leaf.
        leaf: u32,
        /// The spine.
        spine: u32,
        /// Whose leaf and spine.
        rail: u32,
    },
    /// From a spine to a leaf.
    Down {
        /// The leaf.
        leaf: u32,
        /// The spine.
        spine: u32,
        /// Whose leaf and spine.
        rail: u32,
    },
}

impl core::fmt::Display for Wire {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match *self {
            Self::Pair { from, to } => write!(f, "node {from} to node {to}"),
            Self::Out { node, rail } => write!(f, "node {node} out, rail {rail}"),
            Self::In { node, rail } => write!(f, "node {node} in, rail {rail}"),
            Self::Up { leaf, spine, rail } => write!(f, "leaf {leaf} to spine {spine}, rail {rail}"),
            Self::Down { leaf, spine, rail } => write!(f, "spine {spine} to leaf {leaf}, rail {rail}"),
        }
    }
}

/// A link that has failed, both directions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Broken {
    /// Of a mesh.
    Pair(u32, u32),
    /// A node's port.
    Port {
        /// The node.
        node: u32,
        /// Which of its ports.
        rail: u32,
    },
    /// Between a leaf and a spine.
    Trunk {
        /// The leaf.
        leaf: u32,
        /// The spine.
        spine: u32,
        /// Whose leaf and spine.
        rail: u32,
    },
}

impl core::fmt::Display for Broken {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match *self {
            Self::Pair(a, b) => write!(f, "between nodes {a} and {b}"),
            Self::Port { node, rail } => write!(f, "of node {node}, rail {rail}"),
            Self::Trunk { leaf, spine, rail } => {
                write!(f, "between leaf {leaf} and spine {spine}, rail {rail}")
            }
        }
    }
}

/// No way is left between two nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("node {from} cannot reach node {to}: {why}")]
pub struct Unreachable {
    /// The sending node.
    pub from: u32,
    /// The receiving node.
    pub to: u32,
    /// What is broken.
    pub why: &'static str,
}

/// Something that the network does not have.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("there is no {what}: {allowed}")]
pub struct NoSuch {
    /// What was named.
    pub what: String,
    /// What there is.
    pub allowed: String,
}

/// The way of messages between two nodes.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Route {
    pub(super) wires: Vec<Wire>,
    /// The share of a message's bytes that each wire carries.
    pub(super) share: f64,
    pub(super) latency: Picoseconds,
    pub(super) gap: Picoseconds,
}

/// Nodes and what is between them.
#[derive(Debug, Clone, PartialEq)]
pub struct Network {
    /// Nodes.
    pub nodes: u32,
    /// How they are connected.
    pub fabric: Fabric,
    /// What each of them takes for its own part.
    pub costs: Costs,
    broken: Vec<Broken>,
    /// A factor for every node; none while all are as fast as they should be.
    slowdowns: Vec<f64>,
}

impl Network {
    /// A network in which all is well.
    #[must_use]
    pub const fn new(nodes: u32, fabric: Fabric, costs: Costs) -> Self {
        Self { nodes, fabric, costs, broken: Vec::new(), slowdowns: Vec::new() }
    }

    /// A node takes `factor` times as long for its own work and for what goes through its ports.
    ///
    /// # Errors
    /// [`NoSuch`] node.
    pub fn slow_down(&mut self, node: u32, factor: f64) -> Result<(), NoSuch> {
        if node >= self.nodes {
            let allowed = format!("nodes are 0 to {}", self.nodes.saturating_sub(1));
            return Err(NoSuch { what: format!("node {node}"), allowed });
        }
        self.slowdowns.resize(self.nodes as usize, 1.0);
        self.slowdowns[node as usize] = factor;
        Ok(())
    }

    /// Slows down this share of the nodes, picked by the seed; at least one, unless the share is zero.
    pub fn slow_down_some(&mut self, share: f64, factor: f64, seed: u64) {
        let nodes: Vec<u32> = (0..self.nodes).collect();
        let mut picked: Vec<(u64, u32)> =
            nodes.into_iter().map(|node| (mix(seed ^ mix(u64::from(node) + 1)), node)).collect();
        picked.sort_unstable();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most so many nodes")]
        let many = (share.clamp(0.0, 1.0) * f64::from(self.nodes)).ceil() as usize;
        for (_, node) in picked.into_iter().take(many) {
            self.slowdowns.resize(self.nodes as usize, 1.0);
            self.slowdowns[node as usize] = factor;
        }
    }

    /// How many times as long a node takes as it should.
    #[must_use]
    pub fn slowdown(&self, node: u32) -> f64 {
        self.slowdowns.get(node as usize).copied().unwrap_or(1.0)
    }

    /// A link fails. What took it takes another one from now on, where there is one.
    ///
    /// # Errors
    /// [`NoSuch`] link.
    pub fn fail(&mut self, link: Broken) -> Result<(), NoSuch> {
        let last = self.nodes.saturating_sub(1);
        let none = |what: String, allowed: String| Err(NoSuch { what, allowed });
        match (self.fabric, link) {
            (Fabric::Mesh(_), Broken::Pair(a, b)) if a != b && a.max(b) <= last => {}
            (Fabric::Mesh(_), _) => {
                return none(
                    format!("link {link}"),
                    format!("links of a mesh are between two of the nodes 0 to {last}"),
                );
            }
            (Fabric::Tree(tree), Broken::Port { node, rail }) if node <= last && rail < tree.rails => {}
            (Fabric::Tree(tree), Broken::Trunk { leaf, spine, rail })
                if leaf < self.leaves(&tree) && spine < tree.spines && rail < tree.rails => {}
            (Fabric::Tree(tree), _) => {
                let (leaves, rails) = (self.leaves(&tree).saturating_sub(1), tree.rails.saturating_sub(1));
                let trunks = if tree.spines == 0 || leaves == 0 {
                    String::new()
                } else {
                    format!(", or between leaf 0 to {leaves} and spine 0 to {}", tree.spines - 1)
                };
                let allowed = format!("links are ports of nodes 0 to {last}{trunks}; rails 0 to {rails}");
                return none(format!("link {link}"), allowed);
            }
        }
        self.broken.push(link);
        Ok(())
    }

    /// Leaf switches of a rail.
    #[must_use]
    pub fn leaves(&self, tree: &Tree) -> u32 {
        self.nodes.div_ceil(tree.nodes_per_leaf.max(1))
    }

    /// Nodes that can be moved this many places on, any number of times, without a difference to the network.
    ///
    /// # Errors
    /// Why there is no such number but that of all nodes.
    pub(super) fn period(&self) -> Result<u32, &'static str> {
        if self.slowdowns.iter().any(|factor| *factor != 1.0) {
            return Err("some nodes are slower than others");
        }
        if !self.broken.is_empty() {
            return Err("a link has failed");
        }
        let Fabric::Tree(tree) = self.fabric else { return Ok(1) };
        match self.leaves(&tree) {
            0 | 1 => Ok(1),
            _ if tree.routing != Routing::Destination && tree.spines > 1 => {
                Err("spines are picked by a hash, so that links differ")
            }
            _ if !self.nodes.is_multiple_of(tree.nodes_per_leaf) => {
                Err("the last leaf switch has fewer nodes than the others")
            }
            _ => Ok(tree.nodes_per_leaf),
        }
    }

    /// The way from a node to another.
    pub(super) fn route(&self, from: u32, to: u32) -> Result<Route, Unreachable> {
        let tree =
            match self.fabric {
                Fabric::Tree(tree) => tree,
                Fabric::Mesh(link) => {
                    if self.broken.iter().any(
                        |b| matches!(*b, Broken::Pair(a, b) if (a, b) == (from, to) || (b, a) == (from, to)),
                    ) {
                        return Err(Unreachable {
                            from,
                            to,
                            why: "their link has failed, and a mesh has no other",
                        });
                    }
                    let wires = vec![Wire::Pair { from, to }];
                    return Ok(Route { wires, share: 1.0, latency: link.latency, gap: link.gap });
                }
            };
        let (near, far) = (from / tree.nodes_per_leaf.max(1), to / tree.nodes_per_leaf.max(1));
        let mut ways = Vec::new();
        let mut why = "every port of one of them has failed";
        for rail in 0..tree.rails {
            if [from, to].iter().any(|node| self.is_broken(Broken::Port { node: *node, rail })) {
                continue;
            }
            if near == far {
                ways.push((rail, None));
            } else if let Some(spine) = self.spine(&tree, (from, to), rail) {
                ways.push((rail, Some(spine)));
            } else {
                why = "no spine has a link to both of their leaf switches";
            }
        }
        if ways.is_empty() {
            return Err(Unreachable { from, to, why });
        }
        let share = 1.0 / ways.len() as f64;
        let (latency, gap) = (2 * tree.port.latency, tree.port.gap);
        let mut route = Route { wires: Vec::with_capacity(4 * ways.len()), share, latency, gap };
        for (rail, spine) in ways {
            route.wires.push(Wire::Out { node: from, rail });
            if let Some(spine) = spine {
                route.wires.push(Wire::Up { leaf: near, spine, rail });
                route.wires.push(Wire::Down { leaf: far, spine, rail });
            }
            route.wires.push(Wire::In { node: to, rail });
        }
        if near != far {
            route.latency += 2 * tree.trunk.latency;
            route.gap = route.gap.max(tree.trunk.gap);
        }
        Ok(route)
    }

    fn is_broken(&self, link: Broken) -> bool {
        self.broken.contains(&link)
    }

    /// The spine that carries a rail's part; another one if that has lost a link to either leaf.
    fn spine(&self, tree: &Tree, (from, to): (u32, u32), rail: u32) -> Option<u32> {
        let leaves = [from, to].map(|node| node / tree.nodes_per_leaf.max(1));
        let works = |spine: &u32| {
            !leaves.iter().any(|leaf| self.is_broken(Broken::Trunk { leaf: *leaf, spine: *spine, rail }))
        };
        let number = match tree.routing {
            Routing::Destination => u64::from(to % tree.nodes_per_leaf.max(1)),
            Routing::Hash(seed) => mix(seed ^ mix((u64::from(from) << 32 | u64::from(to)) ^ u64::from(rail))),
        };
        let pick = |many: usize| usize::try_from(number % many.max(1) as u64).unwrap_or(0);
        let preferred = u32::try_from(pick(tree.spines as usize)).unwrap_or(0);
        if tree.spines > 0 && (self.broken.is_empty() || works(&preferred)) {
            return Some(preferred);
        }
        let left: Vec<u32> = (0..tree.spines).filter(works).collect();
        left.get(pick(left.len())).copied()
    }

    /// The wire that is in the place of this one when every node is where `to` says.
    pub(super) fn moved(&self, wire: Wire, to: impl Fn(u32) -> u32) -> Wire {
        let Fabric::Tree(tree) = self.fabric else { return wire };
        let each = tree.nodes_per_leaf.max(1);
        let moved_leaf = |leaf: u32| to(leaf.saturating_mul(each)) / each;
        match wire {
            Wire::Pair { .. } => wire,
            Wire::Out { node, rail } => Wire::Out { node: to(node), rail },
            Wire::In { node, rail } => Wire::In { node: to(node), rail },
            Wire::Up { leaf, spine, rail } => Wire::Up { leaf: moved_leaf(leaf), spine, rail },
            Wire::Down { leaf, spine, rail } => Wire::Down { leaf: moved_leaf(leaf), spine, rail },
        }
    }

    /// Bytes per picosecond of a wire.
    pub(super) fn capacity(&self, wire: Wire) -> f64 {
        const PER_SECOND: f64 = 1e-12;
        let (bandwidth, slowdown) = match (self.fabric, wire) {
            (Fabric::Mesh(link), Wire::Pair { from, to }) => {
                (link.bandwidth, self.slowdown(from).max(self.slowdown(to)))
            }
            (Fabric::Mesh(link), _) => (link.bandwidth, 1.0),
            (Fabric::Tree(tree), Wire::Out { node, .. } | Wire::In { node, .. }) => {
                (tree.port.bandwidth, self.slowdown(node))
            }
            (Fabric::Tree(tree), _) => (tree.trunk.bandwidth, 1.0),
        };
        bandwidth * PER_SECOND / slowdown
    }
}

/// SplitMix64's finalizer: a hash of a number.
const fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}
