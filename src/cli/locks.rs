//! The verbs as commands, for scripts that cannot run under `exec`: each prints what a script can
//! use, and has the exit codes of `exec`.
//!
//! A token is never an argument: the process list would show it.

mod look;
mod watch;

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};

use crate::cli::claimant::{Claimant, Contention, PAUSE};
use crate::cli::locks::look::{Get, List};
use crate::cli::remote::{Remote, duration, key};
use crate::cli::signals::Signals;
use crate::cli::table::json_line;
use crate::cli::voice::flush;
use crate::cli::{exit, runtime};
use crate::client::{ANSWER_TIME, Client, ClientError, LeaseId};
use crate::lock::key::LockKey;
use crate::lock::lease::Owner;
use crate::lock::time::Ttl;
use crate::lock::token::{FencingToken, LeaseToken};

/// The most attempts of a request without an answer.
const ATTEMPTS: usize = 3;

/// The verbs.
#[derive(Debug, Subcommand)]
pub(super) enum LockCommand {
    /// Acquire a lease and print its token; the lease expires unless it is refreshed.
    Acquire(Acquire),
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
    /// TTL of the lease [default: the service's].
    #[arg(short, long, value_name = "DURATION", value_parser = duration)]
    ttl: Option<Duration>,
    /// Name of the holder, shown to others.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    owner: String,
    /// Use the token in this file (- is standard input) instead of a new one.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    #[command(flatten)]
    named: Named,
}

#[derive(Args, Debug)]
pub(super) struct Refresh {
    /// TTL from now on [default: as before].
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

/// A failure of a command.
enum Undone {
    Refused(ClientError),
    Wrong(String),
    /// Already reported, with this exit code.
    Said(u8),
}

impl From<String> for Undone {
    fn from(sentence: String) -> Self {
        Self::Wrong(sentence)
    }
}

impl From<ClientError> for Undone {
    fn from(error: ClientError) -> Self {
        Self::Refused(error)
    }
}

impl From<serde_json::Error> for Undone {
    fn from(_: serde_json::Error) -> Self {
        Self::Refused(ClientError::NoAnswer("the answer is not from lockkeeper".to_owned()))
    }
}

/// Runs the verb and returns the exit code.
pub(super) fn run(verb: &LockCommand) -> u8 {
    let shown = verb.shown();
    let done = runtime::run(async { verb.run(shown.remote.client()?).await });
    let voice = shown.remote.voice();
    let code = match done.map_err(Undone::Wrong).flatten() {
        Ok(()) => 0,
        Err(Undone::Said(code)) => code,
        Err(Undone::Wrong(sentence)) => {
            voice.complain(|| sentence);
            exit::INTERNAL
        }
        Err(Undone::Refused(error)) => {
            voice.complain(|| error.to_string());
            code(&error)
        }
    };
    flush();
    code
}

fn code(error: &ClientError) -> u8 {
    match error {
        ClientError::NoAnswer(_) => exit::UNREACHABLE,
        ClientError::Refused(refusal) if refusal.is_lost() => exit::LOST,
        ClientError::Refused(refusal) if refusal.is_busy() => exit::BUSY,
        ClientError::Refused(refusal) if refusal.may_pass() => exit::UNREACHABLE,
        ClientError::Refused(_) => exit::INTERNAL,
    }
}

/// Prints a line, if there is anything to print. The reader may be gone.
fn print(text: &str) -> Result<(), Undone> {
    if text.is_empty() {
        return Ok(());
    }
    let mut out = std::io::stdout();
    let written = out.write_all(format!("{text}\n").as_bytes()).and_then(|()| out.flush());
    written.map_err(|error| Undone::Wrong(format!("cannot write to standard output: {error}")))
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

    /// Runs the verb and prints its result.
    async fn run(&self, client: Client) -> Result<(), Undone> {
        let json = self.shown().json;
        match self {
            Self::Acquire(acquire) => acquire.run(client).await,
            Self::Refresh(Refresh { ttl, held }) => {
                let (token, ttl) = (held.token()?, ttl.map(Ttl::lasting));
                let refresh = || client.refresh(held.lease(&token), ttl, ANSWER_TIME);
                let granted = insist(refresh).await.map_err(|(error, _)| error)?;
                print(&if json { json_line(&granted.body)? } else { String::new() })
            }
            Self::Release(held) => {
                let token = held.token()?;
                match insist(|| client.release(held.lease(&token))).await {
                    Ok(()) => Ok(()),
                    // An earlier attempt, whose answer was lost, may have released it.
                    Err((ClientError::Refused(refusal), again))
                        if refusal.is_lost() && again > 0 =>
                    {
                        Ok(())
                    }
                    Err((error, _)) => Err(error.into()),
                }
            }
            Self::Get(get) => get.run(&client).await,
            Self::List(list) => list.run(&client).await,
            Self::ForceRelease(ForceRelease { reason, fencing_token, named }) => {
                let forced = client.force_release(&named.key, *fencing_token, reason.as_deref());
                let body = forced.await?;
                let body = json_line(&body)?;
                print(if json { &body } else { "" })
            }
        }
    }
}

impl Acquire {
    async fn run(&self, client: Client) -> Result<(), Undone> {
        let voice = self.named.shown.remote.voice();
        let token = match &self.token_file {
            Some(path) => token_in(path)?,
            None => self.named.shown.remote.new_token()?,
        };
        let claimant = Claimant {
            client,
            key: self.named.key.clone(),
            token,
            owner: Owner::parse(&self.owner).map_err(|error| error.to_string())?,
            ttl: self.ttl.map(Ttl::lasting),
            slots: self.contention.slots(),
            voice,
        };
        let signals = Signals::catch().map_err(|error| error.to_string())?;
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
                printed
            }
            Ok(Err(why)) => Err(Undone::Said(why.say(voice, self.contention.conflict_exit_code))),
            Err(signal) => {
                claimant.leave().await;
                let code = u8::try_from(exit::SIGNALLED + signal.as_raw());
                Err(Undone::Said(code.unwrap_or(exit::INTERNAL)))
            }
        }
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
                let token = std::env::var("LOCK_TOKEN");
                let token = token.map_err(|_| "no lease token: set LOCK_TOKEN or --token-file")?;
                LeaseToken::parse(&token).map_err(|error| error.to_string())
            }
        }
    }
}

/// Retries while there is no answer; an error comes with the number of failed attempts before it.
async fn insist<T, F>(mut ask: impl FnMut() -> F) -> Result<T, (ClientError, usize)>
where
    F: Future<Output = Result<T, ClientError>>,
{
    let mut attempts = 0;
    loop {
        let error = match ask().await {
            Ok(done) => return Ok(done),
            Err(error) => error,
        };
        if !passes(&error) || attempts + 1 == ATTEMPTS {
            return Err((error, attempts));
        }
        attempts += 1;
        tokio::time::sleep(PAUSE).await;
    }
}

fn reason(text: &str) -> Result<String, String> {
    let reason = Owner::parse(text).map(|_| text.to_owned());
    reason.map_err(|_| "a reason has at most 256 bytes and no control characters".to_owned())
}

/// Returns true if a retry may be answered differently.
fn passes(error: &ClientError) -> bool {
    match error {
        ClientError::NoAnswer(_) => true,
        ClientError::Refused(refusal) => refusal.may_pass(),
    }
}

fn fencing_token(text: &str) -> Result<FencingToken, String> {
    let number = text.parse().ok().and_then(FencingToken::from_number);
    number.ok_or_else(|| "expected a number, as printed by `acquire --json`".to_owned())
}

fn token_in(path: &Path) -> Result<LeaseToken, String> {
    let text = match path.to_str() {
        Some("-") => {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text).map(|_| text)
        }
        _ => std::fs::read_to_string(path),
    };
    let text = text.map_err(|error| format!("no token in {}: {error}", path.display()))?;
    LeaseToken::parse(text.trim()).map_err(|error| error.to_string())
}
