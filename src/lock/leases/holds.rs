//! The streams of this instance, to be told at once when their lease ends here.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::SetOnce;

use crate::lock::key::LockKey;
use crate::lock::lease::{Holder, Lease};
use crate::lock::leases::{Leases, Why};
use crate::lock::token::FencingToken;

/// The open streams.
#[derive(Default)]
pub(super) struct Holds(HashMap<LockKey, OfKey>);

/// The open streams of a key, and of the ends that this instance has seen meanwhile the one with the
/// greatest number: the answer of a grant may come after that of its end.
#[derive(Default)]
struct OfKey {
    holds: Vec<OpenHold>,
    last: Option<(Holder, Why)>,
}

struct OpenHold {
    /// The lease that it keeps, once it has one.
    number: Option<FencingToken>,
    told: Arc<SetOnce<Why>>,
}

/// The state of a lease as its stream hears of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    /// No end of it was seen.
    Goes,
    /// It has ended, for this reason.
    Ended(Why),
    /// A later lease of its shared key has ended; the store knows about this one.
    Unsure,
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
        let last = of_key.last.as_ref().and_then(|(last, _)| last.fencing_token);
        if Some(number) > last {
            of_key.last = Some((ended.clone(), why));
        }
    }
}

impl OfKey {
    /// The state of a lease whose grant comes now.
    fn state(&self, number: FencingToken) -> Heard {
        match &self.last {
            Some((last, why)) if last.fencing_token == Some(number) => Heard::Ended(*why),
            Some((last, _)) if last.ends(number) => Heard::Ended(Why::Elsewhere),
            Some((last, _)) if last.fencing_token > Some(number) => Heard::Unsure,
            _ => Heard::Goes,
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
    pub(crate) fn has(&self, lease: &Lease) -> Heard {
        let number = lease.fencing_token;
        let heard = self.with(|of_key| {
            let mut holds = of_key.holds.iter_mut();
            if let Some(own) = holds.find(|hold| Arc::ptr_eq(&hold.told, &self.told)) {
                own.number = Some(number);
            }
            of_key.state(number)
        });
        if let Some(Heard::Ended(why)) = heard {
            let _ = self.told.set(why);
        }
        heard.unwrap_or(Heard::Goes)
    }

    /// Waits until the stream is told why it no longer has the lease.
    pub(crate) async fn told(&self) -> Why {
        *self.told.wait().await
    }

    /// The reason, if the stream was told one.
    pub(crate) fn was_told(&self) -> Option<Why> {
        self.told.get().copied()
    }

    fn with<T>(&self, use_it: impl FnOnce(&mut OfKey) -> T) -> Option<T> {
        self.leases.with(|_, holds| holds.0.get_mut(&self.key).map(use_it))
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

    use super::{Heard, Registered};
    use crate::lock::lease::Holder;
    use crate::lock::leases::{Leases, Why};
    use crate::lock::prefixes::Prefixes;
    use crate::lock::sample::{key, number, win};
    use crate::lock::slots::{Share, Slots};

    #[test]
    fn a_stream_whose_lease_ended_before_it_heard_of_the_grant_is_told_or_asks_the_store() {
        let leases = Arc::new(Leases::new(false, Prefixes::default(), Box::new(|_, _, _| ())));
        let stream = || Registered::new(leases.clone(), key("a"));
        let own = stream();
        let earlier = stream();
        let later = stream();
        assert_eq!(own.has(&win("a", 4).lease), Heard::Goes);
        let share = Share { slots: Slots::SHARED, ..Share::ALONE };
        let reader = |one| Holder { share, fencing_token: Some(number(one)), ..Holder::default() };
        leases.ended(&key("a"), &reader(6), Why::Forced);
        leases.ended(&key("a"), &reader(5), Why::Released);
        assert_eq!(stream().has(&win("a", 6).lease), Heard::Ended(Why::Forced));
        assert_eq!(earlier.has(&win("a", 5).lease), Heard::Unsure);
        assert_eq!(later.has(&win("a", 7).lease), Heard::Goes);
        assert_eq!([&own, &earlier, &later].map(Registered::was_told), [None; 3]);
        let exclusive = Holder { fencing_token: Some(number(8)), ..Holder::default() };
        leases.ended(&key("a"), &exclusive, Why::Released);
        assert_eq!(later.was_told(), Some(Why::Elsewhere));
    }
}
