//! Communicators made from part of another one.

use ringway_abi::UniqueId;

use crate::{CallError, Communicator, Error, JoinError, RequestError, environment::Secret};

/// What a rank that joins none of the new communicators says.
const NO_COLOR: i64 = -1;

impl Communicator {
    /// Divides the ranks into new communicators: those that give the same `color` are together, in the order of `key`
    /// and then of their present ranks. A rank that gives no color joins none. Every rank calls this, at the same place
    /// among its collective calls.
    ///
    /// # Errors
    /// [`JoinError`].
    pub fn split(&self, color: Option<u32>, key: i64) -> Result<Option<Self>, JoinError> {
        let count = self.splits.get();
        self.splits.set(count.wrapping_add(1));
        let own = [color.map_or(NO_COLOR, i64::from), key];
        let mut all = vec![0_i64; (self.size as usize).saturating_mul(own.len())];
        self.blocking().all_gather(&own, &mut all).map_err(|error| match error {
            Error::Operation(error) => JoinError::Split(error),
            Error::Call(error) => JoinError::SplitCall(error),
            Error::Memory(error) => JoinError::Memory(error),
            _ => JoinError::SplitCall(CallError::DaemonLost),
        })?;
        let Some(color) = color else { return Ok(None) };
        let members = members(&all, color);
        let rank = members.iter().position(|member| *member == self.rank);
        let (Some(rank), Ok(size)) = (rank.and_then(|r| u32::try_from(r).ok()), u32::try_from(members.len()))
        else {
            let what = "an all_gather without this rank's own value";
            return Err(JoinError::Request(RequestError::Protocol { what }));
        };
        let own_node = self.node_of(self.rank);
        let on_one_node = members.iter().all(|member| self.node_of(*member) == own_node);
        let secret =
            Secret::new("split").field(&self.id.secret).number(count).number(u64::from(color)).finish();
        let id = UniqueId { root: self.id.root.filter(|_| !on_one_node), secret };
        let child = self
            .client
            .communicator(&id, rank, size)
            .timeout(self.timeout)
            .join_timeout(self.join_timeout)
            .ring_size(self.ring_size)
            .share_memory(self.share)
            .algorithm(self.algorithm.as_str());
        let child = match &self.words {
            Some(words) => child.gpu(words.gpu()),
            None => child,
        };
        child.join().map(Some)
    }
}

/// The ranks that gave this color, in the order of key and rank. `all` holds each rank's color and key.
fn members(all: &[i64], color: u32) -> Vec<u32> {
    let (pairs, _) = all.as_chunks::<2>();
    let mut members: Vec<(i64, u32)> = (0..)
        .zip(pairs)
        .filter(|(_, [given, _])| *given == i64::from(color))
        .map(|(rank, [_, key])| (*key, rank))
        .collect();
    members.sort_unstable();
    members.into_iter().map(|(_, rank)| rank).collect()
}

#[cfg(test)]
mod tests {
    use super::members;

    #[test]
    fn members_are_ordered_by_key_then_rank() {
        let all = [0, 5, 1, 0, 0, -3, -1, 0, 0, 5];
        assert_eq!(members(&all, 0), [2, 0, 4]);
        assert_eq!(members(&all, 1), [1]);
        assert_eq!(members(&all, 2), [0_u32; 0]);
    }
}
