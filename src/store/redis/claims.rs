//! Claims: the scripts that grant, and their answers.

use std::time::Instant;

use uuid::Uuid;

use crate::lock::error::{StoreError, Verb};
use crate::lock::heard_out::caller_is_gone;
use crate::lock::lease::{Claim, Owner};
use crate::lock::slots::Slots;
use crate::lock::store::Attempt;
use crate::lock::time::{Ttl, Uptime};
use crate::store::redis::clock::latest_believable_micros;
use crate::store::redis::deadline::When;
use crate::store::redis::replies::{held, malformed, shared, status};
use crate::store::redis::script::{Reply, Script, TRY_ACQUIRE, WAIT_TURN, or_empty};
use crate::store::redis::target::Target;
use crate::store::redis::{RETENTION_MS, RedisStore};

/// The time that the waiters of a dead instance may hold up the line. Each question of an instance
/// moves this window, so it must be several times their longest sleep.
const WINDOW_MS: &str = "3000";

/// How often a claim is asked for again if the key was given up while the question was on its way,
/// or little before.
const ASKED_AGAIN: usize = 2;

/// A request to the store.
pub(super) struct Request {
    /// By this it gives up what it gets, if its client is gone.
    pub(super) name: String,
    pub(super) asked: Uptime,
    /// The time in which its calls may act.
    pub(super) when: When,
    /// A wider lease of the token, of which the store has told this request before, in its words;
    /// or empty.
    wider: String,
}

impl Request {
    /// A request that is made now, and whose calls may act until then.
    pub(super) fn now(when: When) -> Self {
        Self {
            name: Uuid::new_v4().simple().to_string(),
            asked: Uptime::now(),
            when,
            wider: String::new(),
        }
    }
}

impl RedisStore {
    /// Asks for a claim that does not wait; again, if the key was given up since and the client is
    /// still there.
    pub(super) async fn ask_for(&self, claim: &Claim) -> Result<Attempt, StoreError> {
        let mut again = ASKED_AGAIN;
        let mut wider = String::new();
        loop {
            let (request, mut reply) = self.ask_once(claim, wider).await?;
            if caller_is_gone() || again == 0 || reply.word() != "given_up" {
                return self.attempted(claim, request, reply);
            }
            wider = reply.text().unwrap_or_default();
            again -= 1;
        }
    }

    /// Asks for a claim that does not wait, by the request that it tells.
    async fn ask_once(&self, claim: &Claim, wider: String) -> Result<(Request, Reply), StoreError> {
        // One call finds that claims wait, or leases share the key.
        let request = Request { wider, ..Request::now(self.in_time(2)) };
        let tried = match claim.slots().is_alone() {
            true => Some(self.run_claim(&TRY_ACQUIRE, claim, &request, &[]).await?),
            false => None,
        };
        let reply = match tried.filter(|reply| reply.word() != "line") {
            Some(reply) => reply,
            // Nothing was done: leases that share the key, or claims in line, are for `wait_turn`.
            None => self.run_wait_turn(claim, &request, None, None).await?,
        };
        Ok((request, reply))
    }

    /// Reads the answer to a claim that does not wait.
    pub(super) fn attempted(
        &self,
        claim: &Claim,
        request: Request,
        mut reply: Reply,
    ) -> Result<Attempt, StoreError> {
        let verb = Verb::TryAcquire;
        let held = match reply.word() {
            "granted" | "again" => {
                return self.win(verb, claim, request, &mut reply).map(Attempt::Won);
            }
            "held" => held(&claim.key, &mut reply),
            "shared" => shared(&claim.key, &mut reply),
            // The key may be free by now, but was held after the request, or its claim was released.
            "given_up" => Some(status(&claim.key, None, 0)),
            _ => None,
        };
        held.map(Attempt::Held).ok_or_else(|| malformed(verb))
    }

    /// Runs a script that grants a claim; `rest` follows the arguments of `try_acquire.lua`.
    ///
    /// How old a question is can be told to within a round trip. One that may be from before the key
    /// was given up is granted, and its lease is in doubt: the client may have been refused since.
    async fn run_claim(
        &self,
        script: &'static Script,
        claim: &Claim,
        request: &Request,
        rest: &[&str],
    ) -> Result<Reply, StoreError> {
        let ttl = claim.ttl.as_millis();
        let common = [
            claim.token.expose(),
            &ttl.to_string(),
            claim.owner.as_ref().map_or("", Owner::as_str),
            &RETENTION_MS.to_string(),
            &self.floor.least().to_string(),
            &latest_believable_micros().to_string(),
            &or_empty(self.prefixes.max_hold(&claim.key).map(Ttl::as_millis)),
            &request.name,
        ];
        let began = Instant::now();
        let args = [&common[..], rest].concat();
        let answered = self.run(script, &claim.key, &args, request.when).await;
        let answered = answered.map_err(|error| error.of_claim(claim.origin));
        if let Err(error) = &answered {
            let target = Target::of_client(&claim.key, &claim.token, None);
            self.give_up_unheard(&target, request, error.effect).await;
        }
        let answered = answered?;
        self.replicated(script, claim, &answered, began).await?;
        Ok(answered.0)
    }

    /// Runs `wait_turn.lua`; without an instance it only asks.
    pub(super) async fn run_wait_turn(
        &self,
        claim: &Claim,
        request: &Request,
        instance: Option<&str>,
        stood: Option<u64>,
    ) -> Result<Reply, StoreError> {
        let (instance, stood) = (instance.unwrap_or_default(), or_empty(stood));
        let slots = or_empty(claim.slots.map(Slots::number));
        let rest = [instance, WINDOW_MS, &self.position_kept, &stood, &slots, &request.wider];
        self.run_claim(&WAIT_TURN, claim, request, &rest).await
    }
}
