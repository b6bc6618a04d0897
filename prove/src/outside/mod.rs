//! The judge from outside: the linearizability tester of `stateright` over the exclusive leases of a
//! history, each key by itself.
//!
//! `spec` is what a key is, `windows` cuts histories into parts that can be searched, and `edn` writes
//! them for judges elsewhere. It judges only
//! what it is sure of: keys with other leases or lines, and what comes after a lease may have expired or a
//! store has lost data, are left to `check`, which shares no code with it.

pub(crate) mod edn;
mod spec;
#[cfg(test)]
mod tests;
mod windows;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;

use stateright::semantics::{ConsistencyTester, LinearizabilityTester};

use crate::history::{Kind, Line, Nanos, Operation};
use spec::{Key, Says};
use windows::{Step, Window, cut};

/// The longest window that is searched. The search is exponential in what goes on at once.
const LONGEST: usize = 200;

/// The most questions without an answer that may act in a window: each order of them is tried.
const MOST_OPEN: usize = 5;

/// The most steps of one search.
const STEPS: u64 = 50_000;

/// After so many rejected windows the rest is left out: a search that finds nothing is a long one.
const MOST_REJECTED: usize = 10;

/// In how many times the deadline of a request to the store a question acts, or never does.
const DEADLINES: u64 = 5;

/// For how long the votes of a question without an answer may be in the way of others.
const OPEN_VOTES: Nanos = 5_000_000_000;

/// What the rules of cutting depend on.
#[derive(Clone, Copy, Debug)]
struct Settings {
    /// For how long after it was sent a question without an answer may act.
    acts_within: Nanos,
    /// When the store may first have lost data.
    forgets: Nanos,
    /// Whether an answer may tell of votes that are no lease: on Redlock.
    votes: bool,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Verdict {
    /// How many operations are in a window that was searched.
    pub(crate) operations: u64,
    pub(crate) windows: u64,
    /// How many windows were too large.
    pub(crate) too_large: u64,
    /// How many operations they have.
    pub(crate) too_large_operations: u64,
    /// How many operations had no effect and say nothing, or are of a key with other leases, or after its
    /// leases may have expired, or after too many rejected windows.
    pub(crate) left_out: u64,
    /// The windows that no order explains.
    pub(crate) rejected: Vec<String>,
}

impl Verdict {
    /// Whether every window that was searched is in order, and at least half of all operations were.
    pub(crate) fn passed(&self) -> bool {
        let others = self.left_out + self.too_large_operations;
        self.rejected.is_empty() && self.operations >= others
    }

    fn add(&mut self, window: &Window<'_>) {
        let operations = window.steps.len() as u64;
        let Some(found) = searched(window) else {
            self.too_large += 1;
            self.too_large_operations += operations;
            return;
        };
        self.windows += 1;
        self.operations += operations;
        if !found {
            self.rejected.push(told(window));
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            to,
            "outside: operations={} windows={} too_large={} too_large_operations={} left_out={} \
             rejected={}",
            self.operations,
            self.windows,
            self.too_large,
            self.too_large_operations,
            self.left_out,
            self.rejected.len()
        )
    }
}

/// Judges the exclusive leases of a history.
pub(crate) fn judge(lines: &[Line]) -> Verdict {
    let mut settings = Settings { acts_within: 0, forgets: Nanos::MAX, votes: false };
    let mut keys: BTreeMap<u32, Vec<&Operation>> = BTreeMap::new();
    for line in lines {
        match line {
            Line::Run(run) => {
                settings.acts_within = run.deadline * DEADLINES;
                settings.votes = run.store == "redlock";
            }
            Line::Fault(fault) if fault.forgets => {
                settings.forgets = settings.forgets.min(fault.from);
            }
            Line::Operation(operation) => keys.entry(operation.key).or_default().push(operation),
            Line::Fault(_) | Line::Write(_) | Line::Left(_) => (),
        }
    }
    let mut verdict = Verdict::default();
    for operations in keys.values() {
        judge_key(operations, settings, &mut verdict);
    }
    verdict
}

fn judge_key(operations: &[&Operation], settings: Settings, verdict: &mut Verdict) {
    let all = operations.len() as u64;
    if !operations.iter().all(|operation| is_exclusive(operation)) {
        verdict.left_out += all;
        return;
    }
    let numbered = (0..).zip(operations);
    let mut steps: Vec<_> =
        numbered.filter_map(|(number, operation)| Step::of(operation, number)).collect();
    steps.sort_by_key(|step| step.sent);
    if settings.votes {
        steps = without_votes(&steps);
    }
    let (windows, left_out) = cut(&steps, settings);
    verdict.left_out += all - steps.len() as u64 + left_out;
    for window in &windows {
        if verdict.rejected.len() < MOST_REJECTED {
            verdict.add(window);
        } else {
            verdict.left_out += window.steps.len() as u64;
        }
    }
}

/// Whether the specification knows what an operation is about.
fn is_exclusive(operation: &Operation) -> bool {
    let known =
        matches!(operation.kind, Kind::Acquire | Kind::Refresh | Kind::Release | Kind::Look);
    known && operation.asked.slots.is_none() && operation.asked.wait_ms == 0
}

/// Leaves out what may come of votes that are no lease, because another question was under way: refusals,
/// and looks that say `held`.
fn without_votes<'a>(steps: &[Step<'a>]) -> Vec<Step<'a>> {
    let mut latest = 0;
    let mut kept = Vec::with_capacity(steps.len());
    for (at, step) in steps.iter().enumerate() {
        let next = steps.get(at + 1).map_or(Nanos::MAX, |next| next.sent);
        let alone = latest < step.sent && step.answered < next;
        let until = if step.is_open() { step.sent + OPEN_VOTES } else { step.answered };
        latest = latest.max(until);
        if alone || !matches!(step.says, Says::Held | Says::Seen(..)) {
            kept.push(*step);
        }
    }
    kept
}

/// Whether an order explains a window; nothing if the search was too long.
fn searched(window: &Window<'_>) -> Option<bool> {
    let open = window.open.iter().chain(window.steps.iter().filter(|step| step.is_open()));
    if window.steps.len() > LONGEST || open.count() > MOST_OPEN {
        return None;
    }
    let left = Rc::new(Cell::new(STEPS));
    let mut tester = LinearizabilityTester::new(window.key(left.clone()));
    record(window, &mut tester).expect("an operation returns after its own invocation");
    let found = tester.is_consistent();
    (found || left.get() > 0).then_some(found)
}

/// Hands the invocations and the returns of a window to the tester in the order of their times.
fn record(
    window: &Window<'_>,
    tester: &mut LinearizabilityTester<usize, Key>,
) -> Result<(), String> {
    let mut next_open = LONGEST; // Threads of questions that never return come last in the search.
    for step in &window.open {
        tester.on_invoke(next_open, step.asks)?;
        next_open += 1;
    }
    let mut events: Vec<(Nanos, bool, usize)> = Vec::new();
    for (number, step) in window.steps.iter().enumerate() {
        events.push((step.sent, false, number));
        if !step.is_open() {
            events.push((step.answered, true, number));
        }
    }
    events.sort_unstable();
    // An operation gets the first thread that is free, so that there are as few as can be.
    let mut threads: Vec<Option<usize>> = Vec::new();
    for (_, returns, number) in events {
        let step = &window.steps[number];
        let of = if returns { Some(number) } else { None };
        let thread = threads.iter().position(|thread| *thread == of);
        if returns {
            let thread = thread.unwrap_or(0);
            threads[thread] = None;
            tester.on_return(thread, step.says)?;
        } else if step.is_open() {
            tester.on_invoke(next_open, step.asks)?;
            next_open += 1;
        } else {
            let thread = thread.unwrap_or_else(|| {
                threads.push(None);
                threads.len() - 1
            });
            threads[thread] = Some(number);
            tester.on_invoke(thread, step.asks)?;
        }
    }
    Ok(())
}

fn told(window: &Window<'_>) -> String {
    let key = window.steps.first().map_or(0, |step| step.of.key);
    let mut text = format!("no order explains key {key} from {:?}", window.key(Rc::default()));
    for step in window.open.iter().chain(&window.steps) {
        let sent = step.sent as f64 / 1e9;
        let answered = match step.is_open() {
            true => "never".to_owned(),
            false => format!("{:.6}", step.answered as f64 / 1e9),
        };
        let (asks, says, client) = (step.asks, step.says, step.of.client);
        text += &format!("\n  {sent:.6} to {answered} client {client} {asks:?} {says:?}");
    }
    text
}
