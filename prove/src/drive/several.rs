//! Claims of several keys: among all others, crosswise by two voices, and given up half-way.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::sleep;

use crate::drive::asker::{
    Asker, Body, Held, Lease, Missing, PATIENCE, Question, REST, Told, rests_after,
};
use crate::drive::client::Client;
use crate::history::{Asked, Kind, Outcome, SHARED, Said};
use crate::http::{AUTHORIZED, request};

/// How long a claim of keys that nobody else wants waits at most, in milliseconds: far longer than it has
/// to, so that one that is refused was waited for.
const CROSSWISE_MS: u64 = 3_000;

/// How often both voices claim two keys at once.
const CROSSINGS: u32 = 4;

/// One question about several keys, each with what is asked of it alone.
#[derive(Clone, Debug)]
struct Several {
    kind: Kind,
    token: Option<Held>,
    keys: Vec<(u32, Asked)>,
}

impl Several {
    fn claim(keys: &[u32], token: Option<Held>, ttl_ms: u64, wait_ms: u64) -> Self {
        let asked = Asked { ttl_ms: Some(ttl_ms), wait_ms, several: true, ..Asked::default() };
        let keys = keys.iter().map(|key| (*key, asked.clone())).collect();
        Self { kind: Kind::Acquire, token, keys }
    }

    /// A question about leases, some of which it names.
    fn about(kind: Kind, leases: &[Lease], named: bool) -> Option<Self> {
        let token = Some(leases.first()?.token.clone());
        let asked = |lease: &Lease| Asked {
            fencing_token: named.then_some(lease.fencing_token),
            several: true,
            ..Asked::default()
        };
        let keys = leases.iter().map(|lease| (lease.key, asked(lease))).collect();
        Some(Self { kind, token, keys })
    }

    /// The same keys, given up by the token.
    fn release(&self) -> Self {
        let asked = Asked { several: true, ..Asked::default() };
        let keys = self.keys.iter().map(|(key, _)| (*key, asked.clone())).collect();
        Self { kind: Kind::Release, token: self.token.clone(), keys }
    }

    fn written(&self) -> String {
        let (question, list) = match self.kind {
            Kind::Acquire => ("POST /locks", "keys"),
            Kind::Refresh => ("PUT /locks/refresh", "leases"),
            _ => ("DELETE /locks", "leases"),
        };
        let of_key = |(key, asked): &(u32, Asked)| {
            let mut its = json!({ "key": format!("k{key}") });
            match asked.slots {
                Some(SHARED) => its["shared"] = true.into(),
                Some(slots) => its["slots"] = slots.into(),
                None => (),
            }
            if let Some(number) = asked.fencing_token {
                its["fencing_token"] = number.into();
            }
            its
        };
        let mut body = json!({ list: self.keys.iter().map(of_key).collect::<Vec<Value>>() });
        let (_, common) = &self.keys[0];
        if let Some(ttl_ms) = common.ttl_ms {
            body["ttl_ms"] = ttl_ms.into();
        }
        if common.wait_ms > 0 {
            body["wait_ms"] = common.wait_ms.into();
        }
        let body = body.to_string();
        let length = format!("{AUTHORIZED}content-length: {}\r\n", body.len());
        let token = self.token.as_ref().map(|token| token.text.as_str());
        request(question, &length, token) + &body
    }

    /// What an answer means for one of the keys.
    fn of_key(
        &self,
        key: u32,
        answer: &Result<(u16, Body), Missing>,
    ) -> Result<(u16, Body), Missing> {
        let (status, whole) = answer.as_ref().map_err(|missing| *missing)?;
        let name = format!("k{key}");
        let found = |all: &[Value]| {
            let found = all.iter().find(|one| one["key"] == *name)?;
            serde_json::from_value::<Said>(found.clone()).ok()
        };
        let is_lost = self.kind != Kind::Acquire && whole.code == "lock_lost";
        let (status, said) = match (found(&whole.leases), found(&whole.lost)) {
            (Some(said), _) | (None, Some(said)) => (*status, said),
            // All others were refreshed or released.
            _ if is_lost => return Ok((200, Body::default())),
            _ if whole.key == name => (*status, Said { mine: whole.said.mine, ..Said::default() }),
            _ => (*status, Said::default()),
        };
        let (code, outcome, token) =
            (whole.code.clone(), whole.outcome.clone(), whole.token.clone());
        Ok((status, Body { code, outcome, token, said, ..Body::default() }))
    }
}

impl Asker {
    /// Asks about several keys, and hangs up without an answer within this time. Each key has a line.
    async fn ask_several(&mut self, several: &Several, patience: Duration) -> Vec<Told> {
        let (sent, answer) = self.exchange(&several.written(), patience).await;
        let of_key = |(key, asked): &(u32, Asked)| {
            let (kind, token, asked) = (several.kind, several.token.clone(), asked.clone());
            let question = Question { kind, key: *key, token, asked };
            self.record(&question, sent, several.of_key(*key, &answer))
        };
        let told = several.keys.iter().map(of_key).collect();
        if rests_after(&answer) {
            sleep(REST).await;
        }
        told
    }

    async fn ask_in_time(&mut self, several: &Several) -> Vec<Told> {
        let wait = several.keys[0].1.wait_ms;
        self.ask_several(several, PATIENCE + Duration::from_millis(wait)).await
    }

    /// Claims several keys and gives them up at once, also where nobody knows.
    async fn take_and_give(&mut self, claim: &Several) {
        let told = self.ask_in_time(claim).await;
        if told.iter().any(|one| one.outcome != Outcome::No) {
            self.ask_in_time(&claim.release()).await;
        }
    }
}

impl Client {
    /// Takes several keys, works under them, and gives them back.
    pub(super) async fn several(&mut self) {
        let mut keys: Vec<_> = (0..self.chance.u32(2..5)).map(|_| self.any_key()).collect();
        keys.sort_unstable();
        keys.dedup();
        self.chance.shuffle(&mut keys);
        let wait_ms = if self.chance.bool() { 0 } else { self.chance.u64(20..1_500) };
        let (token, ttl_ms) = (self.maybe_token(), self.ttl_ms());
        let mut claim = Several::claim(&keys, token, ttl_ms, wait_ms);
        if self.shares() {
            for (key, asked) in &mut claim.keys {
                asked.slots = self.slots_of(*key);
            }
        }
        if self.chance.u32(..6) == 0 {
            let patience = Duration::from_micros(self.chance.u64(..100_000));
            self.asker.ask_several(&claim, patience).await;
            return;
        }
        let told = self.asker.ask_in_time(&claim).await;
        let leases: Vec<_> = told.iter().filter_map(|one| one.lease.clone()).collect();
        match told[0].outcome {
            Outcome::Yes => self.work_under(&leases).await,
            Outcome::No => {
                let at = self.chance.usize(..told.len());
                let (key, asked) = claim.keys[at].clone();
                let question = Question { kind: Kind::Acquire, key, token: claim.token, asked };
                self.doubt(&question, &told[at]).await;
            }
            Outcome::Unknown if claim.token.is_some() => {
                self.asker.ask_in_time(&claim.release()).await;
            }
            Outcome::Unknown => (),
        }
    }

    async fn work_under(&mut self, leases: &[Lease]) {
        self.rest(4_000).await;
        for kind in [Kind::Refresh, Kind::Release] {
            let named = self.chance.bool();
            match Several::about(kind, leases, named) {
                Some(_) if kind == Kind::Refresh && self.chance.bool() => (),
                Some(question) if self.chance.u32(..4) > 0 => {
                    self.asker.ask_in_time(&question).await;
                }
                _ if kind == Kind::Release => {
                    for lease in leases {
                        self.release(lease).await;
                    }
                }
                _ => (),
            }
        }
    }

    /// Lets both voices claim two keys that nobody else wants, in opposite orders, at the same time.
    pub(super) async fn cross(&mut self) {
        let [one, other] = self.own_pair();
        for _ in 0..CROSSINGS {
            self.bring_twin();
            let (here, there) = (self.asker.choose(), self.twin.choose());
            let here = Several::claim(&[one, other], Some(here), 5_000, CROSSWISE_MS);
            let there = Several::claim(&[other, one], Some(there), 5_000, CROSSWISE_MS);
            tokio::join!(self.asker.take_and_give(&here), self.twin.take_and_give(&there));
        }
    }

    /// Hangs up while it waits for the second of two keys; the first is free then.
    pub(super) async fn vanish_between(&mut self) {
        let [one, other] = self.own_pair();
        self.bring_twin();
        let held = Several::claim(&[other], Some(self.twin.choose()), 5_000, CROSSWISE_MS);
        self.twin.ask_in_time(&held).await;
        let token = self.maybe_token();
        let waits = Several::claim(&[other, one], token, 8_000, CROSSWISE_MS);
        let patience = Duration::from_millis(self.chance.u64(50..300));
        self.asker.ask_several(&waits, patience).await;
        self.twin.ask_in_time(&held.release()).await;
        let next = Several::claim(&[one], Some(self.asker.choose()), 500, CROSSWISE_MS);
        self.asker.take_and_give(&next).await;
    }

    /// The two keys that only this client wants, the second of several.
    fn own_pair(&self) -> [u32; 2] {
        self.shared.amount.own_pair(self.asker.client)
    }
}
