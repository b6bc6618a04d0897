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
    /// How many operations had no effect and say nothing, or are of a key with other leases, or after its
    /// leases may have expired, or in a window that was too large.
    pub(crate) left_out: u64,
    /// The windows that no order explains.
    pub(crate) rejected: Vec<String>,
}

impl Verdict {
    /// Whether every window that was searched is in order, and at least half of all operations were.
    pub(crate) fn passed(&self) -> bool {
        self.rejected.is_empty() && self.operations >= self.left_out
    }

    fn add(&mut self, window: &Window<'_>) {
        let operations = window.steps.len() as u64;
        let Some(found) = searched(window) else {
            self.too_large += 1;
            self.left_out += operations;
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
        let Self { operations, windows, too_large, left_out, rejected } = self;
        write!(
            to,
            "outside: operations={operations} windows={windows} too_large={too_large} \
             left_out={left_out} rejected={}",
            rejected.len()
        )
    }
}

/// Judges the exclusive leases of a history.
pub(crate) fn judge(lines: &[Line]) -> Verdict {
    let (keys, forgets) = keys(lines);
    let mut settings = Settings { acts_within: 0, forgets, votes: false };
    if let Some(Line::Run(run)) = lines.first() {
        settings.acts_within = run.deadline * DEADLINES;
        settings.votes = run.store == "redlock";
    }
    let mut verdict = Verdict::default();
    for operations in keys.values() {
        judge_key(operations, settings, &mut verdict);
    }
    verdict
}

/// Returns the operations of each key, and when the store may first have lost data.
fn keys(lines: &[Line]) -> (BTreeMap<u32, Vec<&Operation>>, Nanos) {
    let mut keys: BTreeMap<u32, Vec<&Operation>> = BTreeMap::new();
    let mut forgets = Nanos::MAX;
    for line in lines {
        match line {
            Line::Operation(operation) => keys.entry(operation.key).or_default().push(operation),
            Line::Fault(fault) if fault.forgets => forgets = forgets.min(fault.from),
            _ => (),
        }
    }
    (keys, forgets)
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
    let windows = cut(&steps, settings);
    let in_windows: usize = windows.iter().map(|window| window.steps.len()).sum();
    verdict.left_out += all - in_windows as u64;
    windows.iter().for_each(|window| verdict.add(window));
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
        if step.is_open() {
            tester.on_invoke(next_open, step.asks)?;
            next_open += 1;
            continue;
        }
        let of = returns.then_some(number);
        let thread = threads.iter().position(|thread| *thread == of).unwrap_or(threads.len());
        threads.resize(threads.len().max(thread + 1), None);
        if returns {
            threads[thread] = None;
            tester.on_return(thread, step.says)?;
        } else {
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
