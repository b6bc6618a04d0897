//! Acquires a lease for a command, with retries.

mod absence;
mod progress;

use std::time::Duration;

use clap::Args;
use futures_util::future::join_all;
use tokio::time::error::Elapsed;
use tokio::time::{sleep, timeout};

use crate::cli::clock::Moment;
use crate::cli::exit;
use crate::cli::exit::{Failure, about};
use crate::cli::remote::{duration, slots, units};
use crate::cli::table::{Holding, whose};
use crate::cli::voice::Voice;
use crate::client::{Client, ClientError, Granted, KeyWish, LeaseId, Refusal, Wish};
use crate::lock::key::LockKey;
use crate::lock::slots::{Share, Slots};
use crate::lock::token::{FencingToken, LeaseToken};
use crate::wire::Code;

pub(super) use crate::cli::claimant::absence::{Absence, Unanswered};
pub(super) use crate::cli::claimant::progress::Progress;

/// The pause between failed attempts.
pub(super) const PAUSE: Duration = Duration::from_millis(250);

/// The pause after a request that a newer one of its claim has superseded.
const SUPERSEDED_PAUSE: Duration = Duration::from_secs(1);

/// So many requests of a claim are superseded only if another program has its token.
const MOST_SUPERSEDED: u32 = 3;

/// The longest wait of one request: the service's default limit.
const SLICE: Duration = Duration::from_secs(25);

/// The time limit for leaving the line.
pub(super) const LEAVE_TIME: Duration = Duration::from_secs(2);

/// The longest way of a request that was given up, behind a proxy that sends it on all the same.
const ON_ITS_WAY: Duration = Duration::from_secs(1);

/// The options for a key that is held.
#[derive(Args, Debug)]
pub(super) struct Contention {
    /// Do not wait.
    #[arg(short, long, aliases = ["nonblocking", "nb"], conflicts_with = "wait")]
    nonblock: bool,
    /// Wait at most this long, as in 10, 0.5 or 1h30m [default: forever].
    #[arg(
        short,
        long,
        visible_alias = "timeout",
        value_name = "DURATION",
        value_parser = duration
    )]
    wait: Option<Duration>,
    /// Exit code if another client holds the key; 0 suits cron.
    #[arg(short = 'E', long, value_name = "N", default_value_t = exit::BUSY)]
    pub(super) conflict_exit_code: u8,
    /// Share the key with N holders in all at most, this one included.
    #[arg(long, value_name = "N", value_parser = slots)]
    slots: Option<Slots>,
    /// Take N of the --slots instead of 1.
    #[arg(long, value_name = "N", requires = "slots", value_parser = units)]
    units: Option<u16>,
    /// Share the key with all who share it.
    #[arg(long, conflicts_with_all = ["slots", "units"])]
    shared: bool,
}

impl Contention {
    /// The share of the key; `None` for an exclusive lease.
    pub(super) fn share(&self) -> Option<Share> {
        let slots = if self.shared { Some(Slots::SHARED) } else { self.slots };
        slots.map(|slots| Share { slots, units: self.units.unwrap_or(1), slot: None })
    }

    pub(super) fn waits(&self) -> bool {
        self.wait().is_none_or(|wait| !wait.is_zero())
    }

    /// The longest wait; `None` means forever.
    pub(super) fn wait(&self) -> Option<Duration> {
        if self.nonblock { Some(Duration::ZERO) } else { self.wait }
    }
}

/// A client that wants a lease.
#[derive(Debug)]
pub(super) struct Claimant {
    pub(super) client: Client,
    pub(super) key: LockKey,
    /// Keys that it wants as well, in one claim.
    pub(super) also: Vec<KeyWish>,
    /// Unique, so that a repeated request is the same claim.
    pub(super) token: LeaseToken,
    pub(super) wish: Wish,
    pub(super) voice: Voice,
    pub(super) progress: Progress,
}

impl Claimant {
    /// Waits for the lease, forever without `wait`: repeats the request with the same token, which
    /// keeps the place in line. Also returns the moment of the last request. After an error it has
    /// tried to leave nothing at the service. Dropping it leaves the line.
    pub(super) async fn acquire(
        &self,
        wait: Option<Duration>,
    ) -> Result<(Moment, Granted), Failure> {
        let began = Moment::now();
        tokio::select! {
            biased;
            acquired = self.attempts(began, wait) => {
                self.voice.draw(|_| String::new());
                acquired
            }
            never = self.report(wait.map(|wait| began.after(wait))) => match never {},
        }
    }

    async fn attempts(
        &self,
        began: Moment,
        wait: Option<Duration>,
    ) -> Result<(Moment, Granted), Failure> {
        let mut absence = Absence::default();
        // A lease may exist whose answer was lost or came too late.
        let (mut unsure, mut superseded) = (false, 0);
        let why = loop {
            let left = || wait.map_or(SLICE, |wait| began.after(wait).left());
            let slice = left().min(SLICE);
            let sent = Moment::now();
            let (why, was_sent) = match self.ask(slice).await {
                Ok(granted) => {
                    let began = sent.after(granted.waited);
                    if !began.after(granted.ttl / 2).has_come() {
                        return Ok((sent, granted));
                    }
                    unsure = true;
                    ("answers take longer than half of the TTL".to_owned(), false)
                }
                Err(ClientError::Refused(refusal))
                    if refusal.is_busy() || refusal.is(Code::QuotaExceeded) =>
                {
                    let busy = refusal.is_busy();
                    // An earlier request of the claim has one of its keys, and ends soon.
                    let is_open = refusal.mine && !self.also.is_empty();
                    // Busy is definite: this token holds nothing, or no more than it knows of.
                    unsure = unsure && !busy || is_open;
                    if left().is_zero() || busy && refusal.mine && !is_open {
                        break refused(&self.key, &refusal);
                    }
                    absence.ends();
                    self.progress.is_answered();
                    if !busy {
                        self.voice.tell(|| about(&self.key, refusal.detail));
                    }
                    sleep(sent.after(PAUSE).left()).await;
                    continue;
                }
                Err(ClientError::Refused(refusal))
                    if refusal.is(Code::WaitCancelled) || refusal.is(Code::LockLost) =>
                {
                    break self.lost("was released while it waited");
                }
                Err(ClientError::Refused(refusal)) if refusal.is(Code::Superseded) => {
                    superseded += 1;
                    match self.superseded(superseded, sent).await {
                        Some(failure) => break failure,
                        None => continue,
                    }
                }
                Err(ClientError::Refused(refusal)) if !refusal.may_pass() => {
                    // A gateway may have passed the request on before it refused.
                    unsure |= !refusal.is_ours();
                    break refusal.detail.into();
                }
                Err(error) => {
                    unsure = true;
                    let sent = matches!(error, ClientError::NoAnswer { sent: true, .. });
                    (error.to_string(), sent)
                }
            };
            let was_cut = !sent.after(slice).has_come();
            absence.notes(Unanswered { at: sent, sent: was_sent, was_cut });
            if absence.is_too_long(left().is_zero()) {
                break Failure { code: exit::UNREACHABLE, why };
            }
            if self.progress.is_silent(&why) {
                self.voice.tell(|| about(&self.key, why));
            }
            sleep(sent.after(PAUSE).left()).await;
        };
        if unsure {
            self.leave().await;
        }
        Err(why.about(&self.key))
    }

    async fn ask(&self, wait: Duration) -> Result<Granted, ClientError> {
        if self.also.is_empty() {
            return self.client.acquire(&self.key, &self.token, &self.wish, wait).await;
        }
        let first = (self.key.clone(), self.wish.share);
        let keys: Vec<_> = std::iter::once(first).chain(self.also.iter().cloned()).collect();
        self.client.acquire_all(&keys, &self.token, &self.wish, wait).await
    }

    /// Waits after a request that was superseded: an earlier one of this claim may have arrived late.
    /// Fails once it was superseded so often that another program has to have its token.
    async fn superseded(&self, times: u32, sent: Moment) -> Option<Failure> {
        if times == MOST_SUPERSEDED {
            return Some(self.lost("waits in another program, with the same token"));
        }
        sleep(sent.after(SUPERSEDED_PAUSE).left()).await;
        None
    }

    fn lost(&self, why: &str) -> Failure {
        Failure { code: exit::LOST, why: format!("the claim on '{}' {why}", self.key) }
    }

    /// Leaves the line and releases a lease that was granted meanwhile. Returns true if the service
    /// answered.
    pub(super) async fn leave(&self) -> bool {
        // The command ends now; a lease that cannot be released expires.
        let mut left = self.release_all().await.into_iter();
        left.any(|left| match left {
            Ok(Ok(())) => true,
            Ok(Err(error)) => !error.may_pass(),
            Err(_) => false,
        })
    }

    /// Releases each key once.
    async fn release_all(&self) -> Vec<Result<Result<(), ClientError>, Elapsed>> {
        let release = |key| {
            let lease = LeaseId { key, token: &self.token, fencing_token: None };
            timeout(LEAVE_TIME, self.client.release(lease))
        };
        join_all(self.keys().map(release)).await
    }

    /// The keys of the claim.
    fn keys(&self) -> impl Iterator<Item = &LockKey> {
        std::iter::once(&self.key).chain(self.also.iter().map(|(key, _)| key))
    }

    /// Leaves the line after a request for the lease was given up. If there is nothing to leave, the
    /// request may still be on its way, so it asks again for a moment.
    pub(super) async fn withdraw(&self) {
        let until = Moment::now().after(ON_ITS_WAY);
        let is_lost = |left: &Result<Result<(), _>, _>| match left {
            Ok(Err(ClientError::Refused(refusal))) => refusal.is(Code::LockLost),
            _ => false,
        };
        while self.release_all().await.iter().all(is_lost) && !until.has_come() {
            sleep(PAUSE).await;
        }
    }

    /// The lease as requests name it.
    pub(super) fn lease(&self, fencing_token: Option<FencingToken>) -> LeaseId<'_> {
        LeaseId { key: &self.key, token: &self.token, fencing_token }
    }
}

/// The failure of a claim that is refused because the key is held, or for a quota: then the service
/// is there, so that is no reason to go on without it.
fn refused(key: &LockKey, refusal: &Refusal) -> Failure {
    if !refusal.is_busy() {
        return refusal.detail.clone().into();
    }
    if !refusal.is(Code::LockHeld) || refusal.mine {
        return Failure { code: exit::BUSY, why: refusal.detail.clone() };
    }
    let holding = Holding {
        whose: whose(refusal.owner.as_deref(), refusal.holders, (refusal.units, refusal.slots)),
        held_ms: refusal.held_ms,
        ttl_ms: refusal.retry_after_ms,
    };
    let waiters = refusal.waiters.filter(|waiters| *waiters > 0);
    let line = waiters.map_or_else(String::new, |waiters| format!("; {waiters} in line"));
    let key = refusal.key.as_deref().unwrap_or(key.as_str());
    Failure { code: exit::BUSY, why: format!("'{key}' is {holding}{line}") }
}
