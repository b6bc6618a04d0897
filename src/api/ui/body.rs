//! What the dashboard's page reads. The page comes from the same binary, so this is no part of the
//! contract.

use serde_json::{Value, json};

use crate::api::App;
use crate::api::ui::activity::StoreLook;
use crate::auth::{Caller, Permission};
use crate::lock::lease::Owner;
use crate::lock::leases::End;
use crate::lock::store::NodeReport;
use crate::lock::time::{millis_down, millis_up};
use crate::lock::token::FencingToken;

const PERMISSIONS: [Permission; 3] = [Permission::Acquire, Permission::Read, Permission::Admin];

/// The state of the instance as JSON, with the ends after this number that the caller may see.
pub(super) fn report(app: &App, caller: &Caller, look: StoreLook, after: u64) -> String {
    let (leases, counts, store) = (app.locks.leases(), app.activity.counts(), app.locks.about());
    let (ends, last_end) = leases.ended_after(after);
    let visible = |end: &&End| caller.may(&[Permission::Read], end.key.as_str());
    // If the store counts them.
    let sees_all = leases.are_complete() && caller.may(&[Permission::Read], "");
    let may = PERMISSIONS.iter().filter(|one| caller.has(&[**one]));
    let mut report = json!({
        "instance": app.activity.instance,
        "run": app.activity.run,
        "version": env!("CARGO_PKG_VERSION"),
        "uptime_ms": millis_down(app.activity.began.elapsed()),
        "store": {
            "name": store.guarantees.store,
            "up": look.problem.is_none(),
            "latency_ms": look.latency_ms,
            "problem": look.problem,
            "nodes": store.nodes.into_iter().map(node).collect::<Vec<_>>(),
            "began_empty_ms": store.began_empty.map(millis_down),
        },
        "held": sees_all.then(|| app.metrics.locks_held()),
        "draining": app.locks.drains().then_some(true),
        "waiting": app.locks.waiting(),
        "holds": app.metrics.hold_streams(),
        "granted": counts.granted,
        "refused": counts.refused,
        "refused_lately": counts.refused_lately,
        "write_ms": counts.write_ms,
        "failing": counts.failing,
        "past": (after == 0).then(|| app.activity.past()), // The page goes on from it.
        "caller": { "name": caller.name(), "may": may.map(ToString::to_string).collect::<Vec<_>>() },
        "changes": leases.changes(),
        "last_end": last_end,
        "ends": ends.iter().filter(visible).map(end).collect::<Vec<_>>(),
    });
    remove_nulls(&mut report);
    report.to_string()
}

fn node(NodeReport { node, state, back_in }: NodeReport) -> Value {
    json!({ "node": node, "votes": state, "votes_in_ms": back_in.map(millis_up) })
}

fn end(end: &End) -> Value {
    json!({
        "number": end.number,
        "ago_ms": millis_down(end.at.elapsed()),
        "key": end.key.as_str(),
        "owner": end.owner.as_ref().map(Owner::as_str),
        "fencing_token": end.fencing_token.map(FencingToken::number),
        "held_ms": end.held.map(millis_down),
        "waited_ms": end.waited.map(millis_down),
        "why": end.why.name(),
    })
}

/// Removes the members without a value: the page takes what is there for a value.
fn remove_nulls(value: &mut Value) {
    match value {
        Value::Object(members) => {
            members.retain(|_, member| !member.is_null());
            members.values_mut().for_each(remove_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(remove_nulls),
        _ => (),
    }
}
