//! `lockkeeper hook`: what a coding agent's harness runs before and after a tool call, so that two
//! sessions do not edit one file.
//!
//! `harness` reads what the harness says and writes what it understands, `place` makes the key of a
//! file, `session` keeps the token and the leases of a session between two calls.

mod harness;
mod place;
mod session;

use std::io::{Read, stdin};
use std::time::Duration;

use clap::{Args, ValueEnum};
use futures_util::future::join;
use futures_util::stream;
use futures_util::stream::StreamExt;

use crate::cli::claimant::{Claimant, Progress};
use crate::cli::clock::Moment;
use crate::cli::exit::Failure;
use crate::cli::hook::harness::{Call, Event, Harness};
use crate::cli::hook::session::{Session, SessionLease};
use crate::cli::remote::{Remote, duration};
use crate::cli::voice::{Voice, print};
use crate::cli::{exit, owner, runtime};
use crate::client::{ANSWER_TIME, Client, ClientError, LeaseId, Wish};
use crate::lock::key::LockKey;
use crate::lock::lease::Owner;
use crate::lock::time::Ttl;
use crate::lock::token::{FencingToken, LeaseToken};
use crate::wire::Code;

/// The most bytes of what a harness says: a tool's input has the text that it writes.
const MOST_OF_A_CALL: u64 = 64 * 1024 * 1024;

/// The most requests at a time: each has a connection of its own.
const AT_A_TIME: usize = 32;

/// Lock the files that a coding agent edits: the command for the hooks of its harness.
///
/// It reads the harness' JSON from standard input. Before a tool call it acquires the key of the
/// file for this session; if another session has it, the call is denied with a sentence that says
/// who. Each call renews what the session holds. The hooks `Stop` and `SessionEnd` release all of
/// it; the keys of a session that is gone are free after the TTL. A call without a file passes.
///
/// Exit codes: 0 with nothing on standard output: the call passes; 0 with JSON: what the harness
/// has to do; 2 and a sentence: a failure, which a harness takes as a denial. What cannot be released
/// at an end is a sentence alone.
#[derive(Args, Debug)]
pub(super) struct Hook {
    /// Key of a file: {repo} is its repository, the same for all of its worktrees and clones, and
    /// {path} its path in there.
    #[arg(long, value_name = "TEXT", default_value = "edit/{repo}/{path}")]
    key: String,
    /// TTL of the leases: for so long a session may be silent.
    #[arg(short, long, value_name = "DURATION", value_parser = duration, default_value = "10m")]
    ttl: Duration,
    /// Wait in line at most this long, shorter than the harness waits for its hook.
    #[arg(short, long, value_name = "DURATION", value_parser = duration, default_value = "0")]
    wait: Duration,
    /// Action when the service is unreachable.
    #[arg(long, value_name = "WHAT", default_value = "deny")]
    if_down: Verdict,
    /// Harness whose JSON is read.
    #[arg(long, value_name = "NAME", default_value = "claude-code")]
    harness: Harness,
    /// Name of the holder, shown to others; by default USER@HOST, the harness and its session.
    #[arg(long, value_name = "TEXT")]
    owner: Option<String>,
    #[command(flatten)]
    remote: Remote,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Verdict {
    Allow,
    Deny,
}

pub(super) fn hook(hook: &Hook) -> u8 {
    runtime::for_harness(hook.remote.voice(), hook.run())
}

impl Hook {
    async fn run(&self) -> Result<u8, Failure> {
        let mut text = String::new();
        stdin().take(MOST_OF_A_CALL).read_to_string(&mut text)?;
        let call = self.harness.read(&text)?;
        match call.event {
            Event::Before | Event::After => match place::key(&self.key, &call)? {
                Some(key) => {
                    let why = self.lock(&call, &key).await?;
                    why.map_or(Ok(()), |why| print(&self.harness.deny(&call, &why)))?;
                }
                None => {
                    let session = self.session(&call)?;
                    self.renew_all(&self.remote.client()?, &session, None).await?;
                }
            },
            // A failure at the end of a turn would tell the agent to go on.
            Event::End => {
                let ended = self.release_all(&call).await;
                let told = |why| format!("not all locks of the session were released: {why}");
                ended.unwrap_or_else(|failure| self.remote.voice().complain(|| told(failure.why)));
            }
            Event::Other => (),
        }
        Ok(0)
    }

    /// The session of a call, with this service.
    fn session(&self, call: &Call) -> Result<Session, String> {
        Session::of(&call.session, self.remote.url(), &self.remote.token_maker()?)
    }

    /// Acquires the key, or renews it, and renews all else that the session holds. Returns why the
    /// call is denied, or what the agent has to know after it.
    async fn lock(&self, call: &Call, key: &LockKey) -> Result<Option<String>, Failure> {
        let session = self.session(call)?;
        let before = session.asks(key)?;
        let claimant = self.claimant(call, key, &session)?;
        let renewed = self.renew_all(&claimant.client, &session, Some(key));
        let (acquired, renewed) = join(self.acquire(&claimant, &session), renewed).await;
        renewed?;
        let (acquired, missed) = acquired?;
        match acquired {
            Ok(number) => {
                session.granted(key, number)?;
                // Another session had it since the earlier calls, or while this one waited.
                Ok((missed || before.was_another(number)).then(|| {
                    format!(
                        "Another session may have had the lock on '{key}' and changed the file. \
                         It is yours now: read the file once more before you edit it."
                    )
                }))
            }
            Err(busy) if busy.code == exit::BUSY => {
                let next = match call.event {
                    Event::After => {
                        "Your lock had ended before you wrote the file, so both may have written \
                         it: read it once more, and tell the user."
                    }
                    _ => {
                        "Do other work first and try again later, or ask the user; do not write \
                         the file in another way."
                    }
                };
                Ok(Some(format!("{}. {next}", busy.why)))
            }
            Err(down) if down.code == exit::UNREACHABLE => match self.if_down {
                Verdict::Allow => Ok(None),
                Verdict::Deny => Ok(Some(format!(
                    "The lock service is unreachable, so another session may be editing this \
                     file: {}. Tell the user.",
                    down.why
                ))),
            },
            Err(other) => Err(other),
        }
    }

    /// Acquires the key, and returns whether the first attempt failed. The failure is noted before
    /// the wait, in which the harness may kill this process.
    async fn acquire(
        &self,
        claimant: &Claimant,
        session: &Session,
    ) -> Result<(Result<FencingToken, Failure>, bool), String> {
        let until = Moment::now().after(self.wait);
        let mut acquired = claimant.acquire(Some(Duration::ZERO)).await;
        let missed = acquired.is_err();
        if missed {
            session.missed(&claimant.key)?;
            if !until.has_come() {
                acquired = claimant.acquire(Some(until.left())).await;
            }
        }
        Ok((acquired.map(|(_, granted)| granted.fencing_token), missed))
    }

    fn claimant(&self, call: &Call, key: &LockKey, session: &Session) -> Result<Claimant, String> {
        let owner =
            self.owner.clone().unwrap_or_else(|| owner::of_session(&call.name(self.harness)));
        Ok(Claimant {
            client: self.remote.client()?,
            key: key.clone(),
            also: Vec::new(),
            token: session.token.clone(),
            wish: Wish {
                ttl: Some(Ttl::lasting(self.ttl)),
                owner: Owner::shortened(&owner),
                share: None,
            },
            voice: Voice::Quiet,
            progress: Progress::default(),
        })
    }

    /// Renews the leases of the session that have less than half of their time left, but for one.
    async fn renew_all(
        &self,
        client: &Client,
        session: &Session,
        but: Option<&LockKey>,
    ) -> Result<(), Failure> {
        let due = session.due(but, self.ttl / 2)?;
        let ttl = Some(Ttl::lasting(self.ttl));
        let refresh = async |lease: &SessionLease| {
            client.refresh(named(lease, &session.token), ttl, ANSWER_TIME).await
        };
        let (mut renewed, mut lost) = (Vec::new(), Vec::new());
        for (lease, answer) in each(due, refresh).await {
            match answer {
                Ok(_) => renewed.push(lease),
                Err(ClientError::Refused(refusal)) if refusal.is(Code::LockLost) => {
                    lost.push(lease)
                }
                // The next call may be answered.
                Err(_) => (),
            }
        }
        Ok(session.renewed(&renewed, &lost)?)
    }

    /// Releases all. What could not be released is known to the next call.
    async fn release_all(&self, call: &Call) -> Result<(), Failure> {
        let session = self.session(call)?;
        let client = self.remote.client()?;
        let release =
            async |lease: &SessionLease| client.release(named(lease, &session.token)).await;
        let (mut ended, mut failed) = (Vec::new(), None);
        for (lease, answer) in each(session.held()?, release).await {
            match answer {
                Ok(()) => ended.push(lease),
                Err(ClientError::Refused(refusal)) if refusal.is(Code::LockLost) => {
                    ended.push(lease)
                }
                Err(error) => failed = Some(error),
            }
        }
        session.forget(&ended)?;
        failed.map_or(Ok(()), |error| Err(error.into()))
    }
}

/// The answers to a request for each lease.
async fn each<T>(
    leases: Vec<SessionLease>,
    ask: impl AsyncFn(&SessionLease) -> T,
) -> Vec<(SessionLease, T)> {
    let asked = leases.into_iter().map(async |lease| {
        let answer = ask(&lease).await;
        (lease, answer)
    });
    stream::iter(asked).buffer_unordered(AT_A_TIME).collect().await
}

fn named<'a>((key, number): &'a SessionLease, token: &'a LeaseToken) -> LeaseId<'a> {
    LeaseId { key, token, fencing_token: *number }
}
