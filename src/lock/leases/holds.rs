//! The streams of this instance, to be told at once when their lease ends here.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use tokio::sync::SetOnce;

use crate::lock::key::LockKey;
use crate::lock::lease::{Holder, Lease};
use crate::lock::leases::{Leases, Why};
use crate::lock::slots::Slots;
use crate::lock::token::FencingToken;

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
    /// The lease that it keeps, once it has one.
    number: Option<FencingToken>,
    told: Arc<SetOnce<Why>>,
}

/// The registration of a stream, until it is dropped.
pub(crate) struct Registered {
    leases: Arc<Leases>,
    key: LockKey,
    /// The first reason why the stream no longer has the lease.
    told: Arc<SetOnce<Why>>,
}

impl Holds {
    /// Tells the streams of the lease that ended, or of an earlier one. Without a fencing token, a
    /// direct Redis client's lock ended or the store lost its record; then the next refresh tells.
    pub(super) fn ended(&mut self, key: &LockKey, ended: &Holder, why: Why) {
        let Some(number) = ended.fencing_token else { return };
        let Some(of_key) = self.0.get_mut(key) else { return };
        for hold in &of_key.holds {
            if let Some(own) = hold.number.filter(|own| ended.ends(*own)) {
                let _ = hold.told.set(if own == number { why } else { Why::Elsewhere });
            }
        }
        of_key.ended.insert(number, (ended.clone(), why));
        if of_key.ended.len() > MOST_ENDED {
            of_key.ended.pop_first();
        }
    }
}

impl Registered {
    /// Registers a stream that is about to ask for its lease.
    pub(crate) fn new(leases: Arc<Leases>, key: LockKey) -> Self {
        let told = Arc::default();
        let own = OpenHold { number: None, told: Arc::clone(&told) };
        leases.with(|_, holds| holds.0.entry(key.clone()).or_default().holds.push(own));
        Self { leases, key, told }
    }

    /// Notes the lease, and tells its end if that was seen already.
    pub(crate) fn has(&self, lease: &Lease) {
        let number = lease.fencing_token;
        self.with(|of_key| {
            let mut holds = of_key.holds.iter_mut();
            if let Some(own) = holds.find(|hold| Arc::ptr_eq(&hold.told, &self.told)) {
                own.number = Some(number);
            }
            let mut seen = of_key.ended.range(number..).map(|(_, end)| end);
            if let Some((ended, why)) = seen.find(|(ended, _)| ended.ends(number)) {
                let is_its = ended.fencing_token == Some(number);
                let _ = self.told.set(if is_its { *why } else { Why::Elsewhere });
            }
        });
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
    use crate::lock::sample::{key, number, win};

    #[test]
    fn a_thousand_streams_whose_leases_end_before_they_hear_of_them_are_told_all_the_same() {
        let leases = Arc::new(Leases::new(false, Prefixes::default(), Box::new(|_, _, _| ())));
        let streams: Vec<_> =
            (0..1_000).map(|_| Registered::new(leases.clone(), key("a"))).collect();
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
