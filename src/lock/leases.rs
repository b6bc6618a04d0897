//! The leases that this instance knows: one registry, which the verbs feed.
//!
//! It tells streams what ended their lease (rule 16), counts leases for the quotas and the metrics,
//! and remembers the last ends for the dashboard. If only the TTL of a lease has passed, `overdue`
//! names it for a look that decides whether it ended. Everything is bounded and in memory; no other
//! rule of a lock asks here.

mod holds;
mod known;

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::lock::key::LockKey;
use crate::lock::lease::{Claim, Holder, Lease, LockStatus, Owner};
use crate::lock::leases::holds::Holds;
pub(crate) use crate::lock::leases::holds::{Heard, Registered};
use crate::lock::leases::known::{GRACE, Known, KnownLease};
use crate::lock::permit::{Count, Permit};
use crate::lock::prefixes::Prefixes;
use crate::lock::slots::{Share, Slots};
use crate::lock::store::{Target, Win};
use crate::lock::time::{Ttl, millis_down};
use crate::lock::token::FencingToken;

/// The expected end of a lease that never expires.
const NEVER: Duration = Duration::from_secs(86_400 * 365);

/// Takes the time that a lease under a prefix was held, and the reason of its end.
pub(crate) type ObserveHeld = Box<dyn Fn(&str, Why, Duration) + Send + Sync>;

/// The known leases, the streams that keep one, and the last ends.
pub(crate) struct Leases {
    /// The reason of an end that nobody reported.
    unreported: Why,
    state: Mutex<(Known, Holds)>,
}

/// The leases under a prefix that this instance granted and that have not ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Living {
    /// Their number.
    pub(crate) count: usize,
    /// The age of the oldest; zero without any.
    pub(crate) oldest: Duration,
}

/// The end of a lease.
#[derive(Clone, Debug)]
pub(crate) struct End {
    /// Its number; later reports have greater ones.
    pub(crate) number: u64,
    pub(crate) at: Instant,
    pub(crate) key: LockKey,
    pub(crate) owner: Option<Owner>,
    pub(crate) fencing_token: Option<FencingToken>,
    /// The time it was held, if this instance granted it.
    pub(crate) held: Option<Duration>,
    /// The wait before the grant, if this instance granted it.
    pub(crate) waited: Option<Duration>,
    pub(crate) why: Why,
}

impl End {
    /// Writes the line of the log.
    fn log(&self) {
        tracing::info!(
            lock.key = self.key.as_str(),
            lock.owner = self.owner.as_ref().map(Owner::as_str),
            lock.fencing_token = self.fencing_token.map(FencingToken::number),
            held_ms = self.held.map(millis_down),
            end = self.why.name(),
            seen_later = (self.why == Why::Elsewhere).then_some(true),
            "lease ended"
        );
    }
}

/// The reason why a lease ended, or why a stream no longer has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Its holder released it. A stream is told so as well of an early end that this instance cannot
    /// explain.
    Released,
    /// The client of its stream closed the connection.
    Disconnected,
    /// Its TTL passed.
    Expired,
    /// It lasted for the `max_hold` of its key.
    MaxHold,
    /// An administrator ended it by force.
    Forced,
    /// This instance did not see its end: it expired, or was ended through another instance or in
    /// the store. A stream tells `expired` or `released`, by its time.
    Elsewhere,
    /// Another request of its token has replaced it.
    Replaced,
    /// It goes on until it expires: the client of the stream has lost the right to it.
    Revoked,
}

impl Why {
    /// The word for it in the API and the metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Released => "released",
            Self::Disconnected => "disconnected",
            Self::Expired => "expired",
            Self::MaxHold => "max_hold",
            Self::Forced => "forced",
            Self::Elsewhere => "elsewhere",
            Self::Replaced => "replaced",
            Self::Revoked => "revoked",
        }
    }
}

impl Leases {
    /// Without any lease, over a store that other instances may share.
    pub(crate) fn new(shared: bool, prefixes: Prefixes, observe: ObserveHeld) -> Self {
        let unreported = if shared { Why::Elsewhere } else { Why::Expired };
        let known = Known::new(prefixes, observe);
        Self { unreported, state: Mutex::new((known, Holds::default())) }
    }

    /// Returns whether every end happens here, because no other instance uses the store.
    pub(crate) fn are_complete(&self) -> bool {
        self.unreported == Why::Expired
    }

    /// The longest time that a lease of the key lasts.
    pub(crate) fn max_hold(&self, key: &LockKey) -> Option<Duration> {
        self.with(|known, _| known.prefixes.max_hold(key)).map(Ttl::as_duration)
    }

    /// Notes a lease that a claim has, and tells the stream of the one that it replaces. The answer of
    /// its end may have come first.
    pub(crate) fn granted(&self, claim: &Claim, Win { lease, fresh, replaces, .. }: &Win) {
        let key = &lease.key;
        let number = lease.fencing_token;
        let now = Instant::now();
        let replaces = replaces.map(|replaced| replaced.number);
        self.with(|known, holds| {
            if replaces.is_some() {
                // It ends that one only, also of an exclusive key.
                let (fencing_token, share) =
                    (replaces, Share { slots: Slots::SHARED, ..Share::ALONE });
                let before = Holder { fencing_token, share, ..Holder::default() };
                holds.ended(key, &before, Why::Replaced);
            }
            if known.ended.iter().any(|end| end.fencing_token == Some(number) && end.key == *key) {
                return;
            }
            known.changes += 1;
            // A holder whose lease was replaced goes on under another number.
            let before = known.remove(key, number).or_else(|| known.remove(key, replaces?));
            if let Some(mut before) = before {
                if before.number() != number {
                    let replaced = before.end(now, Why::Replaced);
                    known.unlogged.push(replaced);
                }
                before.renew(lease, now);
                before.permit = claim.permit.clone().or(before.permit);
                return known.insert(before);
            }
            let shares = |share: Share| share != Share::ALONE;
            let beside = |known: &KnownLease| {
                let both = shares(lease.share) && shares(known.lease.share);
                both && known.token.as_ref() != Some(&claim.token)
            };
            if known.of_key(key).any(|one| one.number() > number && !beside(one)) {
                return; // A late answer: a later lease of the key is known.
            }
            known.end_all(key, now, self.unreported, |known| !beside(known));
            known.insert(KnownLease {
                token: Some(claim.token.clone()),
                granted: fresh.then_some((now, Duration::ZERO)),
                permit: claim.permit.clone(),
                ..KnownLease::new(lease.clone(), now, &known.prefixes)
            });
        });
    }

    /// Notes how long the request waited that began a lease.
    pub(crate) fn waited(&self, Win { lease, fresh, .. }: &Win, waited: Duration) {
        if *fresh && !waited.is_zero() {
            self.with(|known, _| {
                known.change(&lease.key, lease.fencing_token, |known| {
                    known.granted = known.granted.map(|(since, _)| (since, waited));
                });
            });
        }
    }

    /// Forgets a lease whose grant reached nobody, and returns its owner.
    pub(crate) fn taken_back(&self, key: &LockKey, number: FencingToken) -> Option<Owner> {
        self.with(|known, _| known.remove(key, number)?.lease.owner)
    }

    /// Notes a lease from before this process was started. Returns false if there is no room for
    /// more of them without a permit.
    pub(crate) fn found(&self, key: &LockKey, holder: &Holder, permit: Option<Permit>) -> bool {
        let (Some(fencing_token), Some(left)) = (holder.fencing_token, holder.left) else {
            return true;
        };
        let lease = Lease {
            key: key.clone(),
            owner: holder.owner.clone(),
            fencing_token,
            ttl: Ttl::lasting(left),
            capped: false,
            share: holder.share,
        };
        self.with(|known, _| {
            if known.lease(key, fencing_token).is_none() {
                let found = KnownLease::new(lease, Instant::now(), &known.prefixes);
                known.insert(KnownLease { permit, ..found });
            } // Otherwise its client has renewed it meanwhile.
            known.has_room()
        })
    }

    /// Returns whether a lease with a permit of this count is over once the claim has one.
    pub(crate) fn one_makes_way(&self, claim: &Claim, count: &Count) -> bool {
        let alone = claim.slots().is_alone();
        let makes_way = |known: &KnownLease| {
            known.token.as_ref() == Some(&claim.token) || alone && known.lease.share == Share::ALONE
        };
        let counted =
            |known: &KnownLease| known.permit.as_ref().is_some_and(|one| one.is_of(count));
        self.with(|known, _| known.of_key(&claim.key).any(|one| counted(one) && makes_way(one)))
    }

    /// Takes leases whose TTL has passed out of the quotas. Everything else here does so first.
    pub(crate) fn expire(&self) {
        self.with(|_, _| ());
    }

    pub(crate) fn renewed(&self, lease: &Lease) {
        self.with(|known, _| {
            let renew = |known: &mut KnownLease| known.renew(lease, Instant::now());
            known.change(&lease.key, lease.fencing_token, renew);
            known.changes += 1;
        });
    }

    /// Notes that the lease of `holder` was ended, and tells its stream.
    pub(crate) fn ended(&self, key: &LockKey, holder: &Holder, why: Why) {
        let now = Instant::now();
        let number = holder.fencing_token;
        self.with(|known, holds| {
            holds.ended(key, holder, why);
            let is_it = |known: &KnownLease| Some(known.number()) == number;
            let before = |known: &KnownLease| !is_it(known) && holder.ends(known.number());
            known.end_all(key, now, self.unreported, before);
            if known.of_key(key).any(is_it) {
                return known.end_all(key, now, why, is_it);
            }
            let key = key.clone();
            let owner = holder.owner.clone();
            let fencing_token = number;
            let held = holder.held;
            let waited = None;
            known.record(End { number: 0, at: now, key, owner, fencing_token, held, waited, why });
        });
    }

    /// Notes that a token no longer has the lease that is named. Without a name the answer may be
    /// older than its present lease.
    pub(crate) fn missed(&self, Target { key, token, number, .. }: &Target) {
        let (now, Some(number)) = (Instant::now(), *number) else { return };
        self.with(|known, _| {
            let missed = known.lease(key, number).filter(|one| one.token.as_ref() == Some(token));
            let Some(missed) = missed else { return };
            // The store counts a TTL from an earlier moment.
            let expired = missed.ends_at <= now + GRACE;
            known.end(key, number, now, if expired { self.unreported } else { Why::Elsewhere });
        });
    }

    /// The leases that this instance granted and that have not ended, by prefix.
    pub(crate) fn living(&self) -> Vec<(String, Living)> {
        let now = Instant::now();
        self.with(|known, _| {
            let of_prefix = known.prefixes.names().zip(&known.living);
            let living = of_prefix.map(|(name, leases)| {
                let oldest = leases.first().map(|(since, ..)| now - *since).unwrap_or_default();
                (name.to_owned(), Living { count: leases.len(), oldest })
            });
            living.collect()
        })
    }

    /// At most `most` leases that should have expired, the latest first.
    pub(crate) fn overdue(&self, most: usize) -> Vec<(LockKey, FencingToken)> {
        let now = Instant::now();
        self.with(|known, _| {
            let over = known.overdue.iter().rev().filter(|(ends_at, ..)| *ends_at + GRACE <= now);
            over.take(most).map(|(_, key, number)| (key.clone(), *number)).collect()
        })
    }

    /// Takes the state of a key for the answer whether its lease has ended.
    pub(crate) fn looked(&self, status: &LockStatus, number: FencingToken) {
        let now = Instant::now();
        self.with(|known, _| {
            let key = &status.key;
            let holders =
                status.holder.iter().chain(status.sharers.iter().flat_map(|all| &all.leases));
            let mut held = holders.filter(|holder| holder.fencing_token == Some(number));
            if let Some(holder) = held.next() {
                let ends_at = now + holder.left.unwrap_or(NEVER);
                known.change(key, number, |known| known.ends_at = ends_at);
            } else if known.lease(key, number).is_some_and(|known| known.ends_at <= now) {
                // Otherwise it may have been renewed during the look.
                known.end(key, number, now, self.unreported);
            }
        });
    }

    /// The ends after the one of this number, by their moments, and the number of the last.
    pub(crate) fn ended_after(&self, number: u64) -> (Vec<End>, u64) {
        self.with(|known, _| {
            let later = known.ended.iter().filter(|end| end.number > number);
            (later.cloned().collect(), known.last)
        })
    }

    /// A number that rises with each grant, renewal and end.
    pub(crate) fn changes(&self) -> u64 {
        self.with(|known, _| known.changes)
    }

    /// Logs the ends that were noted, once the registry is free for others.
    fn with<T>(&self, use_it: impl FnOnce(&mut Known, &mut Holds) -> T) -> T {
        let (result, unlogged) = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            let (known, holds) = &mut *state;
            known.expire(Instant::now(), self.unreported);
            let result = use_it(known, holds);
            (result, std::mem::take(&mut known.unlogged))
        };
        unlogged.iter().for_each(End::log);
        result
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use tokio::time::{Instant, advance};

    use super::known::{KEPT_ENDS, MOST, MOST_OVERDUE};
    use super::{Leases, Living, Why};
    use crate::lock::lease::{Claim, Holder, Lease, LockStatus, Owner, Replaced};
    use crate::lock::permit::Count;
    use crate::lock::prefixes::Prefixes;
    use crate::lock::sample::{self, key, number, win};
    use crate::lock::slots::{Share, Slots};
    use crate::lock::store::{Target, Win};
    use crate::lock::token::LeaseToken;

    fn leases(unreported: Why) -> Leases {
        Leases::new(unreported == Why::Elsewhere, Prefixes::default(), Box::new(|_, _, _| ()))
    }

    fn token() -> LeaseToken {
        sample::token("one")
    }

    fn claim() -> Claim {
        sample::claim("a", "one", 10_000)
    }

    fn lease(text: &str, fencing_token: u64) -> Lease {
        win(text, fencing_token).lease
    }

    fn holder(fencing_token: u64) -> Holder {
        Holder { fencing_token: Some(number(fencing_token)), ..Holder::default() }
    }

    fn held(text: &str, by: Option<u64>) -> LockStatus {
        let left = Some(Duration::from_secs(5));
        let holder = by.map(|by| Holder { left, ..holder(by) });
        LockStatus {
            key: key(text),
            holder,
            sharers: None,
            waiters: 0,
            line: Vec::new(),
            mine: None,
        }
    }

    /// What is recorded, as key, milliseconds held, and reason.
    fn told(leases: &Leases) -> Vec<(String, Option<u64>, Why)> {
        let held = |held: Option<Duration>| held.map(|held| held.as_millis() as u64);
        let (all, _) = leases.ended_after(0);
        all.iter().map(|end| (end.key.to_string(), held(end.held), end.why)).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn an_end_tells_how_long_its_lease_was_held_and_waited_for() {
        let leases = leases(Why::Expired);
        leases.granted(&claim(), &win("a", 1));
        leases.waited(&win("a", 1), Duration::from_secs(3));
        advance(Duration::from_secs(2)).await;
        let owner = Owner::parse("cron").unwrap();
        let lease = Lease { owner: owner.clone(), ..lease("a", 1) };
        leases.granted(&claim(), &Win { lease, fresh: false, ..win("a", 1) });
        leases.ended(&key("a"), &holder(1), Why::Released);
        let (all, last) = leases.ended_after(0);
        assert_eq!(all[0].owner, owner, "the repeat may have named another one");
        assert_eq!(
            (all[0].held, all[0].waited),
            (Some(Duration::from_secs(2)), Some(Duration::from_secs(3)))
        );
        assert!(leases.ended_after(last).0.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_counts_as_expired_only_after_a_look_that_does_not_find_it() {
        let leases = leases(Why::Expired);
        leases.granted(&claim(), &win("a", 1));
        advance(Duration::from_secs(9)).await;
        leases.renewed(&lease("a", 1));
        advance(Duration::from_secs(9)).await;
        assert!(leases.overdue(9).is_empty());
        advance(Duration::from_secs(2)).await;
        assert_eq!(leases.overdue(9), [(key("a"), number(1))]);
        leases.looked(&held("a", Some(1)), number(1)); // Renewed through another instance.
        assert!(leases.overdue(9).is_empty() && told(&leases).is_empty());
        advance(Duration::from_secs(6)).await;
        leases.looked(&held("a", Some(2)), number(1));
        assert_eq!(told(&leases), [("a".to_owned(), Some(25_000), Why::Expired)]);
        assert!(leases.overdue(9).is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_that_lasted_for_as_long_as_it_may_tells_so() {
        let leases = leases(Why::Expired);
        leases.granted(&claim(), &win("a", 1));
        leases.renewed(&Lease { capped: true, ..lease("a", 1) });
        advance(Duration::from_secs(11)).await;
        leases.missed(&Target::of(&key("a"), &token(), Some(number(1))));
        assert_eq!(told(&leases), [("a".to_owned(), Some(10_000), Why::MaxHold)]);
        leases.granted(&claim(), &win("b", 2));
        leases.renewed(&Lease { capped: true, ..lease("b", 2) });
        leases.missed(&Target::of(&key("b"), &token(), Some(number(2))));
        assert_eq!(told(&leases)[1].2, Why::Elsewhere, "it ended before");
    }

    #[tokio::test(start_paused = true)]
    async fn where_others_end_leases_too_an_end_that_nobody_reported_is_elsewhere() {
        for why in [Why::Elsewhere, Why::Expired] {
            let leases = leases(why);
            leases.granted(&claim(), &win("a", 1));
            advance(Duration::from_secs(11)).await;
            leases.granted(&claim(), &win("a", 2));
            // How long it was held is known if it is known how it ended.
            let held = Some(10_000).filter(|_| why == Why::Expired);
            assert_eq!(told(&leases), [("a".to_owned(), held, why)]);
            let other = LeaseToken::parse("the-token-of-another").unwrap();
            leases.missed(&Target::of(&key("a"), &other, Some(number(2))));
            // The answer may be older than the lease.
            leases.missed(&Target::of(&key("a"), &token(), None));
            leases.missed(&Target::of(&key("a"), &token(), Some(number(1))));
            assert_eq!(told(&leases).len(), 1);
            leases.missed(&Target::of(&key("a"), &token(), Some(number(2))));
            assert_eq!(told(&leases)[1], ("a".to_owned(), None, Why::Elsewhere));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_whose_ttl_has_passed_does_not_live_even_if_nobody_has_looked() {
        let leases = leases(Why::Elsewhere);
        leases.granted(&claim(), &win("a", 1));
        assert_eq!(leases.living()[0].1.count, 1);
        advance(Duration::from_secs(11)).await;
        assert_eq!(leases.living()[0].1, Living::default());
        leases.renewed(&lease("a", 1));
        assert_eq!(leases.living()[0].1.count, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_late_answer_about_an_earlier_lease_ends_no_later_one() {
        let leases = leases(Why::Expired);
        leases.granted(&claim(), &win("a", 2));
        leases.granted(&claim(), &win("a", 1));
        leases.ended(&key("a"), &holder(1), Why::Released);
        assert_eq!(leases.living()[0].1.count, 1);
        advance(Duration::from_secs(1)).await;
        leases.ended(&key("a"), &holder(2), Why::Released);
        assert_eq!(leases.living()[0].1, Living::default());
        let released = |held| ("a".to_owned(), held, Why::Released);
        assert_eq!(told(&leases), [released(None), released(Some(1_000))]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_is_observed_once_however_often_its_end_is_met() {
        let observed = Arc::new(Mutex::new(Vec::new()));
        let seen = observed.clone();
        let observe = move |prefix: &str, why, held: Duration| {
            seen.lock().unwrap().push((prefix.to_owned(), why, held.as_secs()));
        };
        let leases = Leases::new(false, Prefixes::default(), Box::new(observe));
        leases.granted(&claim(), &win("a", 1));
        leases.granted(&claim(), &win("b", 2));
        leases.renewed(&Lease { capped: true, ..lease("b", 2) });
        // A repeated claim does not know when its lease began.
        leases.granted(&claim(), &Win { fresh: false, ..win("c", 3) });
        assert_eq!(leases.living()[0].1.count, 2);
        advance(Duration::from_secs(11)).await;
        assert_eq!(leases.living()[0].1, Living::default());
        for (lock, named) in [("a", 1), ("b", 2), ("c", 3)] {
            leases.missed(&Target::of(&key(lock), &token(), Some(number(named))));
        }
        let mut observed = std::mem::take(&mut *observed.lock().unwrap());
        observed.sort_unstable_by_key(|(_, why, _)| why.name());
        let other = || "other".to_owned();
        assert_eq!(observed, [(other(), Why::Expired, 10), (other(), Why::MaxHold, 10)]);
    }

    #[tokio::test(start_paused = true)]
    async fn of_many_ends_in_one_moment_a_call_notes_some() {
        let leases = leases(Why::Expired);
        for lock in 0..600 {
            leases.granted(&claim(), &win(&format!("k{lock}"), lock + 1));
        }
        advance(Duration::from_secs(11)).await;
        assert_eq!([(); 4].map(|()| leases.living()[0].1.count), [344, 88, 0, 0]);
    }

    #[tokio::test(start_paused = true)]
    async fn the_remembered_leases_and_ends_are_bounded() {
        let leases = leases(Why::Expired);
        let known = || leases.with(|known, _| known.running.len() + known.overdue.len());
        for lock in 0..MOST as u64 + 10 {
            leases.granted(&claim(), &win(&format!("k{lock}"), lock + 1));
        }
        assert_eq!(known(), MOST);
        for lock in 0..MOST as u64 {
            leases.ended(&key(&format!("k{lock}")), &holder(lock + 1), Why::Released);
        }
        assert_eq!(told(&leases).len(), KEPT_ENDS);
        assert_eq!(known(), 0);
        // Room again for what was left out.
        leases.granted(&claim(), &win("late", 1));
        assert_eq!(known(), 1);
        advance(Duration::from_secs(11)).await;
        for lock in 0..MOST_OVERDUE as u64 + 10 {
            leases.granted(&claim(), &win(&format!("k{lock}"), lock + 1));
        }
        advance(Duration::from_secs(11)).await;
        while leases.with(|known, _| !known.running.is_empty()) {}
        assert_eq!((known(), leases.overdue(usize::MAX).len()), (MOST_OVERDUE, MOST_OVERDUE));
        assert!(
            leases.ended_after(0).0.is_sorted_by_key(|end| end.at)
                && Instant::now() >= leases.ended_after(0).0[0].at
        );
    }

    #[tokio::test(start_paused = true)]
    async fn leases_of_a_shared_key_end_one_by_one() {
        let leases = leases(Why::Elsewhere);
        let slots = Slots::from_number(3).unwrap();
        let shared = |number: u64| Lease {
            share: Share { slots, units: 1, slot: Some(number as u16) },
            ..lease("a", number)
        };
        let grant = |lease: Lease| {
            let token = format!("a-token-of-client-{}", lease.fencing_token);
            let win = Win { lease, ..win("a", 1) };
            let token = LeaseToken::parse(&token).unwrap();
            leases.granted(&Claim { token, ..claim() }, &win);
        };
        let told = |after| {
            let (ended, last) = leases.ended_after(after);
            (ended.iter().map(|end| end.fencing_token.unwrap().number()).collect::<Vec<_>>(), last)
        };
        for number in 1..=3 {
            grant(shared(number));
        }
        assert!(told(0).0.is_empty(), "they hold it together");
        let share = shared(2).share;
        let second = Holder { share, ..holder(2) };
        leases.ended(&key("a"), &second, Why::Released);
        let (ended, last) = told(0);
        assert_eq!(ended, [2]);
        grant(lease("a", 4));
        let mut over = told(last).0;
        over.sort_unstable();
        assert_eq!(over, [1, 3], "an exclusive lease proves that the others are over");
        grant(shared(3));
        assert_eq!(leases.living()[0].1.count, 1, "a late answer is no lease");
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_that_takes_the_place_of_another_goes_on_as_that_one() {
        let leases = leases(Why::Elsewhere);
        leases.granted(&claim(), &win("a", 1));
        leases.waited(&win("a", 1), Duration::from_secs(3));
        advance(Duration::from_secs(2)).await;
        let share = Share { slots: Slots::SHARED, ..Share::ALONE };
        let shared = Lease { share, ..lease("a", 2) };
        let replaces = Some(Replaced { number: number(1), ends_at: 0 });
        let changed = Win { lease: shared, replaces, ..win("a", 2) };
        leases.granted(&claim(), &changed);
        assert_eq!((leases.living()[0].1.count, told(&leases)), (1, vec![]));
        // An answer was lost: the token has another lease by now.
        leases.granted(&claim(), &win("a", 4));
        assert_eq!(told(&leases), [("a".to_owned(), None, Why::Elsewhere)]);
        assert_eq!(leases.living()[0].1.count, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_whose_end_was_answered_first_or_that_reached_nobody_is_not_known() {
        let leases = leases(Why::Expired);
        let count = Count::default();
        let counted = || Claim { permit: count.permit(1), ..claim() };
        leases.ended(&key("a"), &holder(1), Why::Released);
        for fresh in [true, false] {
            leases.granted(&counted(), &Win { fresh, ..win("a", 1) });
            assert_eq!((leases.living()[0].1.count, count.permit(1).is_some()), (0, true));
        }
        leases.granted(&counted(), &win("a", 2));
        assert!(count.permit(1).is_none());
        leases.taken_back(&key("a"), number(2));
        assert_eq!((leases.living()[0].1.count, count.permit(1).is_some()), (0, true));
        assert_eq!(told(&leases).len(), 1, "nobody had it");
    }
}
