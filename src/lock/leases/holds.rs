//! The streams of this instance, to be told at once when their lease ends here.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use tokio::sync::SetOnce;

use crate::lock::key::LockKey;
use crate::lock::lease::{Holder, Lease, Renewals};
use crate::lock::leases::{Leases, Why};
use crate::lock::slots::Slots;
use crate::lock::token::{FencingToken, LeaseToken};

/// The most ends of a key that are remembered while a stream of it is open: as many as it may have
/// leases, for all may end before their streams hear of their grants. Numbers rise, so these are the
/// latest.
const MOST_ENDED: usize = Slots::MOST.number() as usize;

/// The open streams.
#[derive(Default)]
pub(super) struct Holds(HashMap<LockKey, OfKey>);

/// The open streams of a key, and the ends that this instance has seen meanwhile: the answer of a
/// grant may come after that of its end.
#[derive(Default)]
struct OfKey {
    holds: Vec<OpenHold>,
    ended: BTreeMap<FencingToken, (Holder, Why)>,
}

struct OpenHold {
    token: LeaseToken,
    stage: Stage,
    told: Arc<SetOnce<Why>>,
}

/// Of two leases of one token the greater stage is the newer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    /// It asks for its lease.
    Asks,
    /// It waits in line.
    Waits,
    /// It has a lease with this number and so many renewals.
    Has(FencingToken, Renewals),
}

/// The registration of a stream, until it is dropped.
pub(crate) struct Registered {
    leases: Arc<Leases>,
    key: LockKey,
    token: LeaseToken,
    /// The first reason why the stream no longer has the lease.
    told: Arc<SetOnce<Why>>,
}

impl Holds {
    pub(super) fn taken_over(&self, token: &LeaseToken, lease: &Lease) {
        let taken_over = Stage::of(lease);
        let holds = self.0.get(&lease.key).into_iter().flat_map(|of_key| &of_key.holds);
        let older = |hold: &&OpenHold| hold.token == *token && hold.stage <= taken_over;
        for hold in holds.filter(|hold| hold.stage != Stage::Asks).filter(older) {
            let _ = hold.told.set(Why::TakenOver);
        }
    }

    /// Tells the streams of the lease that ended, or of an earlier one. Without a fencing token, a
    /// direct Redis client's lock ended or the store lost its record; then the next refresh tells.
    pub(super) fn ended(&mut self, key: &LockKey, ended: &Holder, why: Why) {
        let Some(number) = ended.fencing_token else { return };
        let Some(of_key) = self.0.get_mut(key) else { return };
        for hold in &of_key.holds {
            if let Stage::Has(lease, _) = hold.stage
                && ended.ends(lease)
            {
                let _ = hold.told.set(why);
            }
        }
        of_key.ended.insert(number, (ended.clone(), why));
        if of_key.ended.len() > MOST_ENDED {
            of_key.ended.pop_first();
        }
    }
}

impl Stage {
    fn of(lease: &Lease) -> Self {
        Self::Has(lease.fencing_token, lease.renewals)
    }
}

impl Registered {
    /// Registers a stream that is about to ask for its lease.
    pub(crate) fn new(leases: Arc<Leases>, key: LockKey, token: LeaseToken) -> Self {
        let told = Arc::default();
        let own = OpenHold { token: token.clone(), stage: Stage::Asks, told: Arc::clone(&told) };
        leases.with(|_, holds| holds.0.entry(key.clone()).or_default().holds.push(own));
        Self { leases, key, token, told }
    }

    /// Notes that the lease is waited for. Only the newest waiting stream under a token goes on.
    pub(crate) fn waits(&self) {
        self.with(|of_key| self.advance(of_key, Stage::Waits));
    }

    /// Notes the lease, and tells its end if that was seen already.
    pub(crate) fn has(&self, lease: &Lease) {
        self.with(|of_key| {
            self.advance(of_key, Stage::of(lease));
            let mut seen = of_key.ended.range(lease.fencing_token..).map(|(_, end)| end);
            if let Some((_, why)) = seen.find(|(ended, _)| ended.ends(lease.fencing_token)) {
                let _ = self.told.set(*why);
            }
        });
    }

    /// Moves on to a stage. The store's answers decide which stream under the token is the newest,
    /// not the order of registration.
    fn advance(&self, of_key: &mut OfKey, stage: Stage) {
        for hold in of_key.holds.iter_mut().filter(|hold| hold.token == self.token) {
            if Arc::ptr_eq(&hold.told, &self.told) {
                hold.stage = stage;
            } else if hold.stage > stage && stage != Stage::Waits {
                let _ = self.told.set(Why::TakenOver);
            } else if hold.stage != Stage::Asks {
                let _ = hold.told.set(Why::TakenOver);
            }
        }
    }

    /// Waits until the stream is told why it no longer has the lease.
    pub(crate) async fn told(&self) -> Why {
        *self.told.wait().await
    }

    /// The reason, if the stream was told one.
    pub(crate) fn was_told(&self) -> Option<Why> {
        self.told.get().copied()
    }

    fn with(&self, use_it: impl FnOnce(&mut OfKey)) {
        self.leases.with(|_, holds| holds.0.get_mut(&self.key).map(use_it));
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.leases.with(|_, Holds(open)| {
            if let Some(of_key) = open.get_mut(&self.key) {
                of_key.holds.retain(|hold| !Arc::ptr_eq(&hold.told, &self.told));
                if of_key.holds.is_empty() {
                    open.remove(&self.key);
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::Registered;
    use crate::lock::lease::Holder;
    use crate::lock::leases::{Leases, Why};
    use crate::lock::prefixes::Prefixes;
    use crate::lock::sample::{key, number, token, win};

    #[test]
    fn a_thousand_streams_whose_leases_end_before_they_hear_of_them_are_told_all_the_same() {
        let leases = Arc::new(Leases::new(false, Prefixes::default(), Box::new(|_, _, _| ())));
        let streams: Vec<_> = (0..1_000)
            .map(|one| Registered::new(leases.clone(), key("a"), token(&one.to_string())))
            .collect();
        for one in 1..=1_000 {
            let ended = Holder { fencing_token: Some(number(one)), ..Holder::default() };
            leases.ended(&key("a"), &ended, Why::Forced);
        }
        for (stream, one) in streams.iter().zip(1..) {
            stream.has(&win("a", one).lease);
            assert_eq!(stream.was_told(), Some(Why::Forced), "{one}");
        }
    }
}
