//! Whose turn it is: deficit round robin over tenants, and within a tenant over its communicators.
//!
//! A flow (a tenant, or a communicator) that has something to do is in one of two lists. One that was idle enters the
//! list of fresh flows, which is served first and for one quantum at most; what remains busy is served in the list of
//! old flows, where each spends a quantum a round and owes what it spent beyond. A fresh flow that has nothing more to
//! do passes through the old list before it is idle again, and comes back with what it then had left, so that coming and
//! going gains nothing. This is deficit round robin (Shreedhar and Varghese, SIGCOMM 1995) with the lists of RFC 8290,
//! section 4.2: whatever the mix, every busy flow is served once in each round, the shares of busy tenants differ by a
//! bounded number of bytes, and a flow that asks for little is served at once.

use std::collections::{BTreeMap, VecDeque};

/// What a flow may spend in a round, in bytes: about one piece of local work.
pub(crate) const QUANTUM: i64 = 128 << 10;

/// Where a flow is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Place {
    /// In neither list.
    #[default]
    Idle,
    Fresh,
    Old,
}

#[derive(Debug, Clone, Copy, Default)]
struct Flow {
    place: Place,
    /// It has something to do.
    busy: bool,
    /// What it may spend before others have their turn; negative: what it owes. An idle flow's is what it comes back with,
    /// a whole quantum where that is none.
    credit: i64,
}

/// Flows that are served in turn. Their state is in a table that several of these may share.
#[derive(Debug, Default)]
struct Rounds {
    fresh: VecDeque<u32>,
    old: VecDeque<u32>,
    busy: u32,
    flows: u32,
}

impl Rounds {
    /// There is one more flow. Serving it will not allocate.
    fn add(&mut self) {
        self.flows += 1;
        self.fresh.reserve(self.flows as usize);
        self.old.reserve(self.flows as usize);
    }

    /// The flow has something to do. Returns whether it is the first that has.
    fn wake(&mut self, index: u32, flows: &mut [Flow]) -> bool {
        let Some(flow) = flows.get_mut(index as usize).filter(|flow| !flow.busy) else { return false };
        flow.busy = true;
        if flow.place == Place::Idle {
            flow.place = Place::Fresh;
            if flow.credit <= 0 {
                flow.credit = QUANTUM;
            }
            self.fresh.push_back(index);
        }
        self.busy += 1;
        self.busy == 1
    }

    /// The flow has nothing more to do. Returns whether none has.
    fn rest(&mut self, index: u32, flows: &mut [Flow]) -> bool {
        let Some(flow) = flows.get_mut(index as usize).filter(|flow| flow.busy) else { return false };
        flow.busy = false;
        self.busy -= 1;
        self.busy == 0
    }

    /// Whose turn it is. The flow stays in front until it has spent its credit or rests.
    fn next(&mut self, flows: &mut [Flow]) -> Option<u32> {
        if self.busy == 0 {
            if self.fresh.is_empty() && self.old.is_empty() {
                return None;
            }
            // Nobody waited for what the others owe.
            for index in self.fresh.drain(..).chain(self.old.drain(..)) {
                if let Some(flow) = flows.get_mut(index as usize) {
                    (flow.place, flow.credit) = (Place::Idle, 0);
                }
            }
            return None;
        }
        loop {
            let fresh = !self.fresh.is_empty();
            let list = if fresh { &mut self.fresh } else { &mut self.old };
            let index = *list.front()?;
            let Some(flow) = flows.get_mut(index as usize) else {
                list.pop_front();
                continue;
            };
            if flow.credit > 0 && flow.busy {
                return Some(index);
            }
            list.pop_front();
            if flow.credit <= 0 {
                flow.credit += QUANTUM;
            } else if !fresh {
                flow.place = Place::Idle;
                continue;
            }
            flow.place = Place::Old;
            self.old.push_back(index);
        }
    }

    /// The flow is gone for good.
    fn remove(&mut self, index: u32, flows: &mut [Flow]) -> bool {
        let was_last = self.rest(index, flows);
        self.flows = self.flows.saturating_sub(1);
        self.fresh.retain(|other| *other != index);
        self.old.retain(|other| *other != index);
        if let Some(flow) = flows.get_mut(index as usize) {
            *flow = Flow::default();
        }
        was_last
    }
}

fn charge(index: u32, bytes: i64, flows: &mut [Flow]) {
    if let Some(flow) = flows.get_mut(index as usize) {
        flow.credit = flow.credit.saturating_sub(bytes);
    }
}

/// Serves the communicators of all tenants fairly by what they are charged for.
#[derive(Debug, Default)]
pub(crate) struct Schedule {
    tenants: Rounds,
    tenant_flows: Vec<Flow>,
    /// The communicators of each tenant.
    members: Vec<Rounds>,
    flows: Vec<Flow>,
    tenant_of: Vec<u32>,
}

impl Schedule {
    /// A communicator belongs to a tenant from now on.
    pub(crate) fn add(&mut self, communicator: u32, tenant: u32) {
        let (at, row) = (communicator as usize, tenant as usize);
        if self.flows.len() <= at {
            self.flows.resize(at + 1, Flow::default());
            self.tenant_of.resize(at + 1, 0);
        }
        while self.members.len() <= row {
            self.members.push(Rounds::default());
            self.tenant_flows.push(Flow::default());
            self.tenants.add();
        }
        if let (Some(of), Some(members)) = (self.tenant_of.get_mut(at), self.members.get_mut(row)) {
            *of = tenant;
            members.add();
        }
    }

    /// A communicator is gone.
    pub(crate) fn remove(&mut self, communicator: u32) {
        let Some(tenant) = self.tenant_of.get(communicator as usize).copied() else { return };
        if let Some(members) = self.members.get_mut(tenant as usize)
            && members.remove(communicator, &mut self.flows)
        {
            self.tenants.rest(tenant, &mut self.tenant_flows);
        }
    }

    /// A communicator belongs to another tenant from now on.
    pub(crate) fn move_to(&mut self, communicator: u32, tenant: u32) {
        let busy = self.flows.get(communicator as usize).is_some_and(|flow| flow.busy);
        self.remove(communicator);
        self.add(communicator, tenant);
        if busy {
            self.wake(communicator);
        }
    }

    /// A communicator may have something to do.
    pub(crate) fn wake(&mut self, communicator: u32) {
        let Some(tenant) = self.tenant_of.get(communicator as usize).copied() else { return };
        if let Some(members) = self.members.get_mut(tenant as usize)
            && members.wake(communicator, &mut self.flows)
        {
            self.tenants.wake(tenant, &mut self.tenant_flows);
        }
    }

    /// A communicator has nothing to do until it is woken.
    pub(crate) fn rest(&mut self, communicator: u32) {
        let Some(tenant) = self.tenant_of.get(communicator as usize).copied() else { return };
        if let Some(members) = self.members.get_mut(tenant as usize)
            && members.rest(communicator, &mut self.flows)
        {
            self.tenants.rest(tenant, &mut self.tenant_flows);
        }
    }

    /// The communicator whose turn it is. It must be charged or rest before the next is asked for.
    pub(crate) fn next(&mut self) -> Option<u32> {
        let tenant = self.tenants.next(&mut self.tenant_flows)?;
        self.members.get_mut(tenant as usize)?.next(&mut self.flows)
    }

    /// A communicator has spent bytes, whether it was its turn or not.
    pub(crate) fn charge(&mut self, communicator: u32, bytes: u64) {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        let Some(tenant) = self.tenant_of.get(communicator as usize).copied() else { return };
        charge(communicator, bytes, &mut self.flows);
        charge(tenant, bytes, &mut self.tenant_flows);
    }

    /// Whether any communicator has something to do.
    pub(crate) const fn is_busy(&self) -> bool {
        self.tenants.busy > 0
    }

    /// How many tenants have something to do.
    pub(crate) const fn busy_tenants(&self) -> u32 {
        self.tenants.busy
    }

    /// The tenant of a communicator.
    pub(crate) fn tenant_of(&self, communicator: u32) -> u32 {
        self.tenant_of.get(communicator as usize).copied().unwrap_or(u32::MAX)
    }
}

/// Tenants by name, numbered as long as they have communicators.
#[derive(Debug, Default)]
pub(crate) struct Tenants {
    by_name: BTreeMap<u64, (u32, u32)>,
    free: Vec<u32>,
    numbers: u32,
}

impl Tenants {
    /// The number of a tenant, which has one more communicator.
    pub(crate) fn join(&mut self, name: u64) -> u32 {
        if let Some((number, members)) = self.by_name.get_mut(&name) {
            *members += 1;
            return *number;
        }
        let number = self.free.pop().unwrap_or_else(|| {
            self.numbers += 1;
            self.numbers - 1
        });
        self.by_name.insert(name, (number, 1));
        number
    }

    /// A tenant has one communicator less.
    pub(crate) fn leave(&mut self, name: u64) {
        let Some((number, members)) = self.by_name.get_mut(&name) else { return };
        *members -= 1;
        if *members == 0 {
            let number = *number;
            self.by_name.remove(&name);
            self.free.push(number);
        }
    }
}

#[cfg(test)]
#[path = "schedule_tests.rs"]
mod tests;
