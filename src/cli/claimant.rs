//! Getting a lease, for as long as somebody wants to wait.

use std::time::Duration;

use clap::Args;

use crate::cli::clock::Moment;
use crate::cli::exit;
use crate::cli::remote::duration;
use crate::cli::voice::Voice;
use crate::client::Client;
use crate::client::ClientError;
use crate::client::Granted;
use crate::client::Wish;
use crate::lock::key::LockKey;
use crate::lock::lease::Owner;
use crate::lock::time::Ttl;
use crate::lock::token::LeaseToken;

/// Between two attempts that came to nothing.
pub(super) const PAUSE: Duration = Duration::from_millis(250);

/// One request waits no longer than this: what the service allows unless it is told otherwise.
const SLICE: Duration = Duration::from_secs(25);

/// How long a service may be silent that has not answered yet: a restart takes less.
const SILENCE_AT_FIRST: Duration = Duration::from_secs(5);

/// How long a service may be silent in whose line we were.
const SILENCE_IN_LINE: Duration = Duration::from_secs(60);

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
    /// The service wants no such request.
    Refused(String),
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
    /// token, so the place in line stays. Gives when the last one was sent. Dropping it leaves
    /// the line.
    pub(super) async fn acquire(
        &self,
        wait: Option<Duration>,
    ) -> Result<(Moment, Granted), NoLease> {
        let began = Moment::now();
        let mut patience = SILENCE_AT_FIRST;
        let mut heard = began;
        loop {
            let left = || wait.map_or(SLICE, |wait| began.after(wait).left());
            let wish = Wish { ttl: self.ttl, wait: left().min(SLICE), owner: self.owner.clone() };
            let sent = Moment::now();
            match self.client.acquire(&self.key, &self.token, &wish).await {
                Ok(granted) => {
                    let began = sent.after(granted.waited);
                    if !began.after(granted.ttl / 2).has_come() {
                        return Ok((sent, granted));
                    }
                    // The answer was so long on its way that the time has to start anew.
                    (heard, patience) = (Moment::now(), SILENCE_IN_LINE);
                    continue;
                }
                Err(ClientError::Refused(refusal)) if refusal.is_busy() => {
                    if left().is_zero() {
                        return Err(NoLease::Busy(refusal.detail));
                    }
                    self.voice.tell(|| refusal.detail.clone());
                    (heard, patience) = (Moment::now(), SILENCE_IN_LINE);
                }
                Err(ClientError::Refused(refusal)) if !refusal.may_pass() => {
                    return Err(NoLease::Refused(refusal.detail));
                }
                Err(error) => {
                    if left().is_zero() {
                        patience = SILENCE_AT_FIRST;
                    }
                    if heard.after(patience).has_come() {
                        return Err(NoLease::Unreachable(error.to_string()));
                    }
                    self.voice.tell(|| error.to_string());
                }
            }
            tokio::time::sleep(sent.after(PAUSE).left()).await;
        }
    }

    /// Leaves the line, with whatever was granted in it.
    pub(super) async fn leave(&self) {
        // It ends at once: what cannot be told now ends by itself.
        let told = tokio::time::timeout(Duration::from_secs(2), async {
            self.client.release(&self.key, &self.token).await
        });
        let _ = told.await;
    }
}
