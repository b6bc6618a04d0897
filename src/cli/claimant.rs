//! Getting a lease, for as long as somebody wants to wait.

use std::time::Duration;

use clap::Args;
use tokio::time::{sleep, timeout};

use crate::cli::clock::Moment;
use crate::cli::exit;
use crate::cli::remote::duration;
use crate::cli::voice::Voice;
use crate::client::{Client, ClientError, Granted, LeaseId, Wish};
use crate::lock::key::LockKey;
use crate::lock::lease::Owner;
use crate::lock::time::Ttl;
use crate::lock::token::{FencingToken, LeaseToken};

/// Between two attempts that came to nothing.
pub(super) const PAUSE: Duration = Duration::from_millis(250);

/// One request waits no longer than this: what the service allows unless it is told otherwise.
const SLICE: Duration = Duration::from_secs(25);

/// How long a service may be silent that has not answered yet: a restart takes less.
const SILENCE_AT_FIRST: Duration = Duration::from_secs(5);

/// How long a service may be silent in whose line we were.
const SILENCE_IN_LINE: Duration = Duration::from_secs(60);

/// Limit for leaving the line.
const LEAVE_TIME: Duration = Duration::from_secs(2);

/// What to do when somebody else has the key.
#[derive(Args, Debug)]
pub(super) struct Contention {
    /// Do not wait.
    #[arg(short, long, conflicts_with = "wait")]
    nonblock: bool,
    /// Wait at most so long, as in 10, 500ms or 5m [default: for ever].
    #[arg(short, long, value_name = "DURATION", value_parser = duration)]
    wait: Option<Duration>,
    /// The exit code if somebody else has the key; 0 suits cron.
    #[arg(short = 'E', long, value_name = "N", default_value_t = exit::BUSY)]
    pub(super) conflict_exit_code: u8,
}

impl Contention {
    /// How long to wait; `None` for ever.
    pub(super) fn wait(&self) -> Option<Duration> {
        if self.nonblock { Some(Duration::ZERO) } else { self.wait }
    }
}

/// Why there is no lease.
#[derive(Debug)]
pub(super) enum NoLease {
    /// Somebody else has the key.
    Busy(String),
    /// The service does not answer.
    Unreachable(String),
    /// The service refuses such a request.
    Refused(String),
    /// Somebody who has the token gave the claim up.
    Cancelled(String),
}

impl NoLease {
    /// Says why, and gives the exit code; `busy` if somebody else has the key, of which there is
    /// nothing to say.
    pub(super) fn say(self, voice: Voice, busy: u8) -> u8 {
        match self {
            Self::Busy(detail) => {
                voice.tell(|| detail);
                busy
            }
            Self::Unreachable(why) => {
                voice.complain(|| why);
                exit::UNREACHABLE
            }
            Self::Refused(detail) => {
                voice.complain(|| detail);
                exit::INTERNAL
            }
            Self::Cancelled(detail) => {
                voice.complain(|| detail);
                exit::LOST
            }
        }
    }
}

/// Somebody who wants a lease.
#[derive(Debug)]
pub(super) struct Claimant {
    pub(super) client: Client,
    pub(super) key: LockKey,
    /// Its own, so a request that is repeated is the same claim.
    pub(super) token: LeaseToken,
    pub(super) owner: Option<Owner>,
    /// The service's default if absent.
    pub(super) ttl: Option<Ttl>,
    pub(super) voice: Voice,
}

impl Claimant {
    /// Waits for the lease, for ever if there is no `wait`: request after request, with the same
    /// token, so the place in line stays. Gives when the last one was sent. Without a lease nothing
    /// of it is left at the service, as far as that can be told. Dropping it leaves the line.
    pub(super) async fn acquire(
        &self,
        wait: Option<Duration>,
    ) -> Result<(Moment, Granted), NoLease> {
        let began = Moment::now();
        let mut patience = SILENCE_AT_FIRST;
        let mut heard = began;
        // A lease may be there of which no answer, or too late a one, has come.
        let mut unsure = false;
        let why = loop {
            let left = || wait.map_or(SLICE, |wait| began.after(wait).left());
            let wish = Wish { ttl: self.ttl, wait: left().min(SLICE), owner: self.owner.clone() };
            let sent = Moment::now();
            let why = match self.client.acquire(&self.key, &self.token, &wish).await {
                Ok(granted) => {
                    let began = sent.after(granted.waited);
                    if !began.after(granted.ttl / 2).has_come() {
                        return Ok((sent, granted));
                    }
                    unsure = true;
                    "answers take longer than half of the TTL".to_owned()
                }
                Err(ClientError::Refused(refusal)) if refusal.is_busy() => {
                    // Definite: this token holds nothing.
                    unsure = false;
                    if left().is_zero() {
                        break NoLease::Busy(refusal.detail);
                    }
                    self.voice.tell(|| refusal.detail.clone());
                    (heard, patience) = (Moment::now(), SILENCE_IN_LINE);
                    sleep(sent.after(PAUSE).left()).await;
                    continue;
                }
                Err(ClientError::Refused(refusal)) if refusal.is_cancelled() => {
                    break NoLease::Cancelled(format!(
                        "the claim on '{}' was released while it waited",
                        self.key
                    ));
                }
                Err(ClientError::Refused(refusal)) if !refusal.may_pass() => {
                    break NoLease::Refused(refusal.detail);
                }
                Err(error) => {
                    unsure = true;
                    error.to_string()
                }
            };
            if left().is_zero() {
                patience = SILENCE_AT_FIRST;
            }
            if heard.after(patience).has_come() {
                break NoLease::Unreachable(why);
            }
            self.voice.tell(|| why);
            sleep(sent.after(PAUSE).left()).await;
        };
        if unsure {
            self.leave().await;
        }
        Err(why)
    }

    /// Leaves the line, with whatever was granted in it.
    pub(super) async fn leave(&self) {
        // It ends at once: what cannot be told now ends by itself.
        let told = timeout(LEAVE_TIME, async { self.client.release(self.lease(None)).await });
        let _ = told.await;
    }

    /// Names the lease.
    pub(super) fn lease(&self, fencing_token: Option<FencingToken>) -> LeaseId<'_> {
        LeaseId { key: &self.key, token: &self.token, fencing_token }
    }
}
