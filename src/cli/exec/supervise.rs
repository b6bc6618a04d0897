//! COMMAND and its leases together: the end of one ends the other.
//!
//! COMMAND is ended first and reported after.

use std::collections::HashSet;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::pin::pin;
use std::process::ExitStatus;
use std::time::Duration;

use futures_util::StreamExt;
use rustix::process::{Pid, Signal};

use crate::cli::clock::Moment;
use crate::cli::exec::command::{Running, code};
use crate::cli::exec::lease::{KnownLease, LossReason};
use crate::cli::exec::leases::Leases;
use crate::cli::exec::warden::{BURIAL, ROUND};
use crate::cli::exec::{Exec, OnLost};
use crate::cli::exit;
use crate::cli::exit::about;
use crate::cli::signals::{Signals, name};
use crate::cli::voice::Voice;
use crate::lock::key::LockKey;
use crate::platform::clock::Alarm;

/// The reason of a loss without any attempt to refresh.
const SUSPENDED: &str = "this process was suspended";

/// Decides what happens to COMMAND, and when.
pub(super) struct Supervisor<'a> {
    pub(super) exec: &'a Exec,
    /// The key of the lease that COMMAND is told of first.
    pub(super) key: &'a LockKey,
    pub(super) leases: &'a Leases<'a>,
    pub(super) kill_after: Duration,
}

#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) code: u8,
    /// The leases have to last: some processes of COMMAND cannot be killed.
    pub(super) needed: bool,
}

/// The events of COMMAND so far.
#[derive(Debug, Default)]
struct CommandState {
    /// The status of its first process.
    status: Option<ExitStatus>,
    /// The exit code, if it is not COMMAND's own.
    code: Option<u8>,
    /// It was told to end, so none of its processes may be left.
    told: bool,
    /// The time to kill it.
    kill: Option<Moment>,
    /// The time of the first kill, which is repeated.
    killed: Option<Moment>,
    lost: bool,
    /// The processes that cannot be killed.
    left: HashSet<Pid>,
}

impl Supervisor<'_> {
    fn voice(&self) -> Voice {
        self.exec.remote.voice()
    }

    /// The time when the warden kills COMMAND, unless this process did.
    pub(super) fn last_moment(&self) -> Moment {
        match self.exec.on_lost {
            OnLost::Kill => self.leases.earliest(|lease| lease.kill),
            OnLost::Warn => Moment::NEVER,
        }
    }

    pub(super) async fn run(&self, running: &Running, signals: &Signals) -> io::Result<Outcome> {
        let state = self.attend(running, signals).await?;
        let state = self.judged(state, running).await;
        let own = state.status.map_or(exit::INTERNAL, code);
        Ok(Outcome { code: state.code.unwrap_or(own), needed: !state.left.is_empty() })
    }

    /// Waits until COMMAND has ended, with all processes that have to end with it.
    async fn attend(&self, running: &Running, signals: &Signals) -> io::Result<CommandState> {
        let alarm = Alarm::new()?;
        let most = self.exec.max_run.filter(|time| !time.is_zero());
        let most = most.map_or(Moment::NEVER, |time| Moment::now().after(time));
        let mut state = CommandState::default();
        let refreshed = || running.warden.watch(self.last_moment());
        let mut losses = pin!(self.leases.losses(self.limit(), &refreshed));
        loop {
            let next = match state.killed {
                None => state.kill.unwrap_or(most),
                // Catches processes started meanwhile. Processes that no signal reaches, because
                // they wait for a disk or are another user's, must not keep us busy.
                Some(since) if since.after(BURIAL).has_come() => Moment::now().after(BURIAL),
                Some(_) => Moment::now().after(ROUND),
            };
            tokio::select! {
                biased;
                status = running.next_end() => {
                    let all = state.status.replace(status).is_some();
                    if all || !(state.told || self.exec.children) {
                        return Ok(state);
                    }
                    self.limit_descendants(&mut state);
                }
                (signal, sender) = signals.next() => {
                    state.told |= [Signal::TERM, Signal::INT].contains(&signal);
                    running.warden.reach().send(signal, sender);
                    self.limit_descendants(&mut state);
                }
                Some(loss) = losses.next() => {
                    let (key, loss) = loss?;
                    self.lose(key, loss, &mut state, running);
                }
                rung = alarm.at(next.since_boot()) => {
                    rung?;
                    self.ring(&mut state, running);
                    if state.status.is_some() && !state.left.is_empty() {
                        return Ok(state);
                    }
                }
            }
        }
    }

    /// Gives what COMMAND left running as much time to end as it had, once it was told to end.
    fn limit_descendants(&self, state: &mut CommandState) {
        if state.told && state.status.is_some() {
            state.kill.get_or_insert_with(|| self.latest_kill());
        }
    }

    /// The moment of a lease at which it is lost, unless it was refreshed.
    fn limit(&self) -> fn(&KnownLease) -> Moment {
        match self.exec.on_lost {
            OnLost::Kill => |lease| lease.terminate,
            OnLost::Warn => |lease| lease.end,
        }
    }

    /// Ends COMMAND, or kills what is left of it.
    fn ring(&self, state: &mut CommandState, running: &Running) {
        let voice = self.voice();
        match (state.killed, state.kill) {
            (Some(since), _) => {
                let left = running.warden.reach().kill();
                if since.after(BURIAL).has_come() && state.left.is_empty() && !left.is_empty() {
                    let pids: Vec<_> =
                        left.iter().map(|pid| pid.as_raw_pid().to_string()).collect();
                    let told = format!("cannot kill all of COMMAND: {}", pids.join(", "));
                    voice.complain(|| about(self.key, told));
                    state.left = left;
                }
            }
            (None, Some(_)) => {
                self.kill(state, running);
            }
            (None, None) => {
                state.code = (!self.exec.preserve_status).then_some(exit::TIMED_OUT);
                self.end(state, running, self.latest_kill());
                voice.complain(|| about(self.key, "COMMAND ran longer than --max-run"));
            }
        }
    }

    fn latest_kill(&self) -> Moment {
        Moment::now().after(self.kill_after)
    }

    fn lose(&self, key: &LockKey, loss: LossReason, state: &mut CommandState, running: &Running) {
        let voice = self.voice();
        let end = match loss {
            // Another client may already hold the key.
            LossReason::Told(_) => Moment::now(),
            LossReason::Late { .. } | LossReason::Capped => {
                self.leases.earliest(|lease| lease.kill)
            }
        };
        state.lost = true;
        match self.exec.on_lost {
            OnLost::Warn => {
                voice.complain(|| about(key, format!("COMMAND runs without its lease: {loss}")))
            }
            OnLost::Kill => {
                state.code = Some(exit::LOST);
                self.end(state, running, state.kill.map_or(end, |kill| kill.min(end)));
                voice.complain(|| about(key, format!("COMMAND is ended: {loss}")));
            }
        }
    }

    /// Tells COMMAND to end, and sets the time to kill it.
    fn end(&self, state: &mut CommandState, running: &Running, kill: Moment) {
        state.told = true;
        state.kill = Some(kill);
        if !kill.has_come() {
            running.tell(self.exec.signal);
            self.voice().tell(|| format!("sent {} to COMMAND", name(self.exec.signal)));
        } else if state.killed.is_none() {
            self.kill(state, running);
        }
    }

    /// Kills COMMAND for the first time.
    fn kill(&self, state: &mut CommandState, running: &Running) {
        if !running.warden.reach().kill().is_empty() {
            self.voice().tell(|| "sent KILL to COMMAND");
        }
        state.killed = Some(Moment::now());
    }

    /// Corrects the outcome if the warden had to kill COMMAND.
    async fn judged(&self, mut state: CommandState, running: &Running) -> CommandState {
        running.warden.dismiss();
        if state.lost {
            return state;
        }
        let past = self.last_moment().has_come();
        let by_signal = state.status.and_then(|status| status.signal());
        let killed = by_signal == Some(Signal::KILL.as_raw()) && state.killed.is_none();
        // The answer to a refresh may have arrived during the suspension, but too late.
        if past || killed && running.warden.has_killed().await {
            let limit = Moment::now().after(BURIAL);
            while !running.warden.reach().kill().is_empty() && !limit.has_come() {
                running.reap();
                tokio::time::sleep(ROUND).await;
            }
            self.leases.expire();
            (state.lost, state.code) = (true, Some(exit::LOST));
            let loss = LossReason::Late { why: SUSPENDED.to_owned(), unanswered: false };
            self.voice().complain(|| about(self.key, format!("COMMAND is ended: {loss}")));
        }
        state
    }
}
