//! The leases of a session: renewed until they are released, given back at its end, and if one is
//! lost, noted until an answer has told it.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::time::Duration;

use futures_util::future::{join, join_all};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::cli::claimant::LEAVE_TIME;
use crate::cli::clock::Moment;
use crate::cli::mcp::lease::Lease;
use crate::cli::mcp::words;
use crate::cli::remote::Remote;
use crate::client::{ANSWER_TIME, Client, ClientError, Granted, LeaseId};
use crate::lock::key::LockKey;
use crate::lock::time::Ttl;
use crate::lock::token::{FencingToken, LeaseToken};
use crate::wire::Code;

/// The pause after a renewal that failed.
const PAUSE: Duration = Duration::from_secs(1);

/// The time for the renewals before an answer: a service that is stuck must not hold it up.
const CHECK_TIME: Duration = Duration::from_secs(2);

/// For so long the token of a claim that waited is known: a service keeps its place for 5 s by
/// default.
const PLACE_TIME: Duration = Duration::from_secs(10);

/// The most leases: each is renewed by a request of its own.
pub(super) const MOST_LEASES: usize = 100;

/// A session of an agent with the service.
#[derive(Debug)]
pub(super) struct AgentSession {
    pub(super) client: Client,
    pub(super) remote: Remote,
    pub(super) ttl: Duration,
    /// The begin of its owner, if it was given one.
    pub(super) owner: Option<String>,
    /// The session ends: no call waits any longer.
    pub(super) ending: CancellationToken,
    leases: RefCell<BTreeMap<LockKey, Lease>>,
    /// The keys for which a call waits.
    claimed: RefCell<BTreeSet<LockKey>>,
    /// The tokens of claims that have waited, by what they ask for, and when they were given up.
    places: RefCell<BTreeMap<String, (LeaseToken, Moment)>>,
    /// The losses: each is told with every answer, up to that to a call which names its key.
    losses: RefCell<BTreeMap<LockKey, String>>,
    /// There are other leases, or fewer claims.
    changed: Notify,
}

/// The keys for which a call waits, as long as it does.
#[derive(Debug)]
pub(super) struct Claimed<'a> {
    session: &'a AgentSession,
    keys: Vec<LockKey>,
}

impl Drop for Claimed<'_> {
    fn drop(&mut self) {
        self.session.claimed.borrow_mut().retain(|key| !self.keys.contains(key));
        self.session.changed.notify_waiters();
    }
}

/// The outcome of a release.
#[derive(Debug)]
pub(super) enum Released {
    Done(Lease),
    NotHeld,
    /// It was lost before, which the news tell.
    Lost,
    /// The service did not answer, for this reason.
    Unknown(String),
}

impl AgentSession {
    pub(super) fn new(
        client: Client,
        remote: Remote,
        ttl: Duration,
        owner: Option<String>,
    ) -> Self {
        Self {
            client,
            remote,
            ttl,
            owner,
            ending: CancellationToken::new(),
            leases: RefCell::default(),
            claimed: RefCell::default(),
            places: RefCell::default(),
            losses: RefCell::default(),
            changed: Notify::new(),
        }
    }

    /// Renews the leases, each when a third of its TTL is over.
    pub(super) async fn keep(&self) -> Infallible {
        loop {
            let changed = self.changed.notified();
            let due = self.leases.borrow().values().map(|lease| lease.renew).min();
            match due {
                None => changed.await,
                Some(due) => tokio::select! {
                    () = sleep(due.left()) => (),
                    () = changed => continue,
                },
            }
            self.renew(ANSWER_TIME, |lease| lease.renew.has_come()).await;
        }
    }

    /// Renews all leases now, so that an answer tells of each that is lost.
    pub(super) async fn check(&self) {
        self.renew(CHECK_TIME, |_| true).await;
    }

    async fn renew(&self, within: Duration, which: impl Fn(&Lease) -> bool) {
        let due: Vec<_> = {
            let leases = self.leases.borrow();
            let due = leases.iter().filter(|(_, lease)| which(lease));
            due.map(|(key, lease)| (key.clone(), lease.clone())).collect()
        };
        let renewals = due.iter().map(async |(key, lease)| {
            let sent = Moment::now();
            let id = LeaseId { key, token: &lease.token, fencing_token: Some(lease.number) };
            let ttl = Some(Ttl::lasting(self.ttl));
            let answer = self.client.refresh(id, ttl, within).await;
            self.renewed(key, lease.number, sent, answer);
        });
        join_all(renewals).await;
    }

    /// Notes the answer to a renewal, unless the lease was released meanwhile.
    fn renewed(
        &self,
        key: &LockKey,
        number: FencingToken,
        sent: Moment,
        answer: Result<Granted, ClientError>,
    ) {
        let mut leases = self.leases.borrow_mut();
        let Some(lease) = leases.get_mut(key).filter(|lease| lease.number == number) else {
            return;
        };
        match answer {
            Ok(granted) => {
                lease.renew = sent.after(self.ttl / 3);
                lease.end = sent.after(granted.ttl);
            }
            Err(ClientError::Refused(refusal)) if refusal.is(Code::LockLost) => {
                self.losses.borrow_mut().insert(key.clone(), words::lost(key, lease));
                leases.remove(key);
            }
            // The next one may be answered.
            Err(_) => lease.renew = Moment::now().after(PAUSE),
        }
    }

    /// The lease of a key, if the session has one.
    pub(super) fn lease(&self, key: &LockKey) -> Option<Lease> {
        self.leases.borrow().get(key).cloned()
    }

    /// All leases, by their keys.
    pub(super) fn leases(&self) -> Vec<(LockKey, Lease)> {
        let leases = self.leases.borrow();
        leases.iter().map(|(key, lease)| (key.clone(), lease.clone())).collect()
    }

    /// Keeps leases from now on.
    pub(super) fn add(&self, leases: impl IntoIterator<Item = (LockKey, Lease)>) {
        self.leases.borrow_mut().extend(leases);
        self.changed.notify_waiters();
    }

    /// Notes that a call waits for these keys; one of them, if another call does.
    pub(super) fn claim(&self, keys: Vec<LockKey>) -> Result<Claimed<'_>, LockKey> {
        let mut claimed = self.claimed.borrow_mut();
        if let Some(key) = keys.iter().find(|key| claimed.contains(*key)) {
            return Err(key.clone());
        }
        claimed.extend(keys.iter().cloned());
        Ok(Claimed { session: self, keys })
    }

    /// Keeps the token of a claim that has waited, so that the next call has its place in line.
    pub(super) fn keep_place(&self, asked: String, token: LeaseToken) {
        let mut places = self.places.borrow_mut();
        places.retain(|_, (_, left)| !left.after(PLACE_TIME).has_come());
        places.insert(asked, (token, Moment::now()));
    }

    /// Takes the token of an earlier claim that asked the same.
    pub(super) fn take_place(&self, asked: &str) -> Option<LeaseToken> {
        self.places.borrow_mut().remove(asked).map(|(token, _)| token)
    }

    /// Releases the lease of a key, if it is the one that is named, whose loss is an answer too. What
    /// is not released expires.
    pub(super) async fn release(&self, key: &LockKey, number: Option<FencingToken>) -> Released {
        let is_named = |lease: &Lease| number.is_none_or(|number| number == lease.number);
        let Some(lease) = self.lease(key).filter(is_named) else { return Released::NotHeld };
        self.leases.borrow_mut().remove(key);
        let id = LeaseId { key, token: &lease.token, fencing_token: Some(lease.number) };
        match self.client.release(id).await {
            Ok(()) => Released::Done(lease),
            Err(ClientError::Refused(refusal)) if refusal.is(Code::LockLost) => {
                self.losses.borrow_mut().insert(key.clone(), words::lost(key, &lease));
                Released::Lost
            }
            Err(error) => Released::Unknown(error.to_string()),
        }
    }

    /// What has to be told with each answer: the losses, because several agents may share the session,
    /// and the leases that may be lost because the service does not answer.
    pub(super) fn news(&self) -> Vec<String> {
        let mut news: Vec<_> = self.losses.borrow().values().cloned().collect();
        let leases = self.leases.borrow();
        let unsure = leases.iter().filter(|(_, lease)| lease.end.has_come());
        news.extend(unsure.map(|(key, lease)| words::unsure(key, lease)));
        news
    }

    /// Notes that an answer about these keys was told.
    pub(super) fn has_told(&self, about: &[LockKey]) {
        self.losses.borrow_mut().retain(|key, _| !about.contains(key));
    }

    /// Ends the waiting calls, and releases all leases. What takes too long expires.
    pub(super) async fn end(&self) {
        self.ending.cancel();
        let claims = async {
            loop {
                let changed = self.changed.notified();
                if self.claimed.borrow().is_empty() {
                    return;
                }
                changed.await;
            }
        };
        let leases = self.leases();
        let released = join_all(leases.iter().map(|(key, _)| self.release(key, None)));
        let _ = timeout(LEAVE_TIME, join(claims, released)).await;
    }
}
