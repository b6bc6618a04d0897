//! Claims: the scripts that grant, and their answers.

use std::time::Instant;

use crate::lock::error::{StoreError, Verb};
use crate::lock::lease::{Claim, Owner};
use crate::lock::slots::Slots;
use crate::lock::store::Attempt;
use crate::lock::time::{Ttl, Uptime};
use crate::store::redis::RedisStore;
use crate::store::redis::clock::latest_believable_micros;
use crate::store::redis::deadline::When;
use crate::store::redis::replies::{held, malformed, shared};
use crate::store::redis::script::{Reply, Script, TRY_ACQUIRE, WAIT_TURN, or_empty};

/// The time that the waiters of a dead instance may hold up the line. Each question of an instance
/// moves this window, so it must be several times their longest sleep.
const WINDOW_MS: &str = "3000";

/// When a claim was asked for, and until when its calls may act.
#[derive(Clone, Copy)]
pub(super) struct Asked {
    at: Uptime,
    when: When,
}

impl Asked {
    /// One that is asked for now.
    pub(super) fn now(when: When) -> Self {
        Self { at: Uptime::now(), when }
    }
}

/// A node's answer to a question.
pub(super) struct Answer {
    pub(super) reply: Reply,
    /// The number of the node.
    pub(super) node: u64,
    pub(super) asked: Uptime,
}

impl RedisStore {
    /// Asks for a claim that does not wait.
    pub(super) async fn ask_for(&self, claim: &Claim) -> Result<Attempt, StoreError> {
        let asked = Asked::now(self.in_time(2)); // One call finds that it is not for it.
        if claim.slots().is_alone() && claim.named.is_none() {
            let answer = self.run_claim(&TRY_ACQUIRE, claim, asked, &[]).await?;
            if answer.reply.word() != "line" {
                return self.attempted(claim, answer);
            }
        }
        // Leases that share the key, or claims in line.
        let answer = self.run_wait_turn(claim, asked, None, None).await?;
        self.attempted(claim, answer)
    }

    /// Reads the answer to a claim that does not wait.
    pub(super) fn attempted(
        &self,
        claim: &Claim,
        mut answer: Answer,
    ) -> Result<Attempt, StoreError> {
        let verb = Verb::TryAcquire;
        let held = match answer.reply.word() {
            "granted" | "again" => return self.win(verb, claim, answer).map(Attempt::Won),
            "lost" => return Ok(Attempt::Lost),
            "held" => held(&claim.key, &mut answer.reply),
            "shared" => shared(&claim.key, &mut answer.reply),
            _ => None,
        };
        held.map(Attempt::Held).ok_or_else(|| malformed(verb))
    }

    /// Runs a script that grants a claim; `rest` follows the arguments of `try_acquire.lua`.
    async fn run_claim(
        &self,
        script: &'static Script,
        claim: &Claim,
        Asked { at, when }: Asked,
        rest: &[&str],
    ) -> Result<Answer, StoreError> {
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
        Ok(Answer { reply, node: node.number(), asked: at })
    }

    /// Runs `wait_turn.lua`; without an instance it only asks.
    pub(super) async fn run_wait_turn(
        &self,
        claim: &Claim,
        asked: Asked,
        instance: Option<&str>,
        stood: Option<u64>,
    ) -> Result<Answer, StoreError> {
        let (instance, stood) = (instance.unwrap_or_default(), or_empty(stood));
        let (slots, named) = (or_empty(claim.slots.map(Slots::number)), or_empty(claim.named));
        let rest = [instance, WINDOW_MS, &self.position_kept, &stood, &slots, &named];
        self.run_claim(&WAIT_TURN, claim, asked, &rest).await
    }
}
