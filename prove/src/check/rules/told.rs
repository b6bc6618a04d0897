//! I1: on Redlock a new lease tells what its holder may count on, less the drift of clocks. The time that the
//! votes took is taken off as well, but cannot be told from outside. A repeat tells what is left of more.

use super::Court;
use super::fencing::ms;
use crate::check::context::MS;
use crate::check::key::asked_ttl;
use crate::history::Kind;

pub(super) fn judge(court: &mut Court<'_>) {
    if !court.context.redlock() {
        return;
    }
    let mut found = Vec::new();
    for operation in &court.key.operations {
        let (Some(ttl), Some(said)) = (asked_ttl(operation), operation.said.ttl_ms) else {
            continue;
        };
        let grant = operation.kind == Kind::Acquire && operation.status == 201;
        let most = court.context.safe(ttl);
        if grant && said * MS > most {
            found.push((operation.answered.unwrap_or(operation.sent), said, ms(most)));
        }
    }
    for (at, said, most) in found {
        court.find("I1", at, true, format!("a grant tells {said} ms, and {most} ms are safe"));
    }
}
