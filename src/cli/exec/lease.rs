//! The lease of `exec`: how it is acquired, kept and released.
//!
//! Its end is counted from the sending of the last answered request, so it comes before the end
//! that the service knows. `supervise` does what has to be done before it.

use std::io;
use std::time::Duration;

use tokio::time::sleep;

use crate::cli::claimant::{Claimant, PAUSE};
use crate::cli::clock::Moment;
use crate::cli::exit::{Failure, about};
use crate::cli::table::span;
use crate::client::{ANSWER_TIME, ClientError, Granted, Wish};
use crate::lock::time::{Ttl, millis_down};
use crate::lock::token::FencingToken;
use crate::platform::clock::Alarm;
use crate::wire::Code;

/// The shortest and the longest pause between attempts to refresh.
const REFRESH_PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));

/// The least time limit of one attempt to refresh.
const LEAST_PATIENCE: Duration = Duration::from_millis(50);

/// The least time between COMMAND's death and the end of the lease, for busy machines.
const LEAST_MARGIN: Duration = Duration::from_millis(200);

/// The time that COMMAND has to end, where the TTL leaves it.
const USUAL_KILL_AFTER: Duration = Duration::from_secs(5);

/// The part of the TTL kept as a margin: more than two clocks drift apart in it.
const MARGIN_PART: u32 = 50;

/// The longest rest that is waited out instead of refreshed, and the least that a refresh asks for:
/// the service has a shortest TTL.
const SHORT_REST: Duration = Duration::from_secs(1);

/// Possible reasons why a lease is gone at its release; they cannot be told apart.
const GONE: &str = "the lease was gone before its release: it was ended by force, or a proxy sent \
                    the release twice";

/// The most attempts to release.
const RELEASES: usize = 3;

/// The terms of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Terms {
    ttl: Duration,
    /// The time that COMMAND has to end before it is killed.
    pub(super) kill_after: Duration,
}

impl Terms {
    /// Refuses a TTL too short to end COMMAND within half of it after failed refreshes. Without
    /// `kill_after` COMMAND has what fits, 5 s at most.
    pub(super) fn new(ttl: Duration, kill_after: Option<Duration>) -> Result<Self, String> {
        let fitting = (ttl / 2).checked_sub(margin(ttl)).map(|most| most.min(USUAL_KILL_AFTER));
        let Some(kill_after) = kill_after.or(fitting) else {
            let least = seconds(LEAST_MARGIN.saturating_mul(2));
            return Err(format!("a TTL of {} is too short: use {least} at least", seconds(ttl)));
        };
        let terms = Self { ttl, kill_after };
        let least = kill_after.saturating_add(margin(ttl)).saturating_mul(2);
        if ttl < least {
            return Err(format!(
                "a TTL of {} is too short: COMMAND may take {} to end (--kill-after), so the \
                 TTL has to be at least {}",
                seconds(ttl),
                seconds(kill_after),
                seconds(least)
            ));
        }
        Ok(terms)
    }

    pub(super) fn ttl(self) -> Ttl {
        Ttl::from_millis(millis_down(self.ttl))
    }
}

/// The time between COMMAND's death and the end of a lease with this TTL.
fn margin(ttl: Duration) -> Duration {
    LEAST_MARGIN.max(ttl / MARGIN_PART)
}

fn seconds(time: Duration) -> String {
    format!("{} s", time.as_secs_f64())
}

/// A lease as far as this process knows it.
#[derive(Clone, Copy, Debug)]
pub(super) struct KnownLease {
    pub(super) fencing_token: FencingToken,
    /// The number of its slot, if it has one.
    pub(super) slot: Option<u16>,
    /// The time of the next refresh.
    pub(super) renew: Moment,
    /// The time to tell COMMAND to end.
    pub(super) terminate: Moment,
    /// The time to kill COMMAND.
    pub(super) kill: Moment,
    /// The time when it expires.
    pub(super) end: Moment,
    /// No refresh makes it last longer.
    capped: bool,
}

impl KnownLease {
    fn of(granted: &Granted, sent: Moment, terms: Terms) -> Self {
        let began = sent.after(granted.waited);
        let end = began.after(granted.ttl);
        let kill = end.before(margin(granted.ttl));
        // A capped lease is refreshed only to hear of its loss.
        let ttl = if granted.capped { terms.ttl } else { granted.ttl };
        Self {
            fencing_token: granted.fencing_token,
            slot: granted.slot,
            renew: began.after(ttl / 3),
            terminate: kill.before(terms.kill_after),
            kill,
            end,
            capped: granted.capped,
        }
    }
}

/// The reason why a lease is no longer kept.
#[derive(Debug, thiserror::Error)]
pub(super) enum LossReason {
    /// The service answered that it is lost.
    #[error("{0}")]
    Told(String),
    /// The service did not answer if `unanswered`.
    #[error("the lease could not be refreshed in time: {why}")]
    Late { why: String, unanswered: bool },
    #[error("the lease lasts no longer: the service has a max_hold for its key")]
    Capped,
}

/// Acquires, keeps and releases the lease.
#[derive(Debug)]
pub(super) struct LeaseKeeper {
    pub(super) claimant: Claimant,
    pub(super) terms: Terms,
}

impl LeaseKeeper {
    /// Waits for the lease, forever without `wait`. Dropping it leaves the line.
    pub(super) async fn acquire(&self, wait: Option<Duration>) -> Result<KnownLease, Failure> {
        let (sent, granted) = self.claimant.acquire(wait).await?;
        Ok(KnownLease::of(&granted, sent, self.terms))
    }

    /// Tries to refresh until `limit`, a moment of the lease, with short pauses after failures.
    pub(super) async fn refresh(
        &self,
        alarm: &Alarm,
        lease: &KnownLease,
        limit: fn(&KnownLease) -> Moment,
    ) -> io::Result<Result<KnownLease, LossReason>> {
        let number = lease.fencing_token;
        let end = limit(lease);
        let mut why = "no time was left for it".to_owned();
        let mut unanswered = false;
        let mut told = String::new();
        loop {
            let left = end.left();
            if left.is_zero() {
                let late = LossReason::Late { why, unanswered };
                return Ok(Err(if lease.capped { LossReason::Capped } else { late }));
            }
            let sent = Moment::now();
            let ttl = Some(self.terms.ttl());
            let id = self.claimant.lease(Some(number));
            let answer = tokio::select! {
                answer = self.claimant.client.refresh(id, ttl, patience(left)) => answer,
                rung = alarm.at(end.since_boot()) => {
                    rung?;
                    continue;
                }
            };
            match answer {
                Ok(granted) => {
                    let lease = KnownLease::of(&granted, sent, self.terms);
                    let latest = if lease.capped { limit(&lease) } else { lease.terminate };
                    if !latest.has_come() {
                        self.claimant.voice.tell(|| format!("refreshed '{}'", self.claimant.key));
                        return Ok(Ok(lease));
                    }
                    if lease.capped {
                        return Ok(Err(LossReason::Capped));
                    }
                    // Also if the service grants a much shorter TTL than requested.
                    (why, unanswered) = ("the answer leaves too little time".to_owned(), false);
                }
                Err(ClientError::Refused(refusal)) if refusal.is(Code::LockLost) => {
                    return Ok(Err(LossReason::Told(refusal.detail)));
                }
                Err(error) => (why, unanswered) = (error.to_string(), error.may_pass()),
            }
            if why != told {
                self.claimant
                    .voice
                    .tell(|| about(&self.claimant.key, format!("not refreshed: {why}")));
                told.clone_from(&why);
            }
            let (least, most) = REFRESH_PAUSE;
            sleep((left / 8).clamp(least, most)).await;
        }
    }

    /// Releases the lease, or lets it last until `earliest`. Reports a failure. Returns false if it
    /// was gone already, unless an earlier request without an answer may have ended it in time.
    pub(super) async fn give_back(&self, lease: &KnownLease, earliest: Moment) -> bool {
        let key = &self.claimant.key;
        let voice = self.claimant.voice;
        let mut again = false;
        let mut most = Ttl::from_millis(u64::MAX);
        for _ in 0..RELEASES {
            let ms = millis_down(earliest.left().max(SHORT_REST)).saturating_add(1);
            let rest = Ttl::from_millis(ms).min(most);
            match self.give_back_once(lease, earliest, rest).await {
                Ok(kept) => {
                    self.tell_kept(kept, rest, most);
                    return true;
                }
                Err(ClientError::Refused(refusal)) if refusal.is(Code::LockLost) => {
                    // An earlier attempt, whose answer was lost, may have ended or replaced it.
                    let is_replaced = refusal.fencing_token.is_some();
                    let is_ended = again && (earliest.has_come() || is_replaced);
                    if !is_ended {
                        voice.complain(|| format!("'{key}': {GONE}"));
                    }
                    return is_ended;
                }
                Err(ClientError::Refused(refusal)) if !refusal.may_pass() => {
                    if let Some(ms) = refusal.max_ttl_ms.filter(|_| rest < most) {
                        most = Ttl::from_millis(ms);
                        continue;
                    }
                    voice.complain(|| format!("'{key}': {}", refusal.detail));
                    return true;
                }
                Err(error) => voice.tell(|| about(key, format!("not released: {error}"))),
            }
            again = true;
            sleep(PAUSE).await;
        }
        self.not_given_back();
        true
    }

    /// Tells for how long a key is kept: for `rest`, cut to the longest TTL, `most`.
    fn tell_kept(&self, kept: Option<Granted>, rest: Ttl, most: Ttl) {
        let key = &self.claimant.key;
        let voice = self.claimant.voice;
        let Some(granted) = kept else { return voice.tell(|| format!("released '{key}'")) };
        let cut = if granted.capped {
            format!("{}, by its max_hold", seconds(granted.ttl))
        } else if rest == most {
            format!("{}, the longest TTL", seconds(rest.as_duration()))
        } else {
            let rest = span(rest.as_millis());
            return voice.tell(|| format!("'{key}' is kept for another {rest} (--min-hold)"));
        };
        voice.complain(|| format!("'{key}' is kept for {cut}"));
    }

    /// Reports that the lease lasts until it expires.
    pub(super) fn not_given_back(&self) {
        let key = &self.claimant.key;
        self.claimant.voice.complain(|| format!("'{key}' was not released; it will expire"));
    }

    async fn give_back_once(
        &self,
        lease: &KnownLease,
        earliest: Moment,
        rest: Ttl,
    ) -> Result<Option<Granted>, ClientError> {
        let id = self.claimant.lease(Some(lease.fencing_token));
        let client = &self.claimant.client;
        if is_waited_out(earliest.left(), lease.kill.left()) {
            sleep(earliest.left()).await;
            return client.release(id).await.map(|()| None);
        }
        // A refresh would not make it end earlier.
        let wish = Wish { ttl: Some(rest), ..self.claimant.wish.clone() };
        client.replace(id, &wish, patience(lease.end.left())).await.map(Some)
    }
}

/// Returns whether the `rest` of a least time is waited out before the release of a lease that is
/// sure to last for so much time; if not, the lease is replaced by one that ends then.
fn is_waited_out(rest: Duration, sure: Duration) -> bool {
    rest.is_zero() || rest < SHORT_REST && rest < sure
}

/// The time for one attempt, of what is `left` for all: a stuck one leaves time for the next.
fn patience(left: Duration) -> Duration {
    (left / 2).clamp(LEAST_PATIENCE, ANSWER_TIME)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Terms, is_waited_out};

    #[test]
    fn the_rest_of_a_least_time_is_waited_out_while_the_lease_lasts() {
        let ms = Duration::from_millis;
        for (rest, sure, is_waited) in [
            (0, 0, true),
            (150, 30_000, true),
            (999, 1_000, true),
            (950, 400, false),
            (1_000, 30_000, false),
            (20_000, 3_000, false),
        ] {
            assert_eq!(is_waited_out(ms(rest), ms(sure)), is_waited, "{rest} {sure}");
        }
    }

    #[test]
    fn a_command_has_the_time_to_end_that_its_ttl_leaves() {
        let ms = Duration::from_millis;
        for (ttl, kill_after) in [
            (60_000, 5_000),
            (30_000, 5_000),
            (10_500, 5_000),
            (10_000, 4_800),
            (2_000, 800),
            (400, 0),
        ] {
            let terms = Terms::new(ms(ttl), None).unwrap();
            assert_eq!(terms.kill_after, ms(kill_after), "{ttl}");
            assert_eq!(Terms::new(ms(ttl), Some(terms.kill_after)), Ok(terms), "{ttl}");
        }
        assert!(Terms::new(ms(399), None).is_err());
        assert!(Terms::new(ms(30_000), Some(Duration::MAX)).is_err());
    }
}
