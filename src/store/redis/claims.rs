//! Claims: the scripts that grant, and their answers.

use std::time::Instant;

use crate::lock::error::{StoreError, Verb};
use crate::lock::lease::{Claim, Owner};
use crate::lock::slots::Slots;
use crate::lock::store::Answer;
use crate::lock::time::Uptime;
use crate::store::redis::RedisStore;
use crate::store::redis::arguments::ClaimArguments;
use crate::store::redis::clock::latest_believable_micros;
use crate::store::redis::replies::{fencing_token, malformed, refusal, waiting};
use crate::store::redis::script::{Reply, Script, TRY_ACQUIRE, WAIT_TURN, or_empty};

/// A node's answer to a question.
pub(super) struct Answered {
    pub(super) reply: Reply,
    /// The number of the node.
    pub(super) node: u64,
    pub(super) asked: Uptime,
}

impl RedisStore {
    /// Asks for a claim that does not wait.
    pub(super) async fn ask_once(&self, claim: &Claim) -> Result<Answer, StoreError> {
        if claim.slots().is_alone() && claim.named.is_none() {
            let answer = self.run_claim(&TRY_ACQUIRE, claim, None, false).await?;
            if answer.reply.word() != "line" {
                return self.answer(Verb::TryAcquire, claim, answer);
            }
        }
        let answer = self.run_claim(&WAIT_TURN, claim, None, false).await?;
        self.answer(Verb::TryAcquire, claim, answer)
    }

    /// Asks for a claim in line, or for the last time for one that was.
    pub(super) async fn ask_in_line(
        &self,
        claim: &Claim,
        stood: Option<u64>,
        joins: bool,
    ) -> Result<Answer, StoreError> {
        let verb = if joins { Verb::WaitTurn } else { Verb::TryAcquire };
        let answer = self.run_claim(&WAIT_TURN, claim, stood, joins).await?;
        self.answer(verb, claim, answer)
    }

    /// Asks for a claim that joins the line of this instance, or has stood there.
    async fn run_claim(
        &self,
        script: &'static Script,
        claim: &Claim,
        stood: Option<u64>,
        joins: bool,
    ) -> Result<Answered, StoreError> {
        let (asked, when, began) = (Uptime::now(), self.in_time(1), Instant::now());
        let (max_hold, waits) = (self.max_hold(&claim.key), joins || stood.is_some());
        let arguments = ClaimArguments {
            token: claim.token.expose().into(),
            ttl: claim.ttl.as_millis().min(max_hold).to_string().into(),
            its_owner: claim.owner.as_ref().map_or("", Owner::as_str).into(),
            floor: self.floor.least().to_string().into(),
            believable: latest_believable_micros().to_string().into(),
            kept: or_empty(claim.kept.then_some(1)).into(),
            max_hold: max_hold.to_string().into(),
            slots: or_empty(claim.slots.map(Slots::number)).into(),
            named: or_empty(claim.named).into(),
            instance: if waits { &*self.instance } else { "" }.into(),
            joins: or_empty(joins.then_some(1)).into(),
            keep: (&*self.position_kept).into(),
            stood: or_empty(stood).into(),
        };
        let is_plain = matches!(script.verb(), Verb::TryAcquire);
        let all = arguments.all();
        let args = if is_plain { &all[..ClaimArguments::PLAIN] } else { &all[..] };
        let answered = self.run(script, &claim.key, args, when).await;
        let (reply, node) = answered.map_err(|error| error.of_claim(claim.origin))?;
        self.replicated(script, claim, (&reply, &node), began).await?;
        Ok(Answered { reply, node: node.number(), asked })
    }

    /// Reads the answer to a claim.
    fn answer(
        &self,
        verb: Verb,
        claim: &Claim,
        mut answered: Answered,
    ) -> Result<Answer, StoreError> {
        let reply = &mut answered.reply;
        let answer = match reply.word() {
            "granted" | "again" => return self.win(verb, claim, answered).map(Answer::Won),
            "lost" => Some(Answer::Lost(fencing_token(reply))),
            "superseded" => Some(Answer::Superseded),
            "waiting" => waiting(reply).map(Answer::Waiting),
            "held" => refusal(&claim.key, reply).map(Answer::Held),
            _ => None,
        };
        answer.ok_or_else(|| malformed(verb))
    }
}
