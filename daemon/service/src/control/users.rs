//! What each user holds, against what one may.

use std::collections::BTreeMap;

use ringway_abi::control::RefusalKind;

use super::client::Refusal;
use crate::config::Quotas;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Usage {
    sessions: u32,
    communicators: u32,
    regions: u32,
    region_bytes: u64,
}

/// The books of every user.
#[derive(Debug)]
pub(super) struct Users {
    quotas: Quotas,
    usage: BTreeMap<u32, Usage>,
}

fn exceeded(what: &str, limit: u64, setting: &str, advice: &str) -> Refusal {
    let message =
        format!("this user already has {what} (limit {limit}); {advice}, or raise `quotas.{setting}`");
    (RefusalKind::Quota, message)
}

impl Users {
    pub(super) fn new(quotas: Quotas) -> Self {
        Self { quotas, usage: BTreeMap::new() }
    }

    /// One more session; `false` when there are too many.
    pub(super) fn add_session(&mut self, uid: u32) -> bool {
        let usage = self.usage.entry(uid).or_default();
        let room = usage.sessions < self.quotas.sessions;
        usage.sessions += u32::from(room);
        room
    }

    pub(super) fn add_communicator(&mut self, uid: u32) -> Result<(), Refusal> {
        let usage = self.usage.entry(uid).or_default();
        let limit = self.quotas.communicators;
        if usage.communicators >= limit {
            let advice = "leave some communicators";
            return Err(exceeded("as many communicators as it may", limit.into(), "communicators", advice));
        }
        usage.communicators += 1;
        Ok(())
    }

    pub(super) fn add_region(&mut self, uid: u32, bytes: u64) -> Result<(), Refusal> {
        self.may_add_region(uid, bytes)?;
        let usage = self.usage.entry(uid).or_default();
        usage.regions += 1;
        usage.region_bytes += bytes;
        Ok(())
    }

    /// Memory that is no region of the user's own, such as its part of a cell.
    pub(super) fn add_bytes(&mut self, uid: u32, bytes: u64) -> Result<(), Refusal> {
        self.may_add_bytes(uid, bytes)?;
        self.usage.entry(uid).or_default().region_bytes += bytes;
        Ok(())
    }

    /// Whether one more region of this many bytes is within the limits.
    pub(super) fn may_add_region(&self, uid: u32, bytes: u64) -> Result<(), Refusal> {
        let usage = self.usage.get(&uid).copied().unwrap_or_default();
        let limit = self.quotas.regions;
        if usage.regions >= limit {
            return Err(exceeded("as many regions as it may", limit.into(), "regions", "release some"));
        }
        self.may_add_bytes(uid, bytes)
    }

    fn may_add_bytes(&self, uid: u32, bytes: u64) -> Result<(), Refusal> {
        let usage = self.usage.get(&uid).copied().unwrap_or_default();
        let left = self.quotas.region_bytes.saturating_sub(usage.region_bytes);
        if bytes > left {
            let message = format!(
                "{bytes} bytes of memory are more than the {left} bytes this user has left (limit {}); release other \
                 regions, or raise `quotas.region_mib`",
                self.quotas.region_bytes
            );
            return Err((RefusalKind::Quota, message));
        }
        Ok(())
    }

    pub(super) fn remove_session(&mut self, uid: u32) {
        self.change(uid, |u| u.sessions = u.sessions.saturating_sub(1));
    }

    pub(super) fn remove_communicator(&mut self, uid: u32) {
        self.change(uid, |u| u.communicators = u.communicators.saturating_sub(1));
    }

    pub(super) fn remove_regions(&mut self, uid: u32, regions: u32, bytes: u64) {
        self.change(uid, |u| {
            u.regions = u.regions.saturating_sub(regions);
            u.region_bytes = u.region_bytes.saturating_sub(bytes);
        });
    }

    fn change(&mut self, uid: u32, change: impl FnOnce(&mut Usage)) {
        if let Some(usage) = self.usage.get_mut(&uid) {
            change(usage);
            if *usage == Usage::default() {
                self.usage.remove(&uid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_user_has_limits_of_its_own() {
        let quotas = Quotas { sessions: 1, communicators: 1, regions: 2, region_bytes: 100 };
        let mut users = Users::new(quotas);
        assert!(users.add_session(1) && users.add_session(2));
        assert!(!users.add_session(1));
        assert!(users.add_region(1, 60).is_ok());
        let (kind, message) = users.add_region(1, 41).expect_err("too many bytes");
        assert!(kind == RefusalKind::Quota && message.contains("40 bytes") && message.contains("region_mib"));
        assert!(users.add_region(1, 40).is_ok());
        assert!(users.add_region(1, 0).expect_err("too many").1.contains("quotas.regions"));
        users.remove_regions(1, 2, 100);
        assert!(users.add_region(1, 100).is_ok());
        assert!(users.add_communicator(1).is_ok());
        assert!(users.add_communicator(1).expect_err("too many").1.contains("quotas.communicators"));
        users.remove_communicator(1);
        assert!(users.add_bytes(1, 1).is_err(), "what is shared counts as well");
        users.remove_regions(1, 1, 100);
        assert!(users.add_bytes(1, 100).is_ok());
        users.remove_regions(1, 0, 100);
        users.remove_session(1);
        users.remove_session(2);
        assert!(users.usage.is_empty());
    }
}
