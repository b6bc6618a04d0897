//! A lease that lives as long as somebody listens: acquired, kept, and let go when they are gone.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, mpsc};
use tokio::time::{Instant, sleep_until};

use crate::lock::error::{LockError, StoreError};
use crate::lock::holds::Registered;
use crate::lock::key_line::{Delivery, Stop, Told};
use crate::lock::lease::{Claim, Grant, Holding, Lease, LockStatus};
use crate::lock::locks::{Acquired, Locks};
use crate::lock::store::{Attempt, Kept};
use crate::lock::ticket::{HEAR_OUT, Ticket};
use crate::lock::time::{Ttl, Uptime};

/// How often a listener hears that all is well: below every idle time of a proxy, and often
/// enough that a proxy notices within two of them that its client is gone.
const HEARTBEAT: Duration = Duration::from_secs(10);

/// Between two looks at a place that the store has not told yet.
const JOINING: Duration = Duration::from_millis(50);

/// Between two tries to refresh where the store does not answer.
const RETRY: Duration = Duration::from_secs(1);

/// What a listener is told, one after another.
#[derive(Debug)]
pub enum HoldEvent {
    /// In line, with so many ahead as far as this instance knows.
    Waiting(u64),
    /// The lease is there.
    Acquired(Grant),
    /// It goes on, with so much left.
    Alive(Duration),
    /// It is lost; the last event.
    Lost(Loss),
    /// The wait is over; the last event.
    TimedOut,
    /// The instance is going down; the last event. A lease stays for what is left of it.
    Draining,
    /// The claim was released while it waited; the last event.
    Cancelled,
    /// The store did not answer, and nothing is granted that was not told; the last event.
    Failed(StoreError),
}

/// How a lease was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// It ran out.
    Expired,
    /// Its token released it; or it was ended otherwise before its time, where this instance
    /// cannot tell how.
    Released,
    /// An administrator ended it.
    Forced,
    /// Its token acquired it elsewhere, and cares for it there.
    TakenOver,
}

/// What one hold is to be like.
#[derive(Clone, Debug)]
pub struct HoldWish {
    /// What is to be held.
    pub claim: Claim,
    /// How long to wait for it; `None` for as long as it takes.
    pub patience: Option<Duration>,
    /// How long the lease stays when the listener is gone; `None` for not at all.
    pub linger: Option<Ttl>,
}

/// The answer to [`Locks::hold`].
pub enum HoldStart {
    /// A stream of events.
    Hold(Box<Hold>),
    /// Somebody else has the key, and waiting was not asked for.
    Held(LockStatus),
}

/// A lease that is kept, or waited for, until this is dropped.
pub struct Hold {
    locks: Locks,
    wish: HoldWish,
    state: State,
    /// From its first moment on, so that of two that wait under one token the newer is served.
    registered: Registered,
}

enum State {
    /// Granted at a call that was sent at this moment, and not yet told.
    Granted(Grant, Instant),
    Waiting(Box<InLine>),
    Holding(Box<Care>),
    Ended,
}

struct InLine {
    ticket: Ticket,
    began: Instant,
    beat: Instant,
    /// Until when the store is heard out, once the wait is over.
    stopping: Option<Instant>,
}

/// The care for a lease.
struct Care {
    /// Shared with the refresh under way, so that nobody lets go of the lease before it is heard.
    holding: Arc<Mutex<Holding>>,
    ttl: Ttl,
    /// When the request was sent that was answered last, and how long the lease lasts from then.
    confirmed: (Uptime, Duration),
    beat: Instant,
    /// Whether nobody else was told of this grant, so that the end of this hold is the lease's.
    alone: bool,
}

impl Locks {
    /// Acquires the key to keep it for as long as the answer lives.
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
        let state = match self.try_acquire(wish.claim.clone(), Duration::ZERO).await? {
            Acquired::Granted(grant) | Acquired::Again(grant) => State::Granted(grant, began),
            Acquired::Held(status, _) if wish.patience == Some(Duration::ZERO) => {
                return Ok(HoldStart::Held(status));
            }
            Acquired::Held(..) => {
                let ticket = self.enter(wish.claim.clone())?;
                State::Waiting(Box::new(InLine { ticket, began, beat: began, stopping: None }))
            }
        };
        let lease = match &state {
            State::Granted(grant, _) => Some(&grant.lease),
            _ => None,
        };
        let registered = self.holds().register(&key, &token, lease);
        Ok(HoldStart::Hold(Box::new(Hold { locks: self.clone(), wish, state, registered })))
    }
}

impl Hold {
    /// The next event; `None` after the last.
    ///
    /// # Cancel safety
    ///
    /// No event is lost.
    pub async fn next(&mut self) -> Option<HoldEvent> {
        match &mut self.state {
            State::Granted(..) => self.begin(),
            State::Waiting(_) => Some(self.wait().await),
            State::Holding(_) => Some(self.keep().await),
            State::Ended => None,
        }
    }

    /// Begins to care for the lease that was granted.
    fn begin(&mut self) -> Option<HoldEvent> {
        let State::Granted(grant, asked) = std::mem::replace(&mut self.state, State::Ended) else {
            return None;
        };
        self.care_for(&grant.lease, asked);
        Some(HoldEvent::Acquired(grant))
    }

    /// Cares for a lease that was asked for at this moment, and so began no earlier.
    fn care_for(&mut self, lease: &Lease, asked: Instant) {
        self.registered.has(lease);
        let claim = &self.wish.claim;
        let (key, token) = (claim.key.clone(), claim.token.clone());
        let Lease { fencing_token, renewals, .. } = *lease;
        let holding = Holding { key, token, fencing_token, renewals };
        self.state = State::Holding(Box::new(Care {
            holding: Arc::new(Mutex::new(holding)),
            // What is left of it may be less than what was asked for.
            ttl: claim.ttl,
            confirmed: (Uptime::at(asked), lease.ttl.as_duration()),
            beat: asked + interval(lease.ttl),
            alone: true,
        }));
    }

    async fn wait(&mut self) -> HoldEvent {
        loop {
            let State::Waiting(line) = &mut self.state else { return HoldEvent::TimedOut };
            let waits = line.stopping.is_none();
            // What is longer than the clock can count is for as long as it takes.
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
                    // Still joining: it is told its place, or the lease, in a moment.
                    None => line.beat = Instant::now() + JOINING,
                },
            }
        }
    }

    fn told(&mut self, told: Told) -> HoldEvent {
        let event = match told {
            Told::Answer(delivery) => return self.delivered(delivery),
            Told::Held(_) => HoldEvent::TimedOut,
            Told::Out => HoldEvent::Draining,
            Told::Cancelled => HoldEvent::Cancelled,
        };
        self.state = State::Ended;
        event
    }

    /// Takes what the line has told. Another request of the same claim may have been told the same
    /// lease, here or on another instance; then its end is for that one.
    fn delivered(&mut self, Delivery { answer, asked, alone }: Delivery) -> HoldEvent {
        let began = match &self.state {
            State::Waiting(line) => line.began,
            _ => asked,
        };
        self.state = State::Ended;
        let (lease, alone) = match answer.deliver() {
            Ok(Attempt::Granted(lease)) => (lease, alone),
            Ok(Attempt::Again(lease)) => (lease, false),
            Ok(Attempt::Held(_)) => return HoldEvent::TimedOut,
            Err(error) => return HoldEvent::Failed(error),
        };
        self.care_for(&lease, asked);
        if let State::Holding(care) = &mut self.state {
            care.alone = alone;
        }
        let token = self.wish.claim.token.clone();
        HoldEvent::Acquired(Grant { lease, token, waited: asked - began })
    }

    async fn keep(&mut self) -> HoldEvent {
        let State::Holding(care) = &mut self.state else { return HoldEvent::Lost(Loss::Expired) };
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
                self.state = State::Ended;
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
        self.state = State::Ended;
        HoldEvent::Lost(loss)
    }
}

impl Drop for Hold {
    /// The listener is gone: the lease lingers or ends, unless somebody else has cared for it.
    fn drop(&mut self) {
        if self.registered.was_told() {
            return;
        }
        match std::mem::replace(&mut self.state, State::Ended) {
            State::Granted(grant, asked) => self.care_for(&grant.lease, asked),
            // It may have been granted in that very moment.
            State::Waiting(mut line) => {
                if let Some(Told::Answer(delivery)) = line.ticket.withdraw() {
                    self.delivered(delivery);
                }
            }
            state => self.state = state,
        }
        if let State::Holding(care) = &self.state
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
    /// What is left of the lease, as far as the store has confirmed it.
    fn left(&self) -> Duration {
        let (sent, ttl) = self.confirmed;
        ttl.saturating_sub(sent.elapsed())
    }
}

/// How often a lease is refreshed: three times before it ends, and at every heartbeat.
fn interval(ttl: Ttl) -> Duration {
    HEARTBEAT.min(ttl.as_duration() / 3)
}

fn until(moment: Option<Instant>) -> Pin<Box<dyn Future<Output = ()> + Send>> {
    match moment {
        Some(moment) => Box::pin(sleep_until(moment)),
        None => Box::pin(std::future::pending()),
    }
}

/// Where the losses of a hold come from.
pub(crate) type Losses = mpsc::UnboundedReceiver<Loss>;
