//! A lease that lives as long as its connection: acquired, kept, and let go when the client goes.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout};

use crate::lock::error::{LockError, StoreError};
use crate::lock::lease::{Claim, Grant, Lease, LockStatus};
use crate::lock::leases::{Heard, Registered, Why};
use crate::lock::locks::{LastWord, Locks, may_wait};
use crate::lock::store::{Answer, Renewed, Target};
use crate::lock::ticket::Ticket;
use crate::lock::time::{Ttl, Uptime};
use crate::lock::token::FencingToken;
use crate::lock::undo_queue::Delivery;

/// The heartbeat interval: below any proxy's idle timeout, and short enough that a proxy notices
/// within two of them that its client is gone.
const HEARTBEAT: Duration = Duration::from_secs(10);

/// The pause before asking again for a place that is not known yet.
const JOINING: Duration = Duration::from_millis(50);

/// The pause between two refreshes while the store does not answer.
const RETRY: Duration = Duration::from_secs(1);

/// The time limit of the last word of a hold before its client is told `draining`.
const LEAVE: Duration = Duration::from_secs(1);

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
    /// A newer request of the claim waits instead; the last event.
    Superseded,
    /// The token has this lease by another request; the last event.
    Mine(Option<FencingToken>),
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
    /// Set once the client's connection has timed out: it may still rely on the last event.
    pub timed_out: TimedOut,
}

/// Whether a connection was given up because its client fell silent, and was not closed by it.
#[derive(Clone, Debug, Default)]
pub struct TimedOut(Arc<AtomicBool>);

impl TimedOut {
    /// Notes that the connection has timed out.
    pub fn set(&self) {
        self.0.store(true, Ordering::Release);
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// The answer to [`Locks::hold`].
pub enum HoldStart {
    /// A stream of events.
    Hold(Box<Hold>),
    /// The key is held, and the request allows no wait.
    Held(LockStatus),
    /// The token does not have the lease that the claim names, but maybe another one.
    Lost(Option<FencingToken>),
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
    /// The instance shuts down, and lets the lease go.
    Leaving(JoinHandle<()>),
    Ended,
}

struct InLine {
    ticket: Ticket,
    beat: Instant,
}

/// A lease that is being kept.
struct Care {
    lease: Target,
    ttl: Ttl,
    /// The moment of the store's last answer, and the time that was left then.
    confirmed: (Uptime, Duration),
    beat: Instant,
    /// True if the lease cannot be renewed beyond its present end.
    capped: bool,
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
        let began = Instant::now();
        let claim = &wish.claim;
        let registered = Registered::new(self.leases().clone(), claim.key.clone());
        let delivery = self.ask(claim.clone()).await?;
        let phase = if let Ok(Answer::Won(_)) = delivery.answer() {
            Phase::Granted(Some(Box::new(delivery)))
        } else {
            match delivery.hand_over()? {
                Answer::Held(status)
                    if wish.patience == Some(Duration::ZERO) || !may_wait(claim, &status) =>
                {
                    return Ok(HoldStart::Held(status));
                }
                Answer::Held(_) => {
                    // A wait beyond the range of the clock has no limit.
                    let give_up_at = wish.patience.and_then(|patience| began.checked_add(patience));
                    let ticket = self.enter(claim.clone(), give_up_at)?;
                    Phase::Waiting(Box::new(InLine { ticket, beat: began }))
                }
                Answer::Lost(number) => return Ok(HoldStart::Lost(number)),
                Answer::Won(_) | Answer::Waiting(_) | Answer::Superseded | Answer::Cancelled => {
                    return Err(LockError::Superseded(Duration::ZERO));
                }
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
            Phase::Waiting(line) => match line.next().await {
                ControlFlow::Continue(ahead) => HoldEvent::Waiting(ahead),
                ControlFlow::Break(Some(delivery)) => self.delivered(delivery),
                ControlFlow::Break(None) => self.end(HoldEvent::Draining),
            },
            Phase::Holding(care) => tokio::select! {
                biased;
                why = self.registered.told() => {
                    let why = care.explained(why);
                    self.end(HoldEvent::Lost(why))
                }
                () = self.locks.drained() => {
                    let leaving = care.let_go(&self.locks, LastWord::Stay);
                    self.phase = Phase::Leaving(leaving);
                    return Box::pin(self.next()).await;
                }
                kept = care.next(&self.locks) => match kept {
                    Ok(left) => HoldEvent::Alive(left),
                    Err(why) => self.end(HoldEvent::Lost(why)),
                },
            },
            Phase::Leaving(leaving) => {
                let _ = timeout(LEAVE, leaving).await;
                self.end(HoldEvent::Draining)
            }
            Phase::Ended => return None,
        })
    }

    /// Ends the hold of a client that has lost its rights, and returns the last event. A lease that
    /// was told stays until it expires, because the client may be at work; a wait ends as if the
    /// client had disconnected.
    pub fn revoke(&mut self) -> Option<HoldEvent> {
        match &self.phase {
            Phase::Ended => return None,
            Phase::Holding(care) => drop(care.let_go(&self.locks, LastWord::Stay)),
            _ => (),
        }
        Some(self.end(HoldEvent::Lost(Why::Revoked)))
    }

    /// Takes the store's answer. The lease is registered before it is told: an end that was seen
    /// meanwhile is told instead.
    fn delivered(&mut self, delivery: Delivery) -> HoldEvent {
        self.wish.claim.permit = None; // The registry counts the lease by now.
        let claim = &self.wish.claim;
        let now = Instant::now();
        // The question of a claim that did not wait is later than the beginning.
        let waits = matches!(self.phase, Phase::Waiting(_));
        let waited = if waits { delivery.asked - self.began } else { Duration::ZERO };
        let heard = match delivery.answer() {
            Ok(Answer::Won(win)) => self.registered.has(&win.lease),
            _ => Heard::Goes,
        };
        if let Heard::Ended(why) = heard {
            let why = if why == Why::Elsewhere { Why::Released } else { why };
            return self.end(HoldEvent::Lost(why));
        }
        let win = match delivery.hand_over() {
            Ok(Answer::Won(win)) => win,
            Ok(Answer::Cancelled) => return self.end(HoldEvent::Cancelled),
            Ok(Answer::Superseded) => return self.end(HoldEvent::Superseded),
            Ok(Answer::Lost(number)) => return self.end(HoldEvent::Mine(number)),
            Ok(Answer::Held(LockStatus { mine: Some(true), holder, .. })) => {
                return self.end(HoldEvent::Mine(holder.and_then(|own| own.fencing_token)));
            }
            Ok(Answer::Held(_) | Answer::Waiting(_)) => return self.end(HoldEvent::TimedOut),
            Err(error) => return self.end(HoldEvent::Failed(error)),
        };
        self.locks.leases().waited(&win, waited);
        let lease = win.lease;
        let token = claim.token.clone();
        let care = Care {
            lease: Target::kept(&token, &lease),
            // The requested TTL: the time left may be shorter.
            ttl: claim.ttl,
            confirmed: (Uptime::at(now), lease.ttl.as_duration()),
            beat: if heard == Heard::Unsure { now } else { now + pause(claim.ttl, &lease) },
            capped: lease.capped,
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
    /// Rule 16: the client is gone, and a lease that was told ends or lingers. One whose connection
    /// has timed out keeps its end. The guard of a grant takes one back that was not told.
    fn drop(&mut self) {
        if let Phase::Holding(care) = &self.phase
            && self.registered.was_told().is_none()
        {
            let word = match self.wish.linger {
                _ if self.wish.timed_out.is_set() || self.locks.drains() => LastWord::Stay,
                Some(linger) => LastWord::Linger(linger),
                None => LastWord::End,
            };
            drop(care.let_go(&self.locks, word));
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
        let renewing = locks.renew(self.lease.clone(), Some(self.ttl));
        let Ok(renewed) = timeout(self.left(), renewing).await else {
            // The client is told so in time. If the store renews it yet, it ends.
            drop(self.let_go(locks, LastWord::End));
            return Err(self.expired());
        };
        match renewed {
            Ok(Renewed::Lease(lease)) => {
                self.confirmed = (Uptime::now(), lease.ttl.as_duration());
                self.capped = lease.capped;
                self.beat = Instant::now() + pause(self.ttl, &lease);
            }
            Ok(Renewed::Lost(Some(_))) => return Err(Why::Replaced),
            Ok(_) => return Err(self.explained(Why::Elsewhere)),
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

    /// Speaks the last word about the lease.
    fn let_go(&self, locks: &Locks, word: LastWord) -> JoinHandle<()> {
        locks.let_go(self.lease.clone(), word, Instant::now() + self.left())
    }

    /// The reason of an end that this instance did not see, by the time that was left.
    fn explained(&self, why: Why) -> Why {
        match why {
            Why::Elsewhere if self.left() > Duration::ZERO => Why::Released,
            Why::Elsewhere => self.expired(),
            seen => seen,
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
