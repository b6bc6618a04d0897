//! COMMAND and its lease together: whatever ends first, ends the other.

use std::cell::Cell;
use std::ffi::OsString;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use rustix::process::Signal;
use rustix::process::getpid;

use crate::cli::clock::Alarm;
use crate::cli::clock::Moment;
use crate::cli::exec::OnLost;
use crate::cli::exec::command::Reach;
use crate::cli::exec::command::Running;
use crate::cli::exec::command::code;
use crate::cli::exec::lease::Keeper;
use crate::cli::exec::lease::Lease;
use crate::cli::exec::lease::Loss;
use crate::cli::exec::warden::Warden;
use crate::cli::exit;
use crate::cli::signals::Signals;

/// Why a lease was not refreshed, if nobody tried.
const STOOD_STILL: &str = "we stood still";

/// How long what was killed may take to be gone.
const BURIAL: Duration = Duration::from_secs(1);

/// What is done when.
#[derive(Debug)]
pub(super) struct Supervisor<'a> {
    pub(super) keeper: &'a Keeper,
    /// How COMMAND is told to end.
    pub(super) signal: Signal,
    /// How long it may run.
    pub(super) max_run: Option<Duration>,
    /// What to do when the lease cannot be kept.
    pub(super) on_lost: OnLost,
}

/// How it ended.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) code: u8,
    /// Whether the lease was lost.
    pub(super) lost: bool,
}

/// What has happened to COMMAND so far.
#[derive(Debug, Default)]
struct Course {
    /// How its first process ended.
    status: Option<ExitStatus>,
    /// The exit code, if it is not COMMAND's own.
    code: Option<u8>,
    /// Somebody told it to end, so nothing of it is to be left.
    told: bool,
    /// When to kill it.
    kill: Option<Moment>,
    killed: bool,
    lost: bool,
}

impl Supervisor<'_> {
    /// Runs COMMAND to its end.
    pub(super) async fn run(
        &self,
        words: &[OsString],
        changes: &[(&str, Option<String>)],
        lease: Option<Lease>,
        signals: &mut Signals,
    ) -> io::Result<Outcome> {
        let mut warden = Warden::start()?;
        // It has no number yet: should we stand still right after the start, it is below us.
        let below = Reach::Tree { us: getpid(), warden: warden.pid() };
        warden.watch(below, self.last_moment(lease.as_ref()));
        let latest = lease.map(|lease| lease.terminate);
        let mut running = Running::start(words, changes, warden.pid(), latest)?;
        let reach = running.reach;
        let watch = |lease: Option<&Lease>| warden.watch(reach, self.last_moment(lease));
        watch(lease.as_ref());
        let mut course = match lease {
            None => {
                let kept = std::future::pending();
                self.attend(&mut running, signals, kept, &|| None).await?
            }
            Some(lease) => {
                let lease = Cell::new(lease);
                let limit = match self.on_lost {
                    OnLost::Kill => |lease: &Lease| lease.terminate,
                    OnLost::Warn => |lease: &Lease| lease.end,
                };
                let kept = self.keeper.keep(&lease, limit, |lease| watch(Some(lease)));
                self.attend(&mut running, signals, kept, &|| Some(lease.get().kill)).await?
            }
        };
        warden.dismiss();
        let killed =
            course.status.is_some_and(|status| status.signal() == Some(Signal::KILL.as_raw()));
        if killed && !course.killed && !course.lost && warden.has_killed().await {
            // The answer to a refresh may have been there when we went on, but too late.
            let loss = Loss::Late(STOOD_STILL.to_owned());
            self.lose(loss, &mut course, reach, None);
        }
        let own = course.status.map_or(exit::INTERNAL, code);
        Ok(Outcome { code: course.code.unwrap_or(own), lost: course.lost })
    }

    /// When the warden kills COMMAND, should we not have done so ourselves.
    fn last_moment(&self, lease: Option<&Lease>) -> Option<Moment> {
        let lease = lease.filter(|_| self.on_lost == OnLost::Kill)?;
        Some(lease.kill)
    }

    /// Until COMMAND has ended. `kept` ends when the lease is lost, `last` is when COMMAND has to
    /// be killed for the lease's sake.
    async fn attend(
        &self,
        running: &mut Running,
        signals: &mut Signals,
        kept: impl Future<Output = io::Result<Loss>>,
        last: &dyn Fn() -> Option<Moment>,
    ) -> io::Result<Course> {
        let alarm = Alarm::new()?;
        let most = self.max_run.map(|time| Moment::now().after(time));
        let mut course = Course::default();
        let mut keeping = true;
        tokio::pin!(kept);
        loop {
            let next = match course.killed {
                false => course.kill.or(most),
                // What no signal reaches, because it waits for a disk, must not keep us for ever.
                true => course.kill.map(|kill| kill.after(BURIAL)),
            };
            tokio::select! {
                biased;
                ended = running.next_end() => {
                    let first = course.status.is_none();
                    course.status = Some(ended?);
                    if !course.told || !first {
                        break;
                    }
                    // What it has started has as much time to end as it had itself.
                    course.kill.get_or_insert_with(|| self.latest_kill());
                }
                signal = signals.next() => {
                    course.told |= [Signal::TERM, Signal::INT].contains(&signal);
                    running.forward(signal);
                }
                loss = &mut kept, if keeping => {
                    keeping = false;
                    self.lose(loss?, &mut course, running.reach, last());
                }
                rung = alarm.at(next) => {
                    rung?;
                    if course.killed && course.status.is_some() {
                        break;
                    }
                    self.ring(&mut course, running.reach);
                }
            }
        }
        // It may have been the warden that ended it, before we saw why.
        let late = last().is_some_and(Moment::has_come) && self.on_lost == OnLost::Kill;
        if late && !course.lost {
            let loss = Loss::Late(STOOD_STILL.to_owned());
            self.lose(loss, &mut course, running.reach, None);
        }
        Ok(course)
    }

    /// It is time to end COMMAND, or to kill it.
    fn ring(&self, course: &mut Course, reach: Reach) {
        if course.kill.is_some() {
            reach.send(Signal::KILL);
            (course.killed, course.kill) = (true, Some(Moment::now()));
        } else {
            self.keeper.claimant.voice.complain(|| "COMMAND has run for too long");
            course.code = Some(exit::TIMED_OUT);
            self.end(course, reach, self.latest_kill());
        }
    }

    fn latest_kill(&self) -> Moment {
        Moment::now().after(self.keeper.terms.kill_after())
    }

    fn lose(&self, loss: Loss, course: &mut Course, reach: Reach, last: Option<Moment>) {
        let voice = self.keeper.claimant.voice;
        course.lost = true;
        let (why, end) = match loss {
            // Somebody else may be at work already.
            Loss::Told(why) => (why, Moment::now()),
            Loss::Late(why) => {
                let why = format!("the lease could not be refreshed in time: {why}");
                (why, last.unwrap_or_else(Moment::now))
            }
        };
        match self.on_lost {
            OnLost::Warn => voice.complain(|| format!("COMMAND runs without its lease: {why}")),
            OnLost::Kill => {
                voice.complain(|| format!("COMMAND is ended: {why}"));
                course.code = Some(exit::LOST);
                self.end(course, reach, course.kill.map_or(end, |kill| kill.min(end)));
            }
        }
    }

    /// Tells COMMAND to end, and when it is killed if it has not.
    fn end(&self, course: &mut Course, reach: Reach, kill: Moment) {
        course.told = true;
        course.kill = Some(kill);
        if !kill.has_come() {
            reach.send(self.signal);
            // One that is stopped could not hear it.
            reach.send(Signal::CONT);
        }
    }
}
