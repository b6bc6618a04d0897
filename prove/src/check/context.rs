//! The circumstances of a run: its faults, how fast it answered, and what is promised under them.

use crate::check::spans::{Span, Spans};
use crate::history::{Fault, Kind, Line, Nanos, Operation, Outcome, Run};

pub(super) const MS: Nanos = 1_000_000;
pub(super) const SECOND: Nanos = 1_000 * MS;

/// The TTL of a client that asks for none.
pub(super) const DEFAULT_TTL: Nanos = 30 * SECOND;
/// How late a lease may end by its TTL, and how late the next waiter may have it.
const LATE: Nanos = 250 * MS;
/// How late the next waiter may have a key that was given up: it is told, and does not have to ask.
const HANDED_LATE: Nanos = 150 * MS;
/// Both on Redlock, where waiters ask again by chance.
const LATE_ON_REDLOCK: Nanos = SECOND;
/// How long a place in line is kept for a claim that is away, with room for other settings.
pub(super) const PLACE_KEPT: Nanos = 10 * SECOND;
/// How long after a loss leases may be there again that were over: longer than any TTL of a driver.
pub(super) const ROLLED_BACK: Nanos = 10 * SECOND;
/// How long an answer takes at least where the store is 20 ms away.
const FAR_ANSWER: Nanos = 40 * MS;
/// How long after its beginning, or before its end, a fault certainly acts.
const EDGE: Nanos = 20 * MS;
/// How long a request takes to stand in line where everything is fast.
const ARRIVAL: Nanos = 50 * MS;
/// How long a store or an instance may stand still until its waiters are passed over, less the time in
/// which it was already quiet.
const DESERTED: Nanos = 2 * SECOND;

/// How long after a fault, and the deadline of what it kept back, everything is prompt again: an instance
/// that is gone is waited for 3 s.
const RECOVERY: Nanos = 4 * SECOND;
/// Faults that nobody has to wait for, or only as long as answers then take.
const PROMPT: [&str; 6] = [
    "scripts_flushed",
    "second_process",
    "disk_slow",
    "front_delay",
    "link_delay",
    "server_disk_slow",
];

/// Those of them that hold back no answer.
const HARMLESS: [&str; 2] = ["scripts_flushed", "second_process"];

/// Faults after which the line of the embedded store forms anew.
const STANDSTILLS: [&str; 5] =
    ["file_moved", "directory_moved", "file_replaced", "disk_full", "disk_fails_once"];

pub(super) struct Context<'a> {
    run: &'a Run,
    faults: Spans<&'a Fault>,
    /// The slowest answer to a question that does not wait, of those under way in each second.
    slowest: Vec<Nanos>,
    /// When answers said that the store is unavailable, in order.
    outages: Vec<Nanos>,
}

impl<'a> Context<'a> {
    pub(super) fn new(run: &'a Run, lines: &'a [Line]) -> Self {
        let faults = lines.iter().filter_map(|line| match line {
            Line::Fault(of) => Some(Span { from: of.from, until: of.until, of }),
            _ => None,
        });
        let faults = faults.collect();
        let mut context = Self { run, faults, slowest: Vec::new(), outages: Vec::new() };
        for line in lines {
            if let Line::Operation(operation) = line {
                context.add_speed(operation);
                let failed = operation.code.starts_with("store_unavailable");
                context.outages.extend(operation.answered.filter(|_| failed));
            }
        }
        context.outages.sort_unstable();
        context
    }

    pub(super) fn redlock(&self) -> bool {
        self.run.store == "redlock"
    }

    pub(super) fn embedded(&self) -> bool {
        self.run.store == "embedded"
    }

    /// Returns what a holder may count on of a TTL.
    pub(super) fn safe(&self, ttl: Nanos) -> Nanos {
        ttl - (u128::from(ttl) * u128::from(self.run.drift_ppm) / 1_000_000) as Nanos
    }

    /// Returns the longest TTL of which the answer may say that `said` is left.
    pub(super) fn longest(&self, said: Nanos, took: Nanos) -> Nanos {
        if self.run.drift_ppm == 0 {
            return said;
        }
        said + said / 1_000_000 * 2 * Nanos::from(self.run.drift_ppm) + 4 * MS + took
    }

    /// Returns when a question that came to an unknown end at `at` can no longer have an effect.
    pub(super) fn settled(&self, at: Nanos) -> Nanos {
        let mut settled = at.saturating_add(self.run.deadline);
        // Each fault may hold it back until its end, and run into the next one.
        for _ in 0..8 {
            let held = self.faults_in(at, settled).map(|fault| fault.until + self.run.deadline);
            match held.max() {
                Some(later) if later > settled => settled = later,
                _ => break,
            }
        }
        settled
    }

    /// Returns whether a client that left at `gone` cannot have been sent an answer.
    pub(super) fn unanswered(&self, sent: Nanos, gone: Nanos) -> bool {
        self.run.store == "redis-far" && gone < sent + FAR_ANSWER
    }

    /// Returns whether nothing of a question comes after its answer, also after one that says that nobody
    /// knows: on Redis the service answers when the call can act no more, by the store's clock.
    pub(super) fn hears_out(&self, sent: Nanos, answered: Nanos) -> bool {
        let clock = |fault: &Fault| self.is_clock(fault);
        !self.embedded() && !self.redlock() && !self.faults_in(sent, answered + SECOND).any(clock)
    }

    /// Returns when all that was asked of a store has come to its end that stood still from before
    /// `sent` until after `gone`, if nothing else was made to fail in that time.
    pub(super) fn stood_still(&self, sent: Nanos, gone: Nanos) -> Option<Nanos> {
        let still = self.faults_in(sent, gone).find(|fault| {
            let around = fault.from + EDGE <= sent && gone + EDGE <= fault.until;
            around && fault.kind == "server_stop" && self.run.store.starts_with("redis")
        });
        let until = still?.until + self.run.deadline + SECOND;
        (self.faults_in(sent, until).count() == 1).then_some(until)
    }

    /// Returns until when a lease may last that began after `from` and should end at `until`.
    pub(super) fn stretched(&self, from: Nanos, until: Nanos) -> Nanos {
        if until == Nanos::MAX {
            return until;
        }
        let mut by = 0;
        for fault in self.faults_in(from, until.saturating_add(self.run.deadline)) {
            if self.is_clock(fault) {
                return Nanos::MAX;
            }
            by += fault.until.saturating_sub(fault.from) + self.run.deadline;
        }
        until.saturating_add(by)
    }

    /// Returns by how much a lease may end late, and its next holder be late, at that time: not before
    /// the service has recovered from the faults of that time, and from those that follow meanwhile.
    pub(super) fn late(&self, at: Nanos) -> Nanos {
        self.late_by(at, LATE)
    }

    /// Returns by how much the next waiter may be late after somebody gave the key up at that time.
    pub(super) fn handed_late(&self, at: Nanos) -> Nanos {
        self.late_by(at, HANDED_LATE)
    }

    fn late_by(&self, at: Nanos, late: Nanos) -> Nanos {
        let late = if self.redlock() { LATE_ON_REDLOCK } else { late };
        let late = late + 2 * self.slowest(at, at.saturating_add(late));
        let recovery = RECOVERY + self.run.deadline;
        let mut recovered = at;
        loop {
            let recent = recovered.saturating_sub(recovery);
            let faults = self.faults_in(recent, recovered.saturating_add(late));
            let delaying = faults.filter(|fault| !is_prompt(fault));
            match delaying.map(|fault| fault.until.saturating_add(recovery)).max() {
                Some(later) if later > recovered => recovered = later,
                _ => return (recovered - at).saturating_add(late),
            }
        }
    }

    /// Returns how long a request that was sent then may take until it stands in line; nothing if that
    /// cannot be told.
    pub(super) fn arrival(&self, sent: Nanos) -> Option<Nanos> {
        let arrival = ARRIVAL.max(2 * self.slowest(sent, sent + ARRIVAL));
        (!self.delayed(sent, sent + arrival)).then_some(arrival)
    }

    /// Returns the slowest answer to a question that does not wait, around that time.
    pub(super) fn slowest(&self, from: Nanos, until: Nanos) -> Nanos {
        let from = second(from).saturating_sub(1).min(self.slowest.len());
        let until = (second(until) + 2).min(self.slowest.len());
        self.slowest[from..until.max(from)].iter().copied().max().unwrap_or_default()
    }

    /// Returns whether something was made to fail in that time that may hold back an answer.
    pub(super) fn delayed(&self, from: Nanos, until: Nanos) -> bool {
        self.faults_in(from, until).any(|fault| !HARMLESS.contains(&fault.kind.as_str()))
    }

    /// Returns whether anything was made to fail in that time.
    pub(super) fn disturbed(&self, from: Nanos, until: Nanos) -> bool {
        self.faults_in(from, until).next().is_some()
    }

    /// Returns whether a store may have been out of reach in that time: something was made to fail, or an
    /// answer said so.
    pub(super) fn outage(&self, from: Nanos, until: Nanos) -> bool {
        let first = self.outages.partition_point(|&at| at < from);
        self.outages.get(first).is_some_and(|&at| at <= until) || self.disturbed(from, until)
    }

    /// Returns whether a store's answer to an instance may have been lost in that time.
    pub(super) fn loses_answers(&self, from: Nanos, until: Nanos) -> bool {
        self.outage(from, until) || self.slowest(from, until) >= self.run.deadline
    }

    /// Returns whether a link to clients was made to fail in that time.
    pub(super) fn client_disturbed(&self, from: Nanos, until: Nanos) -> bool {
        self.faults_in(from, until).any(is_client)
    }

    /// Returns whether a process of the service stood still in that time.
    pub(super) fn suspended(&self, from: Nanos, until: Nanos) -> bool {
        let stands = |kind: &str| kind == "instance_stop" || kind == "instance_starved";
        self.faults_in(from, until).any(|fault| stands(&fault.kind))
    }

    /// Returns whether exclusion is promised at `at` for a lease that began at `from`: on Redlock also over
    /// losses of data.
    pub(super) fn promises_exclusion(&self, from: Nanos, at: Nanos) -> bool {
        let from = from.saturating_sub(self.run.deadline);
        let breaks = |fault: &Fault| fault.forgets && !self.redlock() || self.is_clock(fault);
        !self.faults_in(from, at).any(breaks)
    }

    /// Returns whether a lease that began at `from` is still there at `at`: not where a store may have lost it,
    /// nor on Redlock, where a majority may have.
    pub(super) fn promises_keeping(&self, from: Nanos, at: Nanos) -> bool {
        let from = from.saturating_sub(self.run.deadline);
        !self.faults_in(from, at).any(|fault| fault.forgets || self.is_clock(fault))
    }

    /// Returns whether what was lost in that time stays lost.
    pub(super) fn promises_loss(&self, from: Nanos, until: Nanos) -> bool {
        !self.faults_in(from, until).any(|fault| fault.forgets)
    }

    /// Returns whether fencing tokens rise until that time: not after a loss of data and a step of a
    /// store's clock.
    pub(super) fn promises_fencing(&self, until: Nanos) -> bool {
        let mut before = self.faults_in(0, until);
        let forgot = before.any(|fault| fault.forgets);
        let stepped = self.faults_in(0, until).any(|fault| self.is_clock(fault));
        !(forgot && stepped)
    }

    /// Returns whether those who wait are served in order in that time.
    pub(super) fn promises_order(&self, from: Nanos, until: Nanos) -> bool {
        if self.embedded() {
            return !self
                .faults_in(from, until)
                .any(|fault| STANDSTILLS.contains(&fault.kind.as_str()));
        }
        let lasts = |fault: &Fault| fault.until.saturating_sub(fault.from) >= DESERTED;
        let deserted = |fault: &Fault| !is_client(fault) && (lasts(fault) || fault.forgets);
        self.slowest(from, until) < DESERTED && !self.faults_in(from, until).any(deserted)
    }

    fn is_clock(&self, fault: &Fault) -> bool {
        // The embedded store counts its own time.
        !self.embedded() && fault.kind.contains("clock")
    }

    fn add_speed(&mut self, operation: &Operation) {
        let asks = matches!(
            operation.kind,
            Kind::Acquire | Kind::Refresh | Kind::Release | Kind::ForceRelease | Kind::Look
        );
        let is_one = asks && !operation.asked.several; // Several keys take several calls.
        if !is_one || operation.asked.wait_ms > 0 || operation.gone.is_some() {
            return;
        }
        let until = match operation.answered {
            Some(answered) => answered,
            None if operation.outcome == Outcome::Unknown => operation.sent + self.run.deadline,
            None => return,
        };
        let (from, to) = (second(operation.sent), second(until));
        if self.slowest.len() <= to {
            self.slowest.resize(to + 1, 0);
        }
        let took = until - operation.sent;
        for slowest in &mut self.slowest[from..=to] {
            *slowest = took.max(*slowest);
        }
    }

    fn faults_in(&self, from: Nanos, until: Nanos) -> impl Iterator<Item = &'a Fault> {
        self.faults.meeting(from, until).map(|span| span.of)
    }
}

fn is_prompt(fault: &Fault) -> bool {
    PROMPT.contains(&fault.kind.as_str())
}

fn is_client(fault: &Fault) -> bool {
    fault.target.starts_with("client")
}

fn second(at: Nanos) -> usize {
    usize::try_from(at / SECOND).unwrap_or(usize::MAX)
}
