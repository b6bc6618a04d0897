//! The leases that this instance knows, for the metrics: their number, the age of the oldest, and
//! how long each was held.
//!
//! A lease is known from its grant through this instance until its end. An end through another
//! instance is not seen here: such a lease counts as expired when its TTL is over.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::lock::key::LockKey;
use crate::lock::lease::{Lease, Renewals};
use crate::lock::prefixes::Prefixes;
use crate::lock::time::Ttl;
use crate::lock::token::FencingToken;
use crate::metrics::{End, KnownLeases, Metrics};

/// The most known leases, about 20 MB of memory; further ones are in no metric of this module.
const MOST: usize = 100_000;

/// The number of leases from which on expired ones are looked for at a grant, at least.
const FIRST_SWEEP: usize = 1_000;

/// The pause between two searches for expired leases while there are [`MOST`].
const SWEEP_PAUSE: Duration = Duration::from_secs(1);

/// The known leases.
#[derive(Debug)]
pub struct LeaseTimes {
    prefixes: Prefixes,
    metrics: Arc<Metrics>,
    book: Mutex<Book>,
}

#[derive(Debug)]
struct Book {
    leases: HashMap<LockKey, Times>,
    /// The number of leases at which the expired ones are taken out.
    sweep_at: usize,
    swept: Instant,
}

#[derive(Debug)]
struct Times {
    prefix: usize,
    fencing_token: FencingToken,
    renewals: Renewals,
    began: Instant,
    ends: Instant,
    /// True if it cannot be renewed beyond that.
    capped: bool,
}

impl LeaseTimes {
    /// Starts without leases.
    pub fn new(prefixes: Prefixes, metrics: Arc<Metrics>) -> Self {
        let book = Mutex::new(Book {
            leases: HashMap::new(),
            sweep_at: FIRST_SWEEP,
            swept: Instant::now(),
        });
        Self { prefixes, metrics, book }
    }

    /// The longest time that a lease of the key lasts.
    pub(super) fn max_hold(&self, key: &LockKey) -> Option<Duration> {
        self.prefixes.max_hold(key).map(Ttl::as_duration)
    }

    /// Notes that a lease was granted or renewed, with its TTL from now.
    pub(super) fn granted(&self, lease: &Lease) {
        let now = Instant::now();
        self.with(|book| {
            let known = book.leases.get_mut(&lease.key);
            match known.as_ref().map(|times| times.fencing_token.cmp(&lease.fencing_token)) {
                // A late answer: a later lease of the key is known.
                Some(Ordering::Greater) => return,
                Some(Ordering::Equal) => {
                    let times = known.expect("it was found");
                    // Two answers may cross.
                    times.renewals = times.renewals.max(lease.renewals);
                    times.ends = now + lease.ttl.as_duration();
                    times.capped = lease.capped;
                    return;
                }
                Some(Ordering::Less) => {
                    self.close(book, &lease.key, now, End::Expired);
                }
                None => (),
            }
            // The start of a lease that was renewed before is unknown.
            if lease.renewals == Renewals::default() && self.has_room(book, now) {
                let times = Times {
                    prefix: self.prefixes.of(&lease.key),
                    fencing_token: lease.fencing_token,
                    renewals: lease.renewals,
                    began: now,
                    ends: now + lease.ttl.as_duration(),
                    capped: lease.capped,
                };
                book.leases.insert(lease.key.clone(), times);
            }
        });
    }

    /// Notes that the keeper of a lease has refreshed it, with this much time left.
    pub(super) fn kept(&self, lease: &Lease, left: Duration) {
        self.with(|book| {
            let times = book.leases.get_mut(&lease.key);
            if let Some(times) = times.filter(|times| times.fencing_token == lease.fencing_token) {
                times.ends = Instant::now() + left;
            }
        });
    }

    /// Notes that the lease of this number has ended, and so has any earlier one.
    pub(super) fn ended(&self, key: &LockKey, number: Option<FencingToken>, end: End) {
        let now = Instant::now();
        self.with(|book| {
            match book.leases.get(key).map(|times| Some(times.fencing_token).cmp(&number)) {
                Some(Ordering::Equal) => self.close(book, key, now, end),
                Some(Ordering::Less) => self.close(book, key, now, End::Expired),
                Some(Ordering::Greater) | None => (),
            }
        });
    }

    /// Notes that the keeper of a lease has let go of it, unless it was renewed since.
    pub(super) fn let_go(&self, lease: &Lease, linger: Option<Duration>) {
        let now = Instant::now();
        self.with(|book| {
            let Some(times) = book.leases.get_mut(&lease.key) else { return };
            if (times.fencing_token, times.renewals) != (lease.fencing_token, lease.renewals) {
                return;
            }
            match linger {
                Some(linger) => (times.ends, times.capped) = (now + linger, false),
                None => self.close(book, &lease.key, now, End::Released),
            }
        });
    }

    /// Sets the metrics of the leases that have not ended.
    pub(super) fn report(&self) {
        let now = Instant::now();
        let mut known = vec![KnownLeases::default(); self.prefixes.names().count()];
        self.with(|book| {
            self.sweep(book, now);
            for times in book.leases.values() {
                let of_prefix = &mut known[times.prefix];
                of_prefix.count += 1;
                of_prefix.oldest = of_prefix.oldest.max(now - times.began);
            }
        });
        for (prefix, known) in self.prefixes.names().zip(known) {
            self.metrics.known(prefix, known);
        }
    }

    /// Takes a lease out, and observes how long it was held.
    fn close(&self, book: &mut Book, key: &LockKey, now: Instant, end: End) {
        if let Some(times) = book.leases.remove(key) {
            self.observe(&times, now, end);
        }
    }

    fn observe(&self, times: &Times, now: Instant, end: End) {
        let prefix = self.prefixes.names().nth(times.prefix).unwrap_or_default();
        // It cannot have been released after it expired.
        let ended = now.min(times.ends);
        let end = if end == End::Expired && times.capped { End::MaxHold } else { end };
        self.metrics.held(prefix, end, ended - times.began);
    }

    fn has_room(&self, book: &mut Book, now: Instant) -> bool {
        let is_due = book.leases.len() < MOST || now - book.swept >= SWEEP_PAUSE;
        if book.leases.len() >= book.sweep_at && is_due {
            book.swept = now;
            self.sweep(book, now);
            book.sweep_at = (2 * book.leases.len()).clamp(FIRST_SWEEP, MOST);
        }
        book.leases.len() < MOST
    }

    fn sweep(&self, book: &mut Book, now: Instant) {
        book.leases.retain(|_, times| {
            let lives = times.ends > now;
            if !lives {
                self.observe(times, now, End::Expired);
            }
            lives
        });
    }

    fn with<T>(&self, use_it: impl FnOnce(&mut Book) -> T) -> T {
        use_it(&mut self.book.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
