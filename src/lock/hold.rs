//! A lease that lives as long as its connection: acquired, kept, and let go when the client goes.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::{Instant, sleep_until};

use crate::lock::error::{LockError, StoreError};
use crate::lock::lease::{Claim, Grant, Lease, LockStatus};
use crate::lock::leases::{Registered, Why};
use crate::lock::locks::Locks;
use crate::lock::owed::Delivery;
use crate::lock::store::{Answer, If, Renewed, Target};
use crate::lock::ticket::Ticket;
use crate::lock::time::{Ttl, Uptime};

/// The heartbeat interval: below any proxy's idle timeout, and short enough that a proxy notices
/// within two of them that its client is gone.
const HEARTBEAT: Duration = Duration::from_secs(10);

/// The pause before asking again for a place that is not known yet.
const JOINING: Duration = Duration::from_millis(50);

/// The pause between two refreshes while the store does not answer.
const RETRY: Duration = Duration::from_secs(1);

/// An event of a hold.
#[derive(Debug)]
pub enum HoldEvent {
    /// In line, with this many claims ahead as far as this instance knows.
    Waiting(u64),
    /// The lease is granted.
    Acquired(Grant),
    /// The lease goes on, with this much time left.
    Alive(Duration),
    /// The lease is lost; the last event.
    Lost(Why),
    /// The wait timed out; the last event.
    TimedOut,
    /// The instance is shutting down; the last event. A lease stays until it expires.
    Draining,
    /// The claim was released while it waited; the last event.
    Cancelled,
    /// The store did not answer, and no grant was told; the last event.
    Failed(StoreError),
}

/// A request for a hold.
#[derive(Clone, Debug)]
pub struct HoldWish {
    /// The claim to hold.
    pub claim: Claim,
    /// The longest wait for it; `None` for no limit.
    pub patience: Option<Duration>,
    /// The TTL of the lease once the client is gone; `None` to end it at once.
    pub linger: Option<Ttl>,
}

/// The answer to [`Locks::hold`].
pub enum HoldStart {
    /// A stream of events.
    Hold(Box<Hold>),
    /// The key is held, and the request allows no wait.
    Held(LockStatus),
    /// The token does not have the lease that the claim names.
    Lost,
}

/// A lease that is kept, or waited for, until this value is dropped.
pub struct Hold {
    locks: Locks,
    wish: HoldWish,
    began: Instant,
    phase: Phase,
    /// Registered before the store is asked: no end of its lease is missed.
    registered: Registered,
}

enum Phase {
    /// A grant without a wait, until it is told.
    Granted(Option<Box<Delivery>>),
    Waiting(Box<InLine>),
    Holding(Box<Care>),
    Ended,
}

struct InLine {
    ticket: Ticket,
    beat: Instant,
}

/// A lease that is being kept.
struct Care {
    /// Shared with the refresh under way, so that the lease is let go only after that was answered.
    lease: Arc<Mutex<Target>>,
    ttl: Ttl,
    /// The moment of the store's last answer, and the time that was left then.
    confirmed: (Uptime, Duration),
    beat: Instant,
    /// True if the lease cannot be renewed beyond its present end.
    capped: bool,
    /// True if no other request was told of this grant: then the end of this hold ends the lease.
    alone: bool,
}

impl Locks {
    /// Acquires the key and keeps it for as long as the answer lives.
    ///
    /// # Errors
    ///
    /// As [`Locks::acquire`].
    ///
    /// # Cancel safety
    ///
    /// As [`Locks::acquire`].
    pub async fn hold(&self, wish: HoldWish) -> Result<HoldStart, LockError> {
        let (began, claim) = (Instant::now(), &wish.claim);
        let (leases, key, token) = (self.leases().clone(), claim.key.clone(), claim.token.clone());
        let registered = Registered::new(leases, key, token);
        let delivery = self.ask(claim.clone()).await?;
        let phase = if let Ok(Answer::Won(_)) = delivery.answer() {
            Phase::Granted(Some(Box::new(delivery)))
        } else {
            match delivery.hand_over()? {
                Answer::Held(status)
                    if wish.patience == Some(Duration::ZERO) || status.mine == Some(true) =>
                {
                    return Ok(HoldStart::Held(status));
                }
                Answer::Held(_) => {
                    registered.waits();
                    // A wait beyond the range of the clock has no limit.
                    let give_up_at = wish.patience.and_then(|patience| began.checked_add(patience));
                    let ticket = self.enter(claim.clone(), give_up_at)?;
                    Phase::Waiting(Box::new(InLine { ticket, beat: began }))
                }
                Answer::Won(_) | Answer::Waiting(_) | Answer::Gone => return Ok(HoldStart::Lost),
            }
        };
        let hold = Hold { locks: self.clone(), wish, began, phase, registered };
        Ok(HoldStart::Hold(Box::new(hold)))
    }
}

impl Hold {
    /// The next event; `None` after the last.
    ///
    /// # Cancel safety
    ///
    /// No event is lost.
    pub async fn next(&mut self) -> Option<HoldEvent> {
        Some(match &mut self.phase {
            Phase::Granted(delivery) => {
                let delivery = delivery.take()?;
                self.delivered(*delivery)
            }
            Phase::Waiting(line) => tokio::select! {
                biased;
                why = self.registered.told() => self.end(HoldEvent::Lost(why)),
                waited = line.next() => match waited {
                    ControlFlow::Continue(ahead) => HoldEvent::Waiting(ahead),
                    ControlFlow::Break(Some(delivery)) => self.delivered(delivery),
                    ControlFlow::Break(None) => self.end(HoldEvent::Draining),
                },
            },
            Phase::Holding(care) => tokio::select! {
                biased;
                why = self.registered.told() => self.end(HoldEvent::Lost(why)),
                () = self.locks.drained() => self.end(HoldEvent::Draining),
                kept = care.next(&self.locks) => match kept {
                    Ok(left) => HoldEvent::Alive(left),
                    Err(why) => self.end(HoldEvent::Lost(why)),
                },
            },
            Phase::Ended => return None,
        })
    }

    /// Ends the hold of a client that has lost its rights, and returns the last event. A lease that
    /// was told stays until it expires, because the client may be at work; a wait ends as if the
    /// client had disconnected.
    pub fn revoke(&mut self) -> Option<HoldEvent> {
        if matches!(self.phase, Phase::Ended) {
            return None;
        }
        Some(self.end(HoldEvent::Lost(Why::Revoked)))
    }

    /// Takes the store's answer. The lease is registered before it is told: an end that was seen
    /// meanwhile is told instead.
    fn delivered(&mut self, delivery: Delivery) -> HoldEvent {
        self.wish.claim.permit = None; // The registry counts the lease by now.
        let (claim, now) = (&self.wish.claim, Instant::now());
        // The question of a claim that did not wait is later than the beginning.
        let waits = matches!(self.phase, Phase::Waiting(_));
        let waited = if waits { delivery.asked - self.began } else { Duration::ZERO };
        let alone = delivery.alone;
        if let Ok(Answer::Won(win)) = delivery.answer() {
            self.registered.has(&win.lease);
            if let Some(why) = self.registered.was_told() {
                return self.end(HoldEvent::Lost(why));
            }
        }
        let win = match delivery.hand_over() {
            Ok(Answer::Won(win)) => win,
            Ok(Answer::Gone) => return self.end(HoldEvent::Cancelled),
            Ok(Answer::Held(_) | Answer::Waiting(_)) => return self.end(HoldEvent::TimedOut),
            Err(error) => return self.end(HoldEvent::Failed(error)),
        };
        self.locks.leases().waited(&win, waited);
        let (lease, token) = (win.lease, claim.token.clone());
        let care = Care {
            lease: Arc::new(Mutex::new(Target::kept(&token, &lease))),
            // The requested TTL: the time left may be shorter.
            ttl: claim.ttl,
            confirmed: (Uptime::at(now), lease.ttl.as_duration()),
            beat: now + pause(claim.ttl, &lease),
            capped: lease.capped,
            alone,
        };
        if lease.is_over() {
            return self.end(HoldEvent::Lost(care.expired()));
        }
        self.phase = Phase::Holding(Box::new(care));
        HoldEvent::Acquired(Grant { lease, token, waited })
    }

    fn end(&mut self, last: HoldEvent) -> HoldEvent {
        self.phase = Phase::Ended;
        last
    }
}

impl Drop for Hold {
    /// The client is gone: a lease that was told ends or lingers, unless another request has renewed
    /// it. The guard of a grant takes one back that was not.
    fn drop(&mut self) {
        if let Phase::Holding(care) = &self.phase
            && care.alone
            && self.registered.was_told().is_none()
        {
            let over_at = Instant::now() + care.left();
            self.locks.let_go(care.lease.clone(), self.wish.linger, over_at);
        }
    }
}

impl InLine {
    /// The number of claims ahead, at each heartbeat, or the outcome of the wait.
    async fn next(&mut self) -> ControlFlow<Option<Delivery>, u64> {
        loop {
            tokio::select! {
                biased;
                outcome = self.ticket.outcome() => return ControlFlow::Break(outcome),
                () = sleep_until(self.beat) => match self.ticket.ahead() {
                    Some(ahead) => {
                        self.beat = Instant::now() + HEARTBEAT;
                        return ControlFlow::Continue(ahead);
                    }
                    // Still joining: its place, or the lease, comes in a moment.
                    None => self.beat = Instant::now() + JOINING,
                },
            }
        }
    }
}

impl Care {
    /// Refreshes the lease at each heartbeat. Returns the time left.
    async fn next(&mut self, locks: &Locks) -> Result<Duration, Why> {
        sleep_until(self.beat).await;
        match locks.keep(self.lease.clone(), self.ttl).await {
            Ok(Renewed::Lease(lease)) => {
                // Not where nobody hears of it any more: what the client has renewed since the last
                // `alive` is its own.
                self.lease.lock().await.only = If::SameCare(lease.renewals);
                self.confirmed = (Uptime::now(), lease.ttl.as_duration());
                self.capped = lease.capped;
                self.beat = Instant::now() + pause(self.ttl, &lease);
            }
            Ok(Renewed::TakenOver) => return Err(Why::TakenOver),
            Ok(Renewed::Lost) if self.left() > Duration::ZERO => return Err(Why::Released),
            Ok(Renewed::Lost) => return Err(self.expired()),
            Err(_) => {
                let pause = RETRY.min(interval(self.ttl)).min(self.left());
                self.beat = Instant::now() + pause;
            }
        }
        match self.left() {
            Duration::ZERO => Err(self.expired()),
            left => Ok(left),
        }
    }

    /// The reason why the lease has expired.
    fn expired(&self) -> Why {
        if self.capped { Why::MaxHold } else { Why::Expired }
    }

    /// The time left of the lease, as far as the store has confirmed it.
    fn left(&self) -> Duration {
        let (answered, left) = self.confirmed;
        left.saturating_sub(answered.elapsed())
    }
}

/// The interval of refreshes: a third of the TTL, and at most a heartbeat.
fn interval(ttl: Ttl) -> Duration {
    HEARTBEAT.min(ttl.as_duration() / 3)
}

/// The pause before the next refresh of a lease. One that cannot be renewed beyond its end needs no
/// more of them for its TTL becoming shorter.
fn pause(asked: Ttl, lease: &Lease) -> Duration {
    match lease.capped {
        true => interval(asked).min(lease.ttl.as_duration()),
        false => interval(lease.ttl),
    }
}
