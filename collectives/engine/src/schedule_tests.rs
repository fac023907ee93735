//! What the schedule promises, for any mix.

use proptest::prelude::*;

use super::{QUANTUM, Schedule, Tenants};

/// The most bytes of one visit here.
const COST: u64 = 300 << 10;

/// Communicators of tenants: `sizes[t]` belong to tenant `t`.
fn schedule(sizes: &[usize]) -> (Schedule, Vec<u32>) {
    let mut schedule = Schedule::default();
    let mut tenant_of = Vec::new();
    for (tenant, size) in (0..).zip(sizes) {
        for _ in 0..*size {
            schedule.add(u32::try_from(tenant_of.len()).unwrap_or(0), tenant);
            tenant_of.push(tenant);
        }
    }
    (schedule, tenant_of)
}

fn sizes() -> impl Strategy<Value = Vec<usize>> {
    proptest::collection::vec(1_usize..6, 1..6)
}

proptest! {
    /// Tenants that are always busy get the same number of bytes, however many communicators they have, whatever a
    /// visit costs and whoever comes and goes.
    #[test]
    fn busy_tenants_share_equally(
        sizes in sizes(),
        visits in proptest::collection::vec((1..COST, any::<bool>(), any::<prop::sample::Index>()), 500..800),
    ) {
        let (mut schedule, tenant_of) = schedule(&sizes);
        // The last tenant comes and goes.
        let guest = sizes.len() - 1;
        let mut served = vec![0_i64; sizes.len()];
        (0..).zip(&tenant_of).for_each(|(index, _)| schedule.wake(index));
        for (cost, rests, other) in visits {
            let Some(index) = schedule.next() else { break };
            let tenant = tenant_of[index as usize] as usize;
            schedule.charge(index, cost);
            served[tenant] += cost as i64;
            if tenant == guest && rests {
                schedule.rest(index);
            }
            let other = other.index(tenant_of.len()) as u32;
            schedule.wake(other);
            let most = served[..guest].iter().copied().max().unwrap_or(0);
            let least = served[..guest].iter().copied().min().unwrap_or(0);
            let bound = 2 * (QUANTUM + COST as i64);
            prop_assert!(most - least <= bound, "{served:?}");
            prop_assert!(guest == 0 || served[guest] <= most + bound, "{served:?}");
        }
    }

    /// Nothing that is busy waits for ever: it has its turn before the others have spent a few rounds each.
    #[test]
    fn nobody_starves(
        sizes in sizes(),
        visits in proptest::collection::vec((1..COST, any::<bool>(), any::<prop::sample::Index>()), 500..800),
    ) {
        let (mut schedule, tenant_of) = schedule(&sizes);
        let all = tenant_of.len() as u64;
        let mut waited = vec![None; tenant_of.len()];
        for (cost, rests, other) in visits {
            let other = other.index(tenant_of.len());
            schedule.wake(other as u32);
            waited[other].get_or_insert(0_u64);
            let Some(index) = schedule.next() else { continue };
            schedule.charge(index, cost);
            waited.iter_mut().flatten().for_each(|bytes| *bytes += cost);
            waited[index as usize] = (!rests).then_some(0);
            if rests {
                schedule.rest(index);
            }
            let bound = 4 * all * (QUANTUM as u64 + COST);
            prop_assert!(waited.iter().flatten().all(|bytes| *bytes <= bound), "{waited:?}");
        }
    }

    /// A tenant that was idle is served before a busy one is served again.
    #[test]
    fn who_was_idle_comes_first(sizes in proptest::collection::vec(1_usize..6, 2..6), rounds in 1_usize..50) {
        let (mut schedule, tenant_of) = schedule(&sizes);
        let guest = sizes.len() - 1;
        let of = |index: u32| tenant_of[index as usize] as usize;
        (0..).zip(&tenant_of).filter(|(_, t)| (**t as usize) < guest).for_each(|(i, _)| schedule.wake(i));
        for _ in 0..rounds {
            let index = schedule.next().unwrap_or(0);
            schedule.charge(index, QUANTUM as u64);
        }
        let first = tenant_of.iter().position(|t| *t as usize == guest).unwrap_or(0) as u32;
        schedule.wake(first);
        // Those that became busy at the start have had their first quantum by now, unless there were fewer rounds.
        let fresh = sizes.len().saturating_sub(rounds);
        let mut before = 0;
        while let Some(index) = schedule.next().filter(|index| of(*index) != guest) {
            schedule.charge(index, QUANTUM as u64);
            before += 1;
        }
        prop_assert!(before <= fresh, "{before} others came first");
    }
}

/// A tenant that spends as much beyond its quantum as it can without owing a whole one, rests, and comes back as soon as that was
/// taken for idleness gets no more than one that is always busy with short visits.
#[test]
fn coming_and_going_gains_nothing() {
    const SHORT: i64 = QUANTUM / 64;
    let (mut schedule, _) = schedule(&[1, 1]);
    let (busy, guest) = (0, 1);
    schedule.wake(busy);
    schedule.wake(guest);
    let (mut served, mut short_visits) = ([0_i64; 2], 0);
    for _ in 0..10_000 {
        let index = schedule.next().expect("one is always busy");
        let cost = if index == guest { 2 * QUANTUM - 1 } else { SHORT };
        schedule.charge(index, cost as u64);
        served[index as usize] += cost;
        if index == guest {
            schedule.rest(guest);
            short_visits = 0;
        } else {
            short_visits += 1;
            if short_visits > QUANTUM / SHORT {
                schedule.wake(guest);
            }
        }
    }
    assert!(served[1] <= served[0] + 4 * QUANTUM, "{served:?}");
    assert!(served[0] > 10 * QUANTUM, "{served:?}");
}

#[test]
fn what_is_gone_is_not_served() {
    let (mut schedule, _) = schedule(&[2, 1]);
    (0..3).for_each(|index| schedule.wake(index));
    schedule.remove(0);
    schedule.remove(2);
    for _ in 0..5 {
        assert_eq!(schedule.next(), Some(1));
        schedule.charge(1, 1 << 20);
    }
    schedule.rest(1);
    assert_eq!(schedule.next(), None);
    assert!(!schedule.is_busy());
}

#[test]
fn who_moves_to_another_tenant_shares_with_its_communicators() {
    let (mut schedule, _) = schedule(&[1, 1, 1]);
    (0..3).for_each(|index| schedule.wake(index));
    schedule.move_to(2, 0);
    assert_eq!(schedule.busy_tenants(), 2);
    let mut served = [0; 3];
    for _ in 0..400 {
        let index = schedule.next().unwrap_or(0);
        schedule.charge(index, QUANTUM as u64);
        served[index as usize] += 1;
    }
    assert_eq!(served, [100, 200, 100]);
}

#[test]
fn tenants_have_numbers_as_long_as_they_have_communicators() {
    let mut tenants = Tenants::default();
    assert_eq!((tenants.join(70), tenants.join(80), tenants.join(70)), (0, 1, 0));
    tenants.leave(70);
    assert_eq!(tenants.join(90), 2);
    tenants.leave(70);
    tenants.leave(1);
    assert_eq!((tenants.join(60), tenants.join(70)), (0, 3));
}
