//! What packets between nodes carry, where the nodes' ports differ.

use ringway_verbs::{Device, PacketBytes, QueuePairNumber};

use crate::membership::GroupKey;

/// Says of which other nodes a communicator's connections have to do with smaller packets than this node's port could send, or theirs
/// could take; of each once.
pub(super) fn tell_unequal<D: Device>(
    group: GroupKey,
    own: u32,
    queue_pairs: impl Iterator<Item = (u32, QueuePairNumber)>,
    device: &D,
) {
    let mut told = None;
    for (node, queue_pair) in queue_pairs {
        let Some(bytes) = device.packet_bytes(queue_pair).filter(|_| told != Some(node)) else { continue };
        if let Some(text) = unequal(own, node, bytes) {
            tracing::warn!(communicator = group.0, "{text}");
            told = Some(node);
        }
    }
}

/// A sentence about a connection between two nodes whose ports differ.
fn unequal(own: u32, other: u32, bytes: PacketBytes) -> Option<String> {
    let PacketBytes { own: here, peer: there } = bytes;
    let carried = here.min(there);
    (here != there).then(|| {
        format!(
            "packets between node {own}, this one, and node {other} carry {carried} bytes: the port of node {own} could take {here}, that \
             of node {other} {there}; give the interfaces of both the same MTU, and what is between them one as large (`ip link set \
             dev INTERFACE mtu 9000`)"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_that_differ_are_named_with_what_they_take() {
        let text = unequal(2, 5, PacketBytes { own: 4096, peer: 1024 }).expect("they differ");
        for part in ["carry 1024 bytes", "node 2 could take 4096", "node 5 1024", "mtu 9000"] {
            assert!(text.contains(part), "`{part}` is missing in: {text}");
        }
        assert_eq!(unequal(2, 5, PacketBytes { own: 1024, peer: 1024 }), None);
    }
}
