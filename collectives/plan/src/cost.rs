//! What an algorithm costs, counted: messages and bytes one behind the other on the longest path, and what the busiest
//! node has to do in all. [`Constants`] price it: `rounds a + bytes b + reduced g`, the model of Thakur, Rabenseifner and
//! Gropp (2005), with what keeps a node busy besides, which is what bounds chunks behind one another.

/// What is counted: one chunk of a call.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Terms {
    /// Nodes that take part.
    pub nodes: u32,
    /// The most ranks on one of them.
    pub most_local: u32,
    /// Bytes: of the whole vector for allreduce, reduce, broadcast, scan and exscan; of all blocks together for all_gather,
    /// reduce_scatter, gather and scatter; of all that one node's ranks give away in all_to_all, their own blocks included.
    pub bytes: f64,
    /// As in [`crate::Tuning::group_nodes`].
    pub group_nodes: u32,
}

/// What is counted of one chunk. Where nodes differ it is the most any of them has.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Cost {
    /// Messages one behind the other on the longest path.
    pub rounds: f64,
    /// Bytes one behind the other on that path where every pair of nodes has a link of its own.
    pub link_bytes: f64,
    /// Bytes one behind the other on that path where all that a node sends leaves it by one port.
    pub port_bytes: f64,
    /// Bytes combined one behind the other on that path, each operand but the first counted; what local ranks give is not.
    pub path_reduced: f64,
    /// Messages that one node sends and receives.
    pub messages: f64,
    /// Bytes that one node sends.
    pub sent: f64,
    /// Bytes that one node combines, counted as on the path.
    pub reduced: f64,
}

/// What nodes do for one chunk, whenever they do it.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Work {
    /// Messages sent and received.
    pub messages: f64,
    /// Bytes sent.
    pub sent: f64,
    /// Bytes combined, each operand but the first counted.
    pub reduced: f64,
    /// Bytes copied from one place to another on a node, but its own ranks' blocks to themselves.
    pub copied: f64,
}

impl Terms {
    /// Nodes, as a number to reckon with.
    #[must_use]
    pub fn n(&self) -> f64 {
        f64::from(self.nodes.max(1))
    }

    /// `ceil(log2 N)`.
    #[must_use]
    pub fn log2_up(&self) -> f64 {
        f64::from(u32::BITS - (self.nodes.max(1) - 1).leading_zeros())
    }

    /// `floor(log2 N)`.
    #[must_use]
    pub fn log2_down(&self) -> f64 {
        f64::from(self.nodes.max(1).ilog2())
    }
}
