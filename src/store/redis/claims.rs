//! Claims: the scripts that grant, and their answers.

use std::time::Instant;

use crate::lock::error::{StoreError, Verb};
use crate::lock::lease::{Claim, Lease, Owner, Replaced};
use crate::lock::slots::Slots;
use crate::lock::store::{Answer, Ask, Win};
use crate::lock::time::Uptime;
use crate::store::redis::arguments::ClaimArguments;
use crate::store::redis::calls::Calls;
use crate::store::redis::clock::latest_believable_micros;
use crate::store::redis::grants::replicated;
use crate::store::redis::leases::told;
use crate::store::redis::replies::{fencing_token, malformed, refusal, share, ttl, waiting};
use crate::store::redis::script::{Reply, Script, TRY_ACQUIRE, WAIT_TURN, or_empty};

/// A node's answer to a question.
struct Answered {
    reply: Reply,
    /// The number of the node.
    node: u64,
    asked: Uptime,
}

/// Asks for a claim.
pub(super) async fn ask(calls: &Calls, claim: &Claim, ask: Ask) -> Result<Answer, StoreError> {
    let verb = match ask {
        Ask::Once(_) => Verb::TryAcquire,
        Ask::InLine(_) => Verb::WaitTurn,
    };
    if ask == Ask::Once(None) && claim.slots().is_alone() && claim.named.is_none() {
        let answered = run(calls, &TRY_ACQUIRE, claim, ask).await?;
        if answered.reply.word() != "line" {
            return answer(calls, verb, claim, answered);
        }
    }
    let answered = run(calls, &WAIT_TURN, claim, ask).await?;
    answer(calls, verb, claim, answered)
}

async fn run(
    calls: &Calls,
    script: &'static Script,
    claim: &Claim,
    ask: Ask,
) -> Result<Answered, StoreError> {
    let asked = Uptime::now();
    let when = calls.in_time(1);
    let began = Instant::now();
    let max_hold = calls.max_hold(&claim.key);
    let (joins, stood) = match ask {
        Ask::Once(stood) => ("", stood),
        Ask::InLine(stood) => ("1", stood),
    };
    let arguments = ClaimArguments {
        token: claim.token.expose().into(),
        ttl: claim.ttl.as_millis().min(max_hold).to_string().into(),
        its_owner: claim.owner.as_ref().map_or("", Owner::as_str).into(),
        floor: calls.floor.least().to_string().into(),
        believable: latest_believable_micros().to_string().into(),
        kept: or_empty(claim.kept.then_some(1)).into(),
        max_hold: max_hold.to_string().into(),
        slots: or_empty(claim.slots.map(Slots::number)).into(),
        units: or_empty(claim.units).into(),
        named: or_empty(claim.named).into(),
        instance: if ask == Ask::Once(None) { "" } else { &*calls.instance }.into(),
        joins: joins.into(),
        keep: (&*calls.position_kept).into(),
        stood: or_empty(stood).into(),
    };
    let is_plain = matches!(script.verb(), Verb::TryAcquire);
    let all = arguments.all();
    let args = if is_plain { &all[..ClaimArguments::PLAIN] } else { &all[..] };
    let answered = calls.run(script, &claim.key, args, when).await;
    let (reply, node) = answered.map_err(|error| error.of_claim(claim.origin))?;
    replicated(calls, script.verb(), claim, (&reply, &node), began).await?;
    Ok(Answered { reply, node: node.number(), asked })
}

/// Reads the answer to a claim.
fn answer(
    calls: &Calls,
    verb: Verb,
    claim: &Claim,
    mut answered: Answered,
) -> Result<Answer, StoreError> {
    let reply = &mut answered.reply;
    let answer = match reply.word() {
        "granted" | "again" => return win(calls, verb, claim, answered).map(Answer::Won),
        "lost" => Some(Answer::Lost(fencing_token(reply))),
        "superseded" => Some(Answer::Superseded),
        "waiting" => waiting(reply).map(Answer::Waiting),
        "held" => refusal(&claim.key, reply).map(Answer::Held),
        _ => None,
    };
    answer.ok_or_else(|| malformed(verb))
}

/// The grant in an answer.
fn win(
    calls: &Calls,
    verb: Verb,
    claim: &Claim,
    Answered { mut reply, node, asked }: Answered,
) -> Result<Win, StoreError> {
    let fresh = reply.word() == "granted";
    let number = calls.fencing_token(verb, &mut reply)?;
    let ttl = ttl(&mut reply).ok_or_else(|| malformed(verb))?;
    let lease = Lease {
        key: claim.key.clone(),
        owner: claim.owner.clone(),
        fencing_token: number,
        ttl,
        capped: ttl < claim.ttl,
        share: share(&mut reply),
    };
    let replaced = fencing_token(&mut reply);
    let mut number = || reply.number().and_then(|number| u64::try_from(number).ok());
    let ends_at = number().unwrap_or_default();
    let place = number().filter(|place| *place > 0);
    let replaces = replaced.map(|number| Replaced { number, ends_at });
    let lease = told(lease, asked);
    if lease.came_late() {
        return Err(StoreError::late(verb));
    }
    Ok(Win { lease, fresh, replaces, place, by: node })
}
