//! A lease that lives as long as its connection: acquired, kept, and let go when the client goes.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::{Instant, sleep_until};

use crate::lock::error::{LockError, StoreError};
use crate::lock::holds::{Loss, Registered};
use crate::lock::key_line::{Delivery, Stop, Told};
use crate::lock::lease::{Claim, Grant, Holding, Lease, LockStatus};
use crate::lock::locks::{Acquired, Locks};
use crate::lock::store::{Attempt, Kept};
use crate::lock::ticket::{HEAR_OUT, Ticket};
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
    Lost(Loss),
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
}

/// A lease that is kept, or waited for, until this value is dropped.
pub struct Hold {
    locks: Locks,
    wish: HoldWish,
    phase: Phase,
    /// Registered from the start, so that of two waits under one token the newer is served.
    registered: Registered,
}

enum Phase {
    /// Granted by a call sent at this moment, and not yet told.
    Granted(Grant, Instant),
    Waiting(Box<InLine>),
    Holding(Box<Care>),
    Ended,
}

struct InLine {
    ticket: Ticket,
    began: Instant,
    beat: Instant,
    /// The deadline of the store's last answer, once the wait is over.
    stopping: Option<Instant>,
}

/// A lease that is being kept.
struct Care {
    /// Shared with the refresh under way, so that the lease is let go only after that was answered.
    holding: Arc<Mutex<Holding>>,
    ttl: Ttl,
    /// The moment when the last answered request was sent, and the TTL from then on.
    confirmed: (Uptime, Duration),
    beat: Instant,
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
        let began = Instant::now();
        let (key, token) = (wish.claim.key.clone(), wish.claim.token.clone());
        let phase = match self.try_acquire(wish.claim.clone()).await? {
            Acquired::Granted(grant) | Acquired::Again(grant) => Phase::Granted(grant, began),
            Acquired::Held(status, _) if wish.patience == Some(Duration::ZERO) => {
                return Ok(HoldStart::Held(status));
            }
            Acquired::Held(..) => {
                let ticket = self.enter(wish.claim.clone())?;
                Phase::Waiting(Box::new(InLine { ticket, began, beat: began, stopping: None }))
            }
        };
        let lease = match &phase {
            Phase::Granted(grant, _) => Some(&grant.lease),
            _ => None,
        };
        let registered = self.holds().register(&key, &token, lease);
        Ok(HoldStart::Hold(Box::new(Hold { locks: self.clone(), wish, phase, registered })))
    }
}

impl Hold {
    /// The next event; `None` after the last.
    ///
    /// # Cancel safety
    ///
    /// No event is lost.
    pub async fn next(&mut self) -> Option<HoldEvent> {
        match &mut self.phase {
            Phase::Granted(..) => self.begin(),
            Phase::Waiting(_) => Some(self.wait().await),
            Phase::Holding(_) => Some(self.keep().await),
            Phase::Ended => None,
        }
    }

    fn begin(&mut self) -> Option<HoldEvent> {
        let Phase::Granted(grant, asked) = std::mem::replace(&mut self.phase, Phase::Ended) else {
            return None;
        };
        self.care_for(&grant.lease, asked);
        Some(HoldEvent::Acquired(grant))
    }

    /// Keeps a lease that was requested at `asked`, and so began no earlier.
    fn care_for(&mut self, lease: &Lease, asked: Instant) {
        self.registered.has(lease);
        let claim = &self.wish.claim;
        let (key, token) = (claim.key.clone(), claim.token.clone());
        let Lease { fencing_token, renewals, .. } = *lease;
        let holding = Holding { key, token, fencing_token, renewals };
        self.phase = Phase::Holding(Box::new(Care {
            holding: Arc::new(Mutex::new(holding)),
            // The requested TTL: the time left may be shorter.
            ttl: claim.ttl,
            confirmed: (Uptime::at(asked), lease.ttl.as_duration()),
            beat: asked + interval(lease.ttl),
            alone: true,
        }));
    }

    async fn wait(&mut self) -> HoldEvent {
        loop {
            let Phase::Waiting(line) = &mut self.phase else { return HoldEvent::TimedOut };
            let waits = line.stopping.is_none();
            // A wait beyond the range of the clock has no limit.
            let give_up = self.wish.patience.and_then(|patience| line.began.checked_add(patience));
            tokio::select! {
                biased;
                loss = self.registered.told() => return self.lost(loss),
                told = line.ticket.told() => return self.told(told),
                () = until(line.stopping), if !waits => {
                    let unknown = line.ticket.unknown();
                    return self.told(unknown);
                }
                () = self.locks.drained(), if waits => line.stop(Stop::Draining),
                () = until(give_up), if waits => line.stop(Stop::LastQuestion),
                () = sleep_until(line.beat) => match line.ticket.ahead() {
                    Some(ahead) => {
                        line.beat = Instant::now() + HEARTBEAT;
                        return HoldEvent::Waiting(ahead);
                    }
                    // Still joining: its place, or the lease, comes in a moment.
                    None => line.beat = Instant::now() + JOINING,
                },
            }
        }
    }

    fn told(&mut self, told: Told) -> HoldEvent {
        let event = match told {
            Told::Answer(delivery) => return self.delivered(delivery),
            Told::Out => HoldEvent::Draining,
            Told::Cancelled => HoldEvent::Cancelled,
        };
        self.phase = Phase::Ended;
        event
    }

    /// Takes the line's answer. If another request of the same claim was told of the same lease,
    /// here or on another instance, that request ends it.
    fn delivered(&mut self, Delivery { answer, asked, alone }: Delivery) -> HoldEvent {
        let began = match &self.phase {
            Phase::Waiting(line) => line.began,
            _ => asked,
        };
        self.phase = Phase::Ended;
        let (lease, alone) = match answer.deliver() {
            Ok(Attempt::Won(win)) => (win.lease, alone && win.fresh),
            Ok(Attempt::Held(_)) => return HoldEvent::TimedOut,
            Err(error) => return HoldEvent::Failed(error),
        };
        self.care_for(&lease, asked);
        if let Phase::Holding(care) = &mut self.phase {
            care.alone = alone;
        }
        let token = self.wish.claim.token.clone();
        HoldEvent::Acquired(Grant { lease, token, waited: asked - began })
    }

    async fn keep(&mut self) -> HoldEvent {
        let Phase::Holding(care) = &mut self.phase else { return HoldEvent::Lost(Loss::Expired) };
        let (locks, holding) = (self.locks.clone(), care.holding.clone());
        let (beat, ttl) = (care.beat, care.ttl);
        let refresh = async {
            sleep_until(beat).await;
            let sent = Uptime::now();
            (sent, locks.keep(holding, ttl).await)
        };
        let (sent, kept) = tokio::select! {
            biased;
            loss = self.registered.told() => return self.lost(loss),
            () = self.locks.drained() => {
                self.phase = Phase::Ended;
                return HoldEvent::Draining;
            }
            refreshed = refresh => refreshed,
        };
        match kept {
            Ok(Kept::Lease(lease)) => {
                care.confirmed = (sent, lease.ttl.as_duration());
                care.beat = Instant::now() + interval(lease.ttl).saturating_sub(sent.elapsed());
            }
            Ok(Kept::TakenOver) => return self.lost(Loss::TakenOver),
            Ok(Kept::Lost) if care.left() > Duration::ZERO => return self.lost(Loss::Released),
            Ok(Kept::Lost) => return self.lost(Loss::Expired),
            Err(_) => {
                let pause = RETRY.min(interval(care.ttl)).min(care.left());
                care.beat = Instant::now() + pause;
            }
        }
        match care.left() {
            Duration::ZERO => self.lost(Loss::Expired),
            left => HoldEvent::Alive(left),
        }
    }

    fn lost(&mut self, loss: Loss) -> HoldEvent {
        self.phase = Phase::Ended;
        HoldEvent::Lost(loss)
    }
}

impl Drop for Hold {
    /// The client is gone: the lease ends or lingers, unless another request has renewed it.
    fn drop(&mut self) {
        if self.registered.was_told() {
            return;
        }
        match std::mem::replace(&mut self.phase, Phase::Ended) {
            Phase::Granted(grant, asked) => self.care_for(&grant.lease, asked),
            // It may have been granted at this very moment.
            Phase::Waiting(mut line) => {
                if let Some(Told::Answer(delivery)) = line.ticket.withdraw() {
                    self.delivered(delivery);
                }
            }
            phase => self.phase = phase,
        }
        if let Phase::Holding(care) = &self.phase
            && care.alone
        {
            let over_at = Instant::now() + care.left();
            self.locks.let_go(care.holding.clone(), self.wish.linger, over_at);
        }
    }
}

impl InLine {
    fn stop(&mut self, stop: Stop) {
        self.ticket.stop(stop);
        self.stopping = Some(Instant::now() + HEAR_OUT);
    }
}

impl Care {
    /// The time left of the lease, as far as the store has confirmed it.
    fn left(&self) -> Duration {
        let (sent, ttl) = self.confirmed;
        ttl.saturating_sub(sent.elapsed())
    }
}

/// The interval of refreshes: a third of the TTL, and at most a heartbeat.
fn interval(ttl: Ttl) -> Duration {
    HEARTBEAT.min(ttl.as_duration() / 3)
}

fn until(moment: Option<Instant>) -> Pin<Box<dyn Future<Output = ()> + Send>> {
    match moment {
        Some(moment) => Box::pin(sleep_until(moment)),
        None => Box::pin(std::future::pending()),
    }
}
