//! Claims: the scripts that grant, and their answers.

use std::time::Instant;

use crate::lock::error::{StoreError, Verb};
use crate::lock::lease::{Claim, Owner};
use crate::lock::slots::Slots;
use crate::lock::store::Answer;
use crate::lock::time::{Ttl, Uptime};
use crate::store::redis::RedisStore;
use crate::store::redis::clock::latest_believable_micros;
use crate::store::redis::deadline::When;
use crate::store::redis::replies::{held, malformed, shared, waiting};
use crate::store::redis::script::{Reply, Script, TRY_ACQUIRE, WAIT_TURN, or_empty};

/// The time that the waiters of a dead instance may hold up the line. Each question of an instance
/// moves this window, so it must be several times their longest sleep.
const WINDOW_MS: &str = "3000";

/// When a claim was asked for, and until when its calls may act.
#[derive(Clone, Copy)]
struct Asked {
    at: Uptime,
    when: When,
}

impl Asked {
    /// One that is asked for now.
    fn now(when: When) -> Self {
        Self { at: Uptime::now(), when }
    }
}

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
        let asked = Asked::now(self.in_time(2)); // One call finds that it is not for it.
        if claim.slots().is_alone() && claim.named.is_none() {
            let answer = self.run_claim(&TRY_ACQUIRE, claim, asked, &[]).await?;
            if answer.reply.word() != "line" {
                return self.answer(Verb::TryAcquire, claim, answer);
            }
        }
        // Leases that share the key, or claims in line.
        let answer = self.run_wait_turn(claim, asked, None, None).await?;
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
        let asked = Asked::now(self.in_time(1));
        let instance = joins.then_some(self.instance.as_str());
        let answer = self.run_wait_turn(claim, asked, instance, stood).await?;
        self.answer(verb, claim, answer)
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
            "lost" | "gone" => Some(Answer::Gone),
            "waiting" => waiting(reply).map(Answer::Waiting),
            "held" => held(&claim.key, reply).map(Answer::Held),
            "shared" => shared(&claim.key, reply).map(Answer::Held),
            _ => None,
        };
        answer.ok_or_else(|| malformed(verb))
    }

    /// Runs a script that grants a claim; `rest` follows the arguments of `try_acquire.lua`.
    async fn run_claim(
        &self,
        script: &'static Script,
        claim: &Claim,
        Asked { at, when }: Asked,
        rest: &[&str],
    ) -> Result<Answered, StoreError> {
        let common = [
            claim.token.expose(),
            &claim.ttl.as_millis().to_string(),
            claim.owner.as_ref().map_or("", Owner::as_str),
            &self.floor.least().to_string(),
            &latest_believable_micros().to_string(),
            &or_empty(self.prefixes.max_hold(&claim.key).map(Ttl::as_millis)),
        ];
        let began = Instant::now();
        let args = [&common[..], rest].concat();
        let answered = self.run(script, &claim.key, &args, when).await;
        let (reply, node) = answered.map_err(|error| error.of_claim(claim.origin))?;
        self.replicated(script, claim, (&reply, &node), began).await?;
        Ok(Answered { reply, node: node.number(), asked: at })
    }

    /// Runs `wait_turn.lua`; without an instance it only asks.
    async fn run_wait_turn(
        &self,
        claim: &Claim,
        asked: Asked,
        instance: Option<&str>,
        stood: Option<u64>,
    ) -> Result<Answered, StoreError> {
        let (instance, stood) = (instance.unwrap_or_default(), or_empty(stood));
        let (slots, named) = (or_empty(claim.slots.map(Slots::number)), or_empty(claim.named));
        let rest = [instance, WINDOW_MS, &self.position_kept, &stood, &slots, &named];
        self.run_claim(&WAIT_TURN, claim, asked, &rest).await
    }
}
