//! The leases that this instance knows and their last ends, for the dashboard and the metrics.
//!
//! A verb of this instance reports a lease that it grants or renews, and an end that it causes or
//! meets. If only its TTL has passed, `overdue` names it for a look that decides; the metrics count
//! it as expired without one. Everything is bounded and in memory; no rule of a lock asks here.

mod history;

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::lock::ends::history::{History, KEPT_ENDS, KnownLease};
use crate::lock::key::LockKey;
use crate::lock::lease::{Holder, Lease, LockStatus, Owner};
use crate::lock::prefixes::Prefixes;
use crate::lock::slots::Share;
use crate::lock::store::{Target, Win};
use crate::lock::time::Ttl;
use crate::lock::token::{FencingToken, LeaseToken};

/// The time after the end of a TTL before a lease is suspected to have expired.
const GRACE: Duration = Duration::from_millis(250);

/// The expected end of a lease that never expires.
const NEVER: Duration = Duration::from_secs(86_400 * 365);

/// Takes the time that a lease under a prefix was held, and the reason of its end.
pub(crate) type ObserveHeld = Box<dyn Fn(&str, Why, Duration) + Send + Sync>;

/// The ends, and the leases that may end next.
pub(crate) struct Ends {
    /// The reason of an end that nobody reported.
    unreported: Why,
    history: Mutex<History>,
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
    /// The moment of the end.
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

/// The reason of an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Its holder released it, or closed its stream.
    Released,
    /// Its TTL passed.
    Expired,
    /// It lasted for the `max_hold` of its key.
    MaxHold,
    /// An administrator ended it by force.
    Forced,
    /// This instance cannot tell: it expired, or was ended through another instance or in the store.
    Lost,
}

impl Why {
    /// The word for it in the API and the metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Released => "released",
            Self::Expired => "expired",
            Self::MaxHold => "max_hold",
            Self::Forced => "forced",
            Self::Lost => "lost",
        }
    }
}

impl Ends {
    /// Without any end, over a store that other instances may share.
    pub(crate) fn new(shared: bool, prefixes: Prefixes, observe: ObserveHeld) -> Self {
        let history = Mutex::new(History::new(prefixes, observe));
        Self { unreported: if shared { Why::Lost } else { Why::Expired }, history }
    }

    /// Returns whether every end happens here, because no other instance uses the store.
    pub(crate) fn are_complete(&self) -> bool {
        self.unreported == Why::Expired
    }

    /// The longest time that a lease of the key lasts.
    pub(crate) fn max_hold(&self, key: &LockKey) -> Option<Duration> {
        self.with(|history| history.prefixes.max_hold(key)).map(Ttl::as_duration)
    }

    /// Notes a lease that a claim has, and how long that claim waited.
    pub(crate) fn granted(&self, token: &LeaseToken, win: &Win, waited: Duration) {
        let (Win { lease, fresh, replaces, .. }, now) = (win, Instant::now());
        let ends_at = now + lease.ttl.as_duration();
        self.with(|history| {
            history.changes += 1;
            let (number, alone) = (lease.fencing_token, lease.share == Share::ALONE);
            // The holder goes on under another number.
            if history.lease(&lease.key, number).is_none()
                && let Some(known) = replaces.and_then(|before| history.lease(&lease.key, before))
            {
                (known.fencing_token, known.renewals) = (number, lease.renewals);
            }
            if let Some(known) = history.lease(&lease.key, number) {
                return known.renew(lease, ends_at);
            }
            let beside =
                |known: &KnownLease| !alone && known.share != Share::ALONE && known.token != *token;
            if history.of_key(&lease.key).any(|one| one.fencing_token > number && !beside(one)) {
                return; // A late answer: a later lease of the key is known.
            }
            history.take_out_all(&lease.key, now, self.unreported, |known| !beside(known));
            if history.has_room(now) {
                let known = KnownLease {
                    token: token.clone(),
                    fencing_token: lease.fencing_token,
                    renewals: lease.renewals,
                    owner: lease.owner.clone(),
                    prefix: history.prefixes.of(&lease.key),
                    granted: fresh.then_some((now, waited)),
                    ends_at,
                    capped: lease.capped,
                    observed: false,
                    share: lease.share,
                };
                history.count += 1;
                history.known.entry(lease.key.clone()).or_default().push(known);
            }
        });
    }

    /// Notes that a lease was renewed.
    pub(crate) fn renewed(&self, lease: &Lease) {
        let ends_at = Instant::now() + lease.ttl.as_duration();
        self.with(|history| {
            if let Some(known) = history.lease(&lease.key, lease.fencing_token) {
                known.renew(lease, ends_at);
                history.changes += 1;
            }
        });
    }

    /// Notes that the lease of `holder` was ended.
    pub(crate) fn ended(&self, key: &LockKey, holder: &Holder, why: Why) {
        let now = Instant::now();
        self.with(|history| {
            let number = holder.fencing_token;
            let is_known = history.of_key(key).any(|known| Some(known.fencing_token) == number);
            let over = |known: &KnownLease| {
                Some(known.fencing_token) != number && holder.ends(known.fencing_token)
            };
            history.take_out_all(key, now, self.unreported, over);
            if is_known {
                return history
                    .take_out_all(key, now, why, |known| Some(known.fencing_token) == number);
            }
            history.push(End {
                number: 0,
                at: now,
                key: key.clone(),
                owner: holder.owner.clone(),
                fencing_token: holder.fencing_token,
                held: None,
                waited: None,
                why,
            });
        });
    }

    /// Notes that a token no longer has its lease, or the one that is named.
    pub(crate) fn missed(&self, Target { key, token, number, .. }: &Target) {
        let now = Instant::now();
        self.with(|history| {
            let missed = |known: &KnownLease| {
                known.token == *token && number.is_none_or(|named| named == known.fencing_token)
            };
            // The store counts a TTL from an earlier moment.
            let is_over = |known: &KnownLease| known.ends_at <= now + GRACE;
            let expired = |known: &KnownLease| missed(known) && is_over(known);
            history.take_out_all(key, now, self.unreported, expired);
            history.take_out_all(key, now, Why::Lost, missed);
        });
    }

    /// Notes the end of a hold: its lease ended or lingers, unless it was renewed meanwhile.
    pub(crate) fn let_go(&self, of: &Target, linger: Option<Ttl>) {
        let (now, Some(number)) = (Instant::now(), of.number) else { return };
        self.with(|history| {
            let known = history.lease(&of.key, number);
            let same = known.filter(|known| of.only.holds(known.renewals));
            let Some(known) = same else { return };
            match linger {
                Some(linger) => {
                    (known.ends_at, known.capped) = (now + linger.as_duration(), false);
                }
                None => {
                    history.take_out(&of.key, number, now, Why::Released);
                }
            }
        });
    }

    /// The leases that this instance granted and that have not ended, by prefix.
    pub(crate) fn living(&self) -> Vec<(String, Living)> {
        let now = Instant::now();
        self.with(|history| {
            history.observe_expired(now);
            let none = |name: &str| (name.to_owned(), Living::default());
            let mut living: Vec<_> = history.prefixes.names().map(none).collect();
            for known in history.known.values().flatten().filter(|known| !known.observed) {
                let Some((since, _)) = known.granted else { continue };
                let of_prefix = &mut living[known.prefix].1;
                of_prefix.count += 1;
                of_prefix.oldest = of_prefix.oldest.max(now - since);
            }
            living
        })
    }

    /// At most `most` leases that should have expired, the latest first; forgets those that are too
    /// old to be shown.
    pub(crate) fn overdue(&self, most: usize) -> Vec<(LockKey, FencingToken)> {
        let now = Instant::now();
        self.with(|history| {
            let full = history.ended.len() >= KEPT_ENDS;
            let oldest = history.ended.front().filter(|_| full).map(|end| end.at);
            let is_over = |known: &KnownLease| known.ends_at + GRACE <= now;
            history.retain(|one| !is_over(one) || oldest.is_none_or(|at| one.ends_at > at));
            let known = history
                .known
                .iter()
                .flat_map(|(key, known)| known.iter().map(move |one| (one.ends_at, key, one)));
            let over = known.filter(|(_, _, known)| is_over(known));
            let mut over: Vec<_> =
                over.map(|(ends_at, key, one)| (ends_at, key.clone(), one.fencing_token)).collect();
            over.sort_unstable_by_key(|(ends_at, ..)| std::cmp::Reverse(*ends_at));
            over.truncate(most);
            over.into_iter().map(|(_, key, fencing_token)| (key, fencing_token)).collect()
        })
    }

    /// Takes the state of a key for the answer whether its lease has ended.
    pub(crate) fn looked(&self, status: &LockStatus, fencing_token: FencingToken) {
        let now = Instant::now();
        self.with(|history| {
            let Some(known) = history.lease(&status.key, fencing_token) else { return };
            let holders =
                status.holder.iter().chain(status.sharers.iter().flat_map(|all| &all.leases));
            let mut held = holders.filter(|holder| holder.fencing_token == Some(fencing_token));
            match held.next() {
                Some(holder) => known.ends_at = now + holder.left.unwrap_or(NEVER),
                // It may have been renewed during the look.
                None if known.ends_at > now => (),
                None => {
                    history.take_out(&status.key, fencing_token, now, self.unreported);
                }
            }
        });
    }

    /// The ends after the one of this number, by their moments, and the number of the last.
    pub(crate) fn after(&self, number: u64) -> (Vec<End>, u64) {
        self.with(|history| {
            let later = history.ended.iter().filter(|end| end.number > number);
            (later.cloned().collect(), history.last)
        })
    }

    /// A number that rises with each grant, renewal and end.
    pub(crate) fn changes(&self) -> u64 {
        self.with(|history| history.changes)
    }

    fn with<T>(&self, use_it: impl FnOnce(&mut History) -> T) -> T {
        use_it(&mut self.history.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use tokio::time::{Instant, advance};

    use super::history::MOST;
    use super::{Ends, KEPT_ENDS, Living, Why};
    use crate::lock::key::LockKey;
    use crate::lock::lease::{Holder, Lease, LockStatus, Owner, Renewals};
    use crate::lock::prefixes::Prefixes;
    use crate::lock::slots::{Share, Slots};
    use crate::lock::store::{Target, Win};
    use crate::lock::time::Ttl;
    use crate::lock::token::{FencingToken, LeaseToken};

    fn ends(unreported: Why) -> Ends {
        Ends::new(unreported == Why::Lost, Prefixes::default(), Box::new(|_, _, _| ()))
    }

    fn key(text: &str) -> LockKey {
        LockKey::parse(text).unwrap()
    }

    fn number(number: u64) -> FencingToken {
        FencingToken::from_number(number).unwrap()
    }

    fn token() -> LeaseToken {
        LeaseToken::parse("a-token-of-a-client").unwrap()
    }

    fn win(text: &str, fencing_token: u64) -> Win {
        Win { lease: lease(text, fencing_token), fresh: true, replaces: None, place: None, node: 0 }
    }

    fn lease(text: &str, fencing_token: u64) -> Lease {
        Lease {
            key: key(text),
            owner: None,
            fencing_token: number(fencing_token),
            ttl: Ttl::from_millis(10_000),
            renewals: Renewals::default(),
            capped: false,
            share: Share::ALONE,
        }
    }

    fn held(text: &str, by: Option<u64>) -> LockStatus {
        let holder = by.map(|by| Holder {
            fencing_token: Some(number(by)),
            left: Some(Duration::from_secs(5)),
            ..Holder::default()
        });
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
    fn told(ends: &Ends) -> Vec<(String, Option<u64>, Why)> {
        let held = |held: Option<Duration>| held.map(|held| held.as_millis() as u64);
        let (all, _) = ends.after(0);
        all.iter().map(|end| (end.key.to_string(), held(end.held), end.why)).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn an_end_tells_how_long_its_lease_was_held_and_waited_for() {
        let ends = ends(Why::Expired);
        ends.granted(&token(), &win("a", 1), Duration::from_secs(3));
        advance(Duration::from_secs(2)).await;
        let holder = Holder { fencing_token: Some(number(1)), ..Holder::default() };
        let owner = Owner::parse("cron").unwrap();
        let lease = Lease { owner: owner.clone(), ..lease("a", 1) };
        ends.granted(
            &token(),
            &Win { lease, fresh: false, replaces: None, place: None, node: 0 },
            Duration::ZERO,
        );
        ends.ended(&key("a"), &holder, Why::Released);
        let (all, last) = ends.after(0);
        assert_eq!(all[0].owner, owner, "the repeat may have named another one");
        assert_eq!(
            (all[0].held, all[0].waited),
            (Some(Duration::from_secs(2)), Some(Duration::from_secs(3)))
        );
        assert!(ends.after(last).0.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_counts_as_expired_only_after_a_look_that_does_not_find_it() {
        let ends = ends(Why::Expired);
        ends.granted(&token(), &win("a", 1), Duration::ZERO);
        advance(Duration::from_secs(9)).await;
        ends.renewed(&lease("a", 1));
        advance(Duration::from_secs(9)).await;
        assert!(ends.overdue(9).is_empty());
        advance(Duration::from_secs(2)).await;
        assert_eq!(ends.overdue(9), [(key("a"), number(1))]);
        ends.looked(&held("a", Some(1)), number(1)); // Renewed through another instance.
        assert!(ends.overdue(9).is_empty() && told(&ends).is_empty());
        advance(Duration::from_secs(6)).await;
        ends.looked(&held("a", Some(2)), number(1));
        assert_eq!(told(&ends), [("a".to_owned(), Some(25_000), Why::Expired)]);
        assert!(ends.overdue(9).is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_that_lasted_for_as_long_as_it_may_tells_so() {
        let ends = ends(Why::Expired);
        ends.granted(&token(), &win("a", 1), Duration::ZERO);
        ends.renewed(&Lease { capped: true, ..lease("a", 1) });
        advance(Duration::from_secs(11)).await;
        ends.missed(&Target::of(&key("a"), &token(), None));
        assert_eq!(told(&ends), [("a".to_owned(), Some(10_000), Why::MaxHold)]);
        ends.granted(&token(), &win("b", 2), Duration::ZERO);
        ends.renewed(&Lease { capped: true, ..lease("b", 2) });
        ends.missed(&Target::of(&key("b"), &token(), None));
        assert_eq!(told(&ends)[1].2, Why::Lost, "it ended before");
    }

    #[tokio::test(start_paused = true)]
    async fn where_others_end_leases_too_an_end_that_nobody_reported_is_lost() {
        for why in [Why::Lost, Why::Expired] {
            let ends = ends(why);
            ends.granted(&token(), &win("a", 1), Duration::ZERO);
            advance(Duration::from_secs(11)).await;
            ends.granted(&token(), &win("a", 2), Duration::ZERO);
            assert_eq!(told(&ends), [("a".to_owned(), Some(10_000), why)]);
            ends.missed(&Target::of(
                &key("a"),
                &LeaseToken::parse("the-token-of-another").unwrap(),
                None,
            ));
            ends.missed(&Target::of(&key("a"), &token(), Some(number(1))));
            assert_eq!(told(&ends).len(), 1);
            ends.missed(&Target::of(&key("a"), &token(), Some(number(2))));
            assert_eq!(told(&ends)[1], ("a".to_owned(), Some(0), Why::Lost));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_of_a_hold_ends_no_lease_that_was_renewed_meanwhile() {
        let ends = ends(Why::Expired);
        let lease = lease("a", 1);
        ends.granted(
            &token(),
            &Win { lease: lease.clone(), fresh: true, replaces: None, place: None, node: 0 },
            Duration::ZERO,
        );
        let last_word =
            |renewals| Target::kept(&token(), &Lease { renewals, ..lease.clone() }).last_word();
        ends.renewed(&Lease { renewals: lease.renewals.refreshed(), ..lease.clone() });
        ends.let_go(&last_word(lease.renewals), None);
        assert!(told(&ends).is_empty());
        ends.let_go(&last_word(lease.renewals.refreshed()), None);
        assert_eq!(told(&ends), [("a".to_owned(), Some(0), Why::Released)]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_late_answer_about_an_earlier_lease_ends_no_later_one() {
        let ends = ends(Why::Expired);
        ends.granted(&token(), &win("a", 2), Duration::ZERO);
        ends.granted(&token(), &win("a", 1), Duration::ZERO);
        let released = |number| Holder { fencing_token: Some(number), ..Holder::default() };
        ends.ended(&key("a"), &released(number(1)), Why::Released);
        assert_eq!(ends.living()[0].1.count, 1);
        advance(Duration::from_secs(1)).await;
        ends.ended(&key("a"), &released(number(2)), Why::Released);
        assert_eq!(ends.living()[0].1, Living::default());
        let released = |held| ("a".to_owned(), held, Why::Released);
        assert_eq!(told(&ends), [released(None), released(Some(1_000))]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_is_observed_once_however_often_its_end_is_met() {
        let observed = Arc::new(Mutex::new(Vec::new()));
        let seen = observed.clone();
        let observe = move |prefix: &str, why, held: Duration| {
            seen.lock().unwrap().push((prefix.to_owned(), why, held.as_secs()));
        };
        let ends = Ends::new(true, Prefixes::default(), Box::new(observe));
        ends.granted(&token(), &win("a", 1), Duration::ZERO);
        ends.granted(&token(), &win("b", 2), Duration::ZERO);
        ends.renewed(&Lease { capped: true, ..lease("b", 2) });
        // A repeated claim does not know when its lease began.
        ends.granted(&token(), &Win { fresh: false, ..win("c", 3) }, Duration::ZERO);
        assert_eq!(ends.living()[0].1.count, 2);
        advance(Duration::from_secs(11)).await;
        assert_eq!(ends.living()[0].1, Living::default());
        for lock in ["a", "b", "c"] {
            ends.missed(&Target::of(&key(lock), &token(), None));
        }
        let mut observed = std::mem::take(&mut *observed.lock().unwrap());
        observed.sort_unstable_by_key(|(_, why, _)| why.name());
        let other = || "other".to_owned();
        assert_eq!(observed, [(other(), Why::Expired, 10), (other(), Why::MaxHold, 10)]);
    }

    #[tokio::test(start_paused = true)]
    async fn the_remembered_leases_and_ends_are_bounded() {
        let ends = ends(Why::Expired);
        for lock in 0..MOST as u64 + 10 {
            ends.granted(&token(), &win(&format!("k{lock}"), lock + 1), Duration::ZERO);
        }
        assert_eq!(ends.history.lock().unwrap().known.len(), MOST);
        for lock in 0..MOST as u64 {
            let holder = Holder { fencing_token: Some(number(lock + 1)), ..Holder::default() };
            ends.ended(&key(&format!("k{lock}")), &holder, Why::Released);
        }
        assert_eq!(told(&ends).len(), KEPT_ENDS);
        assert!(ends.history.lock().unwrap().known.is_empty());
        // Room again for what was left out.
        ends.granted(&token(), &win("late", 1), Duration::ZERO);
        assert_eq!(ends.history.lock().unwrap().known.len(), 1);
        assert!(
            ends.after(0).0.is_sorted_by_key(|end| end.at)
                && Instant::now() >= ends.after(0).0[0].at
        );
    }

    #[tokio::test(start_paused = true)]
    async fn leases_of_a_shared_key_end_one_by_one() {
        let ends = ends(Why::Lost);
        let slots = Slots::from_number(3).unwrap();
        let shared = |number: u64| Lease {
            share: Share { slots, slot: Some(number as u16) },
            ..lease("a", number)
        };
        let grant = |lease: Lease| {
            let token = format!("a-token-of-client-{}", lease.fencing_token);
            let win = Win { lease, fresh: true, replaces: None, place: None, node: 0 };
            ends.granted(&LeaseToken::parse(&token).unwrap(), &win, Duration::ZERO);
        };
        let told = |after| {
            let (ended, last) = ends.after(after);
            (ended.iter().map(|end| end.fencing_token.unwrap().number()).collect::<Vec<_>>(), last)
        };
        for number in 1..=3 {
            grant(shared(number));
        }
        assert!(told(0).0.is_empty(), "they hold it together");
        let share = shared(2).share;
        let second = Holder { fencing_token: Some(number(2)), share, ..Holder::default() };
        ends.ended(&key("a"), &second, Why::Released);
        let (ended, last) = told(0);
        assert_eq!(ended, [2]);
        grant(lease("a", 4));
        let mut over = told(last).0;
        over.sort_unstable();
        assert_eq!(over, [1, 3], "an exclusive lease proves that the others are over");
        grant(shared(3));
        assert_eq!(ends.living()[0].1.count, 1, "a late answer is no lease");
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_that_takes_the_place_of_another_goes_on_as_that_one() {
        let ends = ends(Why::Lost);
        ends.granted(&token(), &win("a", 1), Duration::from_secs(3));
        advance(Duration::from_secs(2)).await;
        let share = Share { slots: Slots::SHARED, slot: None };
        let shared = Lease { share, ..lease("a", 2) };
        let changed =
            Win { lease: shared, fresh: true, replaces: Some(number(1)), place: None, node: 0 };
        ends.granted(&token(), &changed, Duration::ZERO);
        assert_eq!((ends.living()[0].1.count, told(&ends)), (1, vec![]));
        // An answer was lost: the token has another lease by now.
        ends.granted(&token(), &win("a", 4), Duration::ZERO);
        assert_eq!(told(&ends), [("a".to_owned(), Some(2_000), Why::Lost)]);
        assert_eq!(ends.living()[0].1.count, 1);
    }
}
