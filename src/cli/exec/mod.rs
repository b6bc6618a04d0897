//! `lockkeeper exec`: runs COMMAND while it holds a lease, and only then.
//!
//! `words` reads KEY and COMMAND, `lease` acquires and keeps a lease, `leases` all that COMMAND
//! needs and `pool` one of several, `command` is the process, `reach` its processes, `supervise`
//! holds them together, and `warden` is a second process for when this one cannot act. `compatibility` has
//! the options that people know from `flock` and `timeout`.
//! Processes that COMMAND leaves behind when it ends by itself go on without the lease.

mod command;
pub(super) mod compatibility;
mod lease;
mod leases;
mod marks;
mod pool;
mod reach;
mod supervise;
mod warden;
mod within;
mod words;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use clap::{Args, ValueEnum};
use rustix::process::Signal;
use tokio::time::sleep;

use crate::cli::claimant::{Claimant, Contention, Progress};
use crate::cli::clock::Moment;
use crate::cli::exec::command::{NO_TIME, Running, Start};
use crate::cli::exec::lease::{KnownLease, LeaseKeeper, Terms};
use crate::cli::exec::leases::Leases;
use crate::cli::exec::supervise::Supervisor;
use crate::cli::exec::words::Words;
use crate::cli::exit::{Failure, about};
use crate::cli::outer::{FENCING_TOKENS, OuterLease, TOKEN};
use crate::cli::remote::{API_KEY, Remote, duration, key, shared_key};
use crate::cli::signals::{Signals, parse_signal};
use crate::cli::table::span;
use crate::cli::{exit, outer, owner, runtime};
use crate::client::{KeyWish, Wish};
use crate::lock::key::LockKey;
use crate::lock::lease::Owner;
use crate::lock::slots::Share;
use crate::lock::time::millis_down;
use crate::platform::processes;

/// The argument of a warden's process.
const WARDEN: &str = "exec:warden";

/// The time for the release after a signal.
const HURRY: Duration = Duration::from_secs(1);

/// Run a command while holding a lease on a key.
///
/// The command inherits standard input, output and error, and gets LOCK_KEY, LOCK_TOKEN,
/// LOCK_FENCING_TOKEN and LOCK_URL, with --slots also LOCK_SLOT: a number from 1 that no other
/// holder has (none for several --units), and with --also LOCK_FENCING_TOKENS: a line for each key,
/// "NUMBER KEY". If a lease cannot be kept, it is killed before the lease ends.
///
/// Exit codes: that of the command, and 128+N if signal N ended it; 75 another client holds the
/// key; 69 the service is unreachable; 79 the lease was lost, and the command killed or ended
/// already; 80 an outer exec has the key with another share; 124 it ran longer than --max-run; 125 wrong usage or an internal error; 126 it cannot be
/// executed; 127 not found.
#[derive(Args, Debug)]
#[command(override_usage = "lockkeeper exec [OPTIONS] KEY [--] COMMAND [ARG]...\n       \
                            lockkeeper exec [OPTIONS] KEY -c STRING")]
pub(super) struct Exec {
    #[command(flatten)]
    contention: Contention,
    /// Take this key instead of KEY if it is free first; may be given several times.
    #[arg(long, value_name = "KEY", value_parser = key)]
    any_of: Vec<LockKey>,
    /// Take this key as well as KEY, in the order of their bytes; may be given several times.
    /// KEY,shared shares it with all who share it, KEY,slots=N with N holders in all at most.
    #[arg(long, value_name = "KEY", value_parser = shared_key, conflicts_with = "any_of")]
    also: Vec<KeyWish>,
    /// TTL of the lease, in case this host dies; it is refreshed every third of that.
    #[arg(short, long, value_name = "DURATION", value_parser = duration, default_value = "30s")]
    ttl: Duration,
    /// Keep the key this long from the start, even if COMMAND ends earlier: clocks of hosts differ.
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "0")]
    min_hold: Duration,
    /// Keep the lease until all processes that COMMAND started have ended.
    #[arg(long)]
    children: bool,
    /// End COMMAND after this time [default: never].
    #[arg(short = 'T', long, value_name = "DURATION", value_parser = duration)]
    max_run: Option<Duration>,
    /// After --max-run, use COMMAND's own exit code instead of 124.
    #[arg(long)]
    preserve_status: bool,
    /// Signal that tells COMMAND to end.
    #[arg(short, long, value_name = "SIGNAL", value_parser = told_by, default_value = "TERM")]
    signal: Signal,
    /// Time that COMMAND has to end before it is killed [default: 5s, or less with a short TTL].
    #[arg(short, long, value_name = "DURATION", value_parser = duration)]
    kill_after: Option<Duration>,
    /// Action when the lease cannot be kept.
    #[arg(long, value_name = "WHAT", default_value = "kill")]
    on_lost: OnLost,
    /// Run STRING by the shell instead of a COMMAND.
    #[arg(short, long, value_name = "STRING")]
    command: Option<OsString>,
    /// Action when the service is unreachable at the start: fail, or run without a lease.
    #[arg(long, value_name = "WHAT", default_value = "fail")]
    if_down: IfDown,
    /// Keep LOCKKEEPER_API_KEY in the environment of COMMAND, for verbs that it calls.
    #[arg(long)]
    pass_api_key: bool,
    /// Name of the holder, shown to others; by default USER@HOST:PID COMMAND.
    #[arg(long, value_name = "TEXT")]
    owner: Option<String>,
    #[command(flatten)]
    remote: Remote,
    /// The key, then the command with its arguments.
    #[arg(required = true, trailing_var_arg = true, value_names = ["KEY", "COMMAND"])]
    words: Vec<OsString>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum OnLost {
    Kill,
    Warn,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum IfDown {
    Fail,
    Run,
}

pub(super) fn exec(exec: Exec) -> u8 {
    runtime::command(exec.remote.voice(), async {
        let mut prepared = Prepared::new(&exec)?;
        prepared.go_within_outer_leases().await?;
        prepared.run().await
    })
}

/// Runs the processes that `exec` starts from its own program. They are internal, so the command
/// line does not list them.
pub(super) fn as_part_of_exec() -> Option<u8> {
    let mut words = std::env::args_os().skip(1);
    match words.next()?.to_str()? {
        command::BECOME => Some(command::become_command(words)),
        WARDEN => Some(warden::warden()),
        _ => None,
    }
}

/// A process of this program with this first argument.
fn ourselves(word: &str) -> io::Result<Command> {
    let mut command = Command::new(processes::own_program()?);
    command.arg0("lockkeeper").arg(word);
    Ok(command)
}

/// Sets variables of a process, or with `None` removes them.
fn change_environment(command: &mut Command, changes: &[(&str, Option<impl AsRef<OsStr>>)]) {
    for (name, value) in changes {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
}

/// What the words of the command line come to.
struct Prepared<'a> {
    exec: &'a Exec,
    /// KEY as it was given.
    key: LockKey,
    /// The keeper of a lease for KEY and for each key of `--any-of` or `--also`, in their order.
    keepers: Vec<LeaseKeeper>,
    /// The leases of an outer `exec` that COMMAND runs within.
    outer: Vec<OuterLease>,
    terms: Terms,
    command: Vec<OsString>,
}

impl<'a> Prepared<'a> {
    fn new(exec: &'a Exec) -> Result<Self, String> {
        let Words { key, command, name } = Words::parse(&exec.words, exec.command.as_deref())?;
        // Before a lease is asked for.
        processes::own_program().map_err(|error| error.to_string())?;
        let owner = exec.owner.clone().unwrap_or_else(|| owner::ourselves(&name));
        let terms = Terms::new(exec.ttl, exec.kill_after)?;
        let owner = Owner::parse(&owner).map_err(|error| error.to_string())?;
        let usual = exec.contention.share();
        let mut keys = BTreeMap::from([(key.clone(), usual)]);
        keys.extend(exec.any_of.iter().map(|key| (key.clone(), usual)));
        for (key, share) in &exec.also {
            let share = share.or(usual);
            if keys.insert(key.clone(), share).is_some_and(|other| other != share) {
                return Err(format!("'{key}' is named twice, with two shares"));
            }
        }
        let client = exec.remote.client()?;
        let token = exec.remote.new_token()?;
        let keeper = |(key, share)| {
            // One for all that COMMAND needs; those of a pool give it a random order.
            let token = if exec.also.is_empty() { exec.remote.new_token()? } else { token.clone() };
            let claimant = Claimant {
                client: client.clone(),
                key,
                also: Vec::new(),
                token,
                wish: Wish { ttl: Some(terms.ttl()), owner: owner.clone(), share },
                voice: exec.remote.voice(),
                progress: Progress::default(),
            };
            Ok::<_, String>(LeaseKeeper { claimant, terms })
        };
        let keepers = keys.into_iter().map(keeper).collect::<Result<_, _>>()?;
        Ok(Self { exec, key, keepers, outer: Vec::new(), terms, command })
    }

    async fn run(&self) -> Result<u8, Failure> {
        let Self { exec, keepers, .. } = self;
        let signals = Signals::catch()?;
        let voice = exec.remote.voice();
        let asked = Moment::now();
        let acquired = tokio::select! {
            biased;
            signal = signals.ending() => Err(signal),
            acquired = self.acquire() => Ok(acquired),
        };
        // Also between the grant and the start: after a signal to end, nothing may be started.
        let acquired = signals.ended().map_or(acquired, Err);
        let leases = match acquired {
            Err(signal) => {
                leases::withdraw(keepers).await;
                return Ok(exit::signalled(signal.as_raw()));
            }
            Ok(Ok(leases)) => leases,
            Ok(Err(why)) => return Ok(why.say(voice, exec.contention.conflict_exit_code)),
        };
        for (keeper, lease) in leases.all() {
            let key = &keeper.claimant.key;
            let number = lease.fencing_token;
            let waited = span(millis_down(asked.elapsed()));
            voice.tell(|| format!("acquired '{key}' after {waited}, fencing token {number}"));
        }
        Ok(self.supervise(&leases, &signals).await?)
    }

    /// Acquires the leases; none with `--if-down run` if the service is down.
    async fn acquire(&self) -> Result<Leases<'_>, Failure> {
        let Self { exec, keepers, .. } = self;
        if keepers.is_empty() {
            return Ok(Leases::default());
        }
        let wait = exec.contention.wait();
        let acquired = if exec.also.is_empty() {
            pool::acquire(keepers, wait).await
        } else {
            Leases::acquire(keepers, wait).await
        };
        match acquired {
            Err(Failure { code: exit::UNREACHABLE, why })
                if exec.if_down == IfDown::Run && !leases::answers(keepers).await =>
            {
                let told = format!("{why}; COMMAND runs without a lease");
                exec.remote.voice().complain(|| about(&self.key, told));
                Ok(Leases::default())
            }
            acquired => acquired,
        }
    }

    /// Runs COMMAND under its leases, and releases them.
    async fn supervise(&self, leases: &Leases<'_>, signals: &Signals) -> io::Result<u8> {
        let exec = self.exec;
        let began = Moment::now();
        let key = self.named(leases).map_or(&self.key, |(keeper, _)| &keeper.claimant.key);
        let supervisor = Supervisor { exec, key, leases, kill_after: self.terms.kill_after };
        let latest = leases.earliest(|lease| lease.terminate);
        if latest.has_come() {
            exec.remote.voice().complain(|| about(key, NO_TIME));
            give_back(leases, began, signals).await;
            return Ok(exit::LOST);
        }
        let changes = self.environment(leases);
        let started = Running::start(Start {
            words: &self.command,
            changes: &changes,
            blocked: signals.blocked,
            latest,
            end: supervisor.last_moment(),
            give_back: &self.give_back(leases),
        });
        let (code, earliest) = match started {
            Ok(running) => {
                // After an error COMMAND may still run; the leases have to last if it does.
                let outcome = supervisor.run(&running, signals).await?;
                if outcome.needed {
                    leases.not_given_back();
                    return Ok(outcome.code);
                }
                // A job that this host cannot run, others may.
                let ran = ![exit::NOT_FOUND, exit::NOT_EXECUTABLE].contains(&outcome.code);
                (outcome.code, if ran { began.after(exec.min_hold) } else { began })
            }
            Err(error) => {
                let told = format!("cannot start COMMAND: {error}");
                exec.remote.voice().complain(|| about(key, told));
                (exit::INTERNAL, began)
            }
        };
        let was_there = give_back(leases, earliest, signals).await;
        let is_lost = !was_there && exec.on_lost == OnLost::Kill;
        Ok(if is_lost { exit::LOST } else { code })
    }

    /// The lease that COMMAND is told of first: of several keys that of KEY, of a pool the one that was
    /// acquired.
    fn named<'b>(&self, leases: &Leases<'b>) -> Option<(&'b LeaseKeeper, KnownLease)> {
        let named = leases.all().find(|(keeper, _)| keeper.claimant.key == self.key);
        named.or_else(|| leases.all().next())
    }

    /// The variables of COMMAND; without a lease those of an outer one are removed.
    fn environment(&self, leases: &Leases<'_>) -> Vec<(&'static str, Option<String>)> {
        let own = leases.all().map(|(keeper, lease)| OuterLease {
            fencing_token: lease.fencing_token,
            token: keeper.claimant.token.clone(),
            share: Share { slot: lease.slot, ..keeper.claimant.wish.share.unwrap_or_default() },
            key: keeper.claimant.key.clone(),
        });
        let own: Vec<_> = own.collect();
        let lines: Vec<_> = outer::leases().iter().chain(&own).map(OuterLease::line).collect();
        let all: Vec<_> = own.into_iter().chain(self.outer.iter().cloned()).collect();
        // Of a pool the one that there is, of several keys KEY.
        let first = all.iter().find(|lease| lease.key == self.key).or_else(|| all.first());
        let each = |lease: &OuterLease| format!("{} {}", lease.fencing_token, lease.key);
        let numbers = first.map(|_| all.iter().map(each).collect::<Vec<_>>().join("\n"));
        let mut changes = vec![
            (outer::KEY, first.map(|lease| lease.key.to_string())),
            (TOKEN, first.map(|lease| lease.token.expose().to_owned())),
            (outer::FENCING_TOKEN, first.map(|lease| lease.fencing_token.to_string())),
            (FENCING_TOKENS, numbers),
            (outer::SLOT, first.and_then(|lease| lease.share.slot.map(|slot| slot.to_string()))),
            ("LOCK_URL", first.map(|_| self.exec.remote.url().to_owned())),
            (outer::OUTER, Some(lines.join("\n")).filter(|lines| !lines.is_empty())),
        ];
        if !self.exec.pass_api_key {
            changes.push((API_KEY, None));
        }
        changes
    }

    /// The variables by which the warden gives the leases back; none if they are to be kept after
    /// COMMAND's end, or are those of an outer `exec`.
    fn give_back(&self, leases: &Leases<'_>) -> Vec<(&'static str, Option<OsString>)> {
        let token = leases.all().next().map(|(keeper, _)| &keeper.claimant.token);
        let Some(token) = token.filter(|_| self.exec.min_hold.is_zero()) else { return Vec::new() };
        let each = |(keeper, lease): (&LeaseKeeper, KnownLease)| {
            format!("{} {}", lease.fencing_token, keeper.claimant.key)
        };
        let numbers = leases.all().map(each).collect::<Vec<_>>().join("\n");
        let own = [(TOKEN, token.expose().to_owned()), (FENCING_TOKENS, numbers)];
        let own = own.map(|(name, value)| (name, Some(OsString::from(value))));
        self.exec.remote.variables().into_iter().chain(own).collect()
    }
}

/// Releases the leases. A signal to end allows it a moment more. Returns false if one was gone
/// already.
async fn give_back(leases: &Leases<'_>, earliest: Moment, signals: &Signals) -> bool {
    let in_a_hurry = async {
        signals.ending().await;
        sleep(HURRY).await;
    };
    tokio::select! {
        were_there = leases.give_back(earliest) => were_there,
        () = in_a_hurry => {
            leases.not_given_back();
            true
        }
    }
}

fn told_by(text: &str) -> Result<Signal, String> {
    let hint = "-s is --signal here: write --shared for a shared lock";
    parse_signal(text).map_err(|error| format!("{error}; {hint}"))
}
