//! The histories of exclusive keys in the form of Jepsen, for Knossos and other judges: each key is a
//! mutex, and each line an operation or its answer.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;

use super::{is_exclusive, keys};
use crate::history::{Kind, Line, Nanos, Operation, Outcome};

/// A process whose answer is not known never asks again; its client goes on as the one with this more.
const NEXT_PROCESS: u32 = 100_000;

/// Returns the history of each exclusive key, until its leases may expire or the store may lose data.
pub(crate) fn written(lines: &[Line]) -> BTreeMap<u32, String> {
    let (mut keys, forgets) = keys(lines);
    keys.retain(|_, operations| operations.iter().all(|operation| is_exclusive(operation)));
    keys.into_iter().map(|(key, operations)| (key, of_key(operations, forgets))).collect()
}

fn of_key(mut operations: Vec<&Operation>, forgets: Nanos) -> String {
    let grants = operations.iter().filter(|one| one.kind == Kind::Acquire);
    let ends = grants.filter_map(|one| Some(one.sent + one.said.ttl_ms? * 1_000_000));
    let until = ends.min().unwrap_or(Nanos::MAX).min(forgets);
    operations.retain(|operation| operation.sent < until);
    operations.sort_by_key(|operation| operation.sent);
    let mut processes: HashMap<u32, u32> = HashMap::new();
    let mut events: Vec<(Nanos, String)> = Vec::new();
    for one in operations {
        let Some((asks, says)) = event(one) else { continue };
        let process = processes.entry(one.client).or_insert(one.client);
        let answered = one.answered.filter(|answered| *answered < until && says != "info");
        let mut add = |at: Nanos, what: &str| {
            let (process, value) = (*process, one.token);
            let text = format!(":process {process}, :type :{what}, :f :{asks}, :value {value}");
            events.push((at, text));
        };
        add(one.sent, "invoke");
        match answered {
            Some(at) => add(at, says),
            None => {
                add(one.answered.or(one.gone).unwrap_or(one.sent).min(until), "info");
                *process += NEXT_PROCESS;
            }
        }
    }
    events.sort_by_key(|event| event.0); // Stable: a question stands before its answer.
    let mut text = String::new();
    for (index, (time, event)) in events.iter().enumerate() {
        // Writing to a text does not fail.
        let _ = writeln!(text, "{{{event}, :time {time}, :index {index}}}");
    }
    text
}

/// Returns what an operation does to a mutex, and its answer; a repeat, a refresh and a look do nothing.
fn event(of: &Operation) -> Option<(&'static str, &'static str)> {
    let asks = match of.kind {
        Kind::Acquire if of.outcome != Outcome::Yes || of.status == 201 => "acquire",
        Kind::Release => "release",
        _ => return None,
    };
    Some(match of.outcome {
        Outcome::Yes => (asks, "ok"),
        Outcome::No => (asks, "fail"),
        Outcome::Unknown => (asks, "info"),
    })
}
