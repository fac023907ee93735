//! Two levels at once (Huawei's HCCL, "Pipeline"): blocks go around a ring among the nodes with the same place in their
//! groups, and each that comes is given to all others of the group while the next one comes. With `P` groups, messages of
//! `s / p` bytes, and `a_x`, `b_x` among groups and `a_i`, `b_i` within them an all_gather takes
//! `max(s / p b_x + a_x, s / p b_i + a_i) (P - 1) + s / p b_i + a_i`, where every pair of nodes of a group has a link of its
//! own. A reduce_scatter is that backwards in time, an allreduce is both.
//!
//! So links within groups and links among them are busy at the same time, of one chunk already: a hierarchical algorithm
//! needs several for that. In turn `t` a node gives its group the block of the group `t` places back. The rounds are those
//! of both stages one after the other, in the order of the turns (`rounds`).

use crate::{Cost, Terms};

/// What a chunk of an allreduce costs.
pub(super) fn cost(terms: &Terms) -> Cost {
    let group = super::group(terms.nodes, terms.group_nodes).unwrap_or(1);
    let groups = f64::from(terms.nodes / group);
    let (others, part) = (terms.n() - 1.0, terms.bytes / terms.n());
    Cost {
        rounds: 2.0 * groups,
        link_bytes: 2.0 * groups * part,
        port_bytes: 2.0 * others * part,
        path_reduced: others * part,
        messages: 4.0 * others,
        sent: 2.0 * others * part,
        reduced: others * part,
    }
}
