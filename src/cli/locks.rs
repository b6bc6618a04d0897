//! The verbs as commands, for scripts that cannot run under `exec`: each prints what a script can
//! use, and has the exit codes of `exec`.
//!
//! A token is never an argument: the process list would show it.

mod look;
mod token_file;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use crate::cli::claimant::{Claimant, Contention, PAUSE, Progress};
use crate::cli::exit::Failure;
use crate::cli::locks::look::{Get, List};
use crate::cli::locks::token_file::{token_in, written};
use crate::cli::outer::Standing;
use crate::cli::remote::{Remote, duration, key, shared_key};
use crate::cli::signals::Signals;
use crate::cli::table::json_line;
use crate::cli::terminal::plain;
use crate::cli::{exit, outer, owner, runtime, voice};
use crate::client::{ANSWER_TIME, Client, ClientError, KeyWish, LeaseId, Refusal, Wish};
use crate::lock::key::LockKey;
use crate::lock::lease::Owner;
use crate::lock::time::Ttl;
use crate::lock::token::{FencingToken, LeaseToken};
use crate::wire::{Code, StatusBody, TakenBody};

/// The most attempts of a request without an answer.
const ATTEMPTS: usize = 3;

/// The verbs.
#[derive(Debug, Subcommand)]
pub(super) enum LockCommand {
    /// Acquire a lease and print its token; the lease expires unless it is refreshed.
    Acquire(Box<Acquire>),
    /// Restart the TTL of a lease.
    Refresh(Refresh),
    /// Release a lease.
    Release(Held),
    /// Print the state of a key: a table on a terminal, otherwise KEY, held or free, seconds left,
    /// fencing token, waiters, owner.
    Get(Get),
    /// Print the held keys: a table on a terminal, otherwise a line as `get` for each.
    List(List),
    /// End the leases of a key, without their tokens.
    ForceRelease(ForceRelease),
}

#[derive(Args, Debug)]
pub(super) struct Acquire {
    #[command(flatten)]
    contention: Contention,
    /// Take this key as well as KEY, or none of them; may be given several times. KEY,shared shares
    /// it with all who share it, KEY,slots=N with N holders in all at most.
    #[arg(long, value_name = "KEY", value_parser = shared_key)]
    also: Vec<KeyWish>,
    /// TTL of the lease [default: the service's].
    #[arg(short, long, value_name = "DURATION", value_parser = duration)]
    ttl: Option<Duration>,
    /// Name of the holder, shown to others; by default USER@HOST:PID CALLER.
    #[arg(long, value_name = "TEXT")]
    owner: Option<String>,
    /// Use the token in this file (- is standard input); if there is no such file, a new token is
    /// written to it.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    #[command(flatten)]
    named: Named,
}

#[derive(Args, Debug)]
pub(super) struct Refresh {
    /// TTL from now on; the lease never ends earlier for it [default: as before].
    #[arg(short, long, value_name = "DURATION", value_parser = duration)]
    ttl: Option<Duration>,
    #[command(flatten)]
    held: Held,
}

#[derive(Args, Debug)]
pub(super) struct Held {
    /// File with the token (- is standard input) [default: the variable LOCK_TOKEN].
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Fencing token of the lease; a later lease of the same token is left alone.
    #[arg(long, value_name = "N", value_parser = fencing_token)]
    fencing_token: Option<FencingToken>,
    #[command(flatten)]
    named: Named,
}

#[derive(Args, Debug)]
pub(super) struct Named {
    /// The key.
    #[arg(value_name = "KEY", value_parser = key)]
    key: LockKey,
    #[command(flatten)]
    shown: Shown,
}

#[derive(Args, Debug)]
pub(super) struct ForceRelease {
    /// Reason, for the service's log.
    #[arg(long, value_name = "TEXT", value_parser = reason)]
    reason: Option<String>,
    /// Fencing token of the lease; all others are left alone.
    #[arg(long, value_name = "N", value_parser = fencing_token)]
    fencing_token: Option<FencingToken>,
    #[command(flatten)]
    named: Named,
}

#[derive(Args, Debug)]
pub(super) struct Shown {
    /// Print the service's answer as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    remote: Remote,
}

pub(super) fn run(verb: &LockCommand) -> u8 {
    let remote = &verb.shown().remote;
    runtime::command(remote.voice(), async {
        let done = verb.run(remote.client()?).await;
        done.map_err(|failure| match verb.key() {
            Some(key) => failure.about(key),
            None => failure,
        })
    })
}

/// Prints a line. The reader may be gone.
fn print(line: &str) -> Result<(), Failure> {
    Ok(voice::print(&format!("{line}\n"))?)
}

impl LockCommand {
    fn shown(&self) -> &Shown {
        match self {
            Self::Acquire(acquire) => &acquire.named.shown,
            Self::Refresh(refresh) => &refresh.held.named.shown,
            Self::Release(held) => &held.named.shown,
            Self::Get(get) => &get.named.shown,
            Self::ForceRelease(forced) => &forced.named.shown,
            Self::List(list) => &list.shown,
        }
    }

    fn key(&self) -> Option<&LockKey> {
        match self {
            Self::Acquire(acquire) => Some(&acquire.named.key),
            Self::Refresh(refresh) => Some(&refresh.held.named.key),
            Self::Release(held) => Some(&held.named.key),
            Self::Get(get) => Some(&get.named.key),
            Self::ForceRelease(forced) => Some(&forced.named.key),
            Self::List(_) => None,
        }
    }

    async fn run(&self, client: Client) -> Result<u8, Failure> {
        let body = match self {
            Self::Acquire(acquire) => return acquire.run(client).await,
            Self::Get(get) => return get.run(&client).await,
            Self::List(list) => return list.run(&client).await,
            Self::Refresh(Refresh { ttl, held }) => {
                let token = held.token()?;
                let ttl = ttl.map(Ttl::lasting);
                let refresh = || client.refresh(held.lease(&token), ttl, ANSWER_TIME);
                Some(insist(refresh).await.0?.body)
            }
            Self::Release(held) => {
                let token = held.token()?;
                match insist(|| client.release(held.lease(&token))).await {
                    // An earlier attempt, whose answer was lost, may have released it.
                    (Err(ClientError::Refused(refusal)), 1..) if refusal.is(Code::LockLost) => (),
                    (released, _) => released?,
                }
                None
            }
            Self::ForceRelease(forced) => return forced.run(&client).await,
        };
        let line = body.as_deref().map(json_line).transpose()?;
        line.filter(|_| self.shown().json).map_or(Ok(()), |line| print(&line))?;
        Ok(0)
    }
}

impl Acquire {
    async fn run(&self, client: Client) -> Result<u8, Failure> {
        let usual = self.contention.share();
        let also = self.also.iter().map(|(key, share)| (key.clone(), share.or(usual)));
        let also: Vec<_> = also.collect();
        let all = also.iter().map(|(key, share)| (key, *share)).chain([(&self.named.key, usual)]);
        // Without a wait, the lease of the exec around this is a held key like any other.
        for key in all.filter(|_| self.contention.waits()) {
            let found = outer::look(&client, key, &self.contention).await?;
            if found.is_some_and(|(_, found)| found != Standing::Apart) {
                let why = "the `lockkeeper exec` around this command has the key, so that this \
                           would wait for its own end: use its LOCK_TOKEN, or -n";
                return Err(Failure { code: exit::NESTED, why: why.to_owned() });
            }
        }
        let token = match &self.token_file {
            Some(path) => {
                let new = self.named.shown.remote.new_token()?;
                if written(path, &new)? { new } else { token_in(path)? }
            }
            None if voice::is_closed() => {
                let told = "standard output is closed, so nobody would learn the token: open it, \
                            or name a --token-file";
                return Err(told.to_owned().into());
            }
            None => self.named.shown.remote.new_token()?,
        };
        let owner = self.owner.clone().unwrap_or_else(owner::our_caller);
        let claimant = Claimant {
            client,
            key: self.named.key.clone(),
            also,
            token,
            wish: Wish {
                ttl: self.ttl.map(Ttl::lasting),
                owner: Owner::parse(&owner).map_err(|error| error.to_string())?,
                share: usual,
            },
            voice: self.named.shown.remote.voice(),
            progress: Progress::default(),
        };
        let signals = Signals::catch()?;
        let acquired = tokio::select! {
            biased;
            signal = signals.ending() => Err(signal),
            acquired = claimant.acquire(self.contention.wait()) => Ok(acquired),
        };
        match acquired {
            Ok(Ok((_, granted))) => {
                let text = match self.named.shown.json {
                    true => json_line(&granted.body)?,
                    false => claimant.token.expose().to_owned(),
                };
                let printed = print(&text);
                if printed.is_err() {
                    // The token is unknown to the caller.
                    claimant.leave().await;
                }
                printed.map(|()| 0)
            }
            Ok(Err(why)) => Ok(why.say(claimant.voice, self.contention.conflict_exit_code)),
            Err(signal) => {
                claimant.withdraw().await;
                Ok(exit::signalled(signal.as_raw()))
            }
        }
    }
}

impl ForceRelease {
    async fn run(&self, client: &Client) -> Result<u8, Failure> {
        let key = &self.named.key;
        let shown = &self.named.shown;
        // For people it may fail: it may be forbidden.
        let before = client.inspect(key, Some(1)).await.and_then(|body| {
            serde_json::from_str::<StatusBody>(&body).map_err(|_| ClientError::strange())
        });
        let mut forced = self.force(client, self.fencing_token).await;
        let asks = |refusal: &Refusal| self.fencing_token.is_none() && refusal.asks_for_number();
        let before = match &forced {
            Err(ClientError::Refused(refusal)) if asks(refusal) => {
                let before = before?;
                match before.fencing_token.and_then(FencingToken::from_number) {
                    None if before.held => (),
                    // The key was free: any number is answered so.
                    None => forced = self.force(client, FencingToken::from_number(1)).await,
                    number => forced = self.force(client, number).await,
                }
                Some(before)
            }
            _ => before.ok(),
        };
        let forced = forced.map_err(|error| match &error {
            ClientError::Refused(refusal) if refusal.is(Code::NoSuchRoute) => {
                let url = shown.remote.url();
                let to_do = "name the address of its `admin_listen` with --url";
                format!("{url} forces no releases: {to_do}").into()
            }
            _ => Failure::from(error),
        })?;
        if shown.json {
            return print(&json_line(&forced)?).map(|()| 0);
        }
        let told = ended(&serde_json::from_str(&forced)?, before.as_ref());
        if !shown.remote.is_quiet() {
            print(&told)?;
        }
        Ok(0)
    }

    async fn force(
        &self,
        client: &Client,
        number: Option<FencingToken>,
    ) -> Result<String, ClientError> {
        client.force_release(&self.named.key, number, self.reason.as_deref()).await
    }
}

impl Held {
    fn lease<'a>(&'a self, token: &'a LeaseToken) -> LeaseId<'a> {
        LeaseId { key: &self.named.key, token, fencing_token: self.fencing_token }
    }

    fn token(&self) -> Result<LeaseToken, String> {
        match &self.token_file {
            Some(path) => token_in(path),
            None => {
                let token = std::env::var("LOCK_TOKEN").ok().filter(|token| !token.is_empty());
                let token = token.ok_or("no lease token: set LOCK_TOKEN or --token-file")?;
                LeaseToken::parse(&token).map_err(|error| error.to_string())
            }
        }
    }
}

/// Whose lease a forced release has ended, and who is next, by the state of the key just before.
fn ended(taken: &TakenBody, before: Option<&StatusBody>) -> String {
    let number = taken.fencing_token.filter(|_| taken.holders.is_none());
    let number = number.map(|number| format!(", fencing token {number}"));
    let lease = match (taken.holders, taken.owner.as_deref()) {
        (Some(holders), _) => format!("{holders} leases"),
        (None, Some(owner)) => format!("the lease of {}", plain(owner)),
        (None, None) => "the lease of a holder without a name".to_owned(),
    };
    let next = before.map(|status| match status.queue.as_deref() {
        Some([next, ..]) => {
            let next = next.owner.as_deref().map_or_else(|| "without a name".to_owned(), plain);
            format!("; next of {} in line: {next}", status.waiters)
        }
        _ => "; nobody waits".to_owned(),
    });
    let [number, next] = [number, next].map(Option::unwrap_or_default);
    format!("ended {lease} on '{}'{number}{next}", plain(&taken.key))
}

/// Retries while there is no answer. The outcome comes with the number of attempts before it.
async fn insist<T, F>(mut ask: impl FnMut() -> F) -> (Result<T, ClientError>, usize)
where
    F: Future<Output = Result<T, ClientError>>,
{
    let mut attempts = 0;
    loop {
        let answer = ask().await;
        if !answer.as_ref().is_err_and(ClientError::may_pass) || attempts + 1 == ATTEMPTS {
            return (answer, attempts);
        }
        attempts += 1;
        tokio::time::sleep(PAUSE).await;
    }
}

fn reason(text: &str) -> Result<String, String> {
    let reason = Owner::parse(text).map(|_| text.to_owned());
    reason.map_err(|_| "a reason has at most 256 bytes and no control characters".to_owned())
}

fn fencing_token(text: &str) -> Result<FencingToken, String> {
    let number = text.parse().ok().and_then(FencingToken::from_number);
    number.ok_or_else(|| "expected a number, as printed by `acquire --json`".to_owned())
}
