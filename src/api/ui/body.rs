//! The bodies that the dashboard's page reads. The page comes from the same binary, so this is no part of the
//! contract.

use std::time::Instant;

use serde::Serialize;

use crate::api::App;
use crate::api::ui::pulse::{Counts, PastPoint, StoreLook};
use crate::auth::{Caller, Permission};
use crate::lock::leases::End;
use crate::lock::store::{NodeReport, Votes};
use crate::lock::time::{millis_down, millis_up};

/// The permissions, by their names.
const PERMISSIONS: [Permission; 3] = [Permission::Acquire, Permission::Read, Permission::Admin];

/// The answer of `GET /ui/access`.
#[derive(Debug, Serialize)]
pub(super) struct AccessBody {
    pub(super) api_keys: bool,
}

/// The state of the instance, and the ends that the caller may see.
#[derive(Debug, Serialize)]
pub(super) struct StatusReport<'a> {
    instance: &'a str,
    /// Another text after each start.
    run: &'a str,
    version: &'static str,
    uptime_ms: u64,
    store: StoreReport,
    /// The keys held, if the store counts them and the caller may see all.
    #[serde(skip_serializing_if = "Option::is_none")]
    held: Option<u64>,
    waiting: usize,
    holds: u64,
    #[serde(flatten)]
    counts: Counts,
    /// Told once: the page goes on from it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    past: Vec<PastPoint>,
    caller: CallerReport,
    changes: u64,
    last_end: u64,
    ends: Vec<EndReport>,
}

#[derive(Debug, Serialize)]
struct StoreReport {
    name: &'static str,
    #[serde(flatten)]
    look: StoreLook,
    nodes: Vec<NodeLine>,
}

#[derive(Debug, Serialize)]
struct NodeLine {
    node: String,
    votes: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    votes_in_ms: Option<u64>,
}

#[derive(Debug, Serialize)]
struct CallerReport {
    name: String,
    may: Vec<String>,
}

#[derive(Debug, Serialize)]
struct EndReport {
    number: u64,
    ago_ms: u64,
    key: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    owner: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fencing_token: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    held_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    waited_ms: Option<u64>,
    why: &'static str,
}

impl<'a> StatusReport<'a> {
    /// The state for this caller, with the ends after this number.
    pub(super) fn of(app: &'a App, caller: &Caller, look: StoreLook, after: u64) -> Self {
        let (ends, last_end) = app.locks.leases().ended_after(after);
        let visible = |end: &&End| caller.may(&[Permission::Read], end.key.as_str());
        let sees_all = caller.may(&[Permission::Read], "");
        let may = PERMISSIONS.iter().filter(|one| caller.has(&[**one]));
        Self {
            instance: app.pulse.instance(),
            run: app.pulse.run(),
            version: env!("CARGO_PKG_VERSION"),
            uptime_ms: millis_down(app.pulse.uptime()),
            store: StoreReport {
                name: app.locks.guarantees().store,
                look,
                nodes: app.locks.nodes().into_iter().map(NodeLine::from).collect(),
            },
            held: (sees_all && app.locks.leases().are_complete()).then(|| app.metrics.locks_held()),
            waiting: app.locks.waiting(),
            holds: app.metrics.hold_streams(),
            counts: app.pulse.counts(),
            past: if after == 0 { app.pulse.past() } else { Vec::new() },
            caller: CallerReport {
                name: caller.name().to_owned(),
                may: may.map(Permission::to_string).collect(),
            },
            changes: app.locks.leases().changes(),
            last_end,
            ends: ends.iter().filter(visible).map(EndReport::of).collect(),
        }
    }

    /// The number of the last end, seen by the caller or not.
    pub(super) fn last_end(&self) -> u64 {
        self.last_end
    }

    pub(super) fn json(&self) -> String {
        serde_json::to_string(self).expect("only texts and numbers")
    }
}

impl From<NodeReport> for NodeLine {
    fn from(NodeReport { node, votes }: NodeReport) -> Self {
        let (votes, left) = match votes {
            Votes::Now => ("now", None),
            Votes::In(left) => ("later", Some(left)),
            Votes::ForOthers => ("for_others", None),
            Votes::Unreachable => ("unreachable", None),
        };
        Self { node, votes, votes_in_ms: left.map(millis_up) }
    }
}

impl EndReport {
    fn of(end: &End) -> Self {
        let at = end.at.into_std();
        Self {
            number: end.number,
            ago_ms: millis_down(Instant::now().saturating_duration_since(at)),
            key: end.key.to_string(),
            owner: end.owner.as_ref().map(|owner| owner.as_str().to_owned()),
            fencing_token: end.fencing_token.map(|token| token.number()),
            held_ms: end.held.map(millis_down),
            waited_ms: end.waited.map(millis_down),
            why: end.why.name(),
        }
    }
}
