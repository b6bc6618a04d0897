//! Requests that wait in line: served, repeated, asked twice at once, given up, or left behind.

use std::time::Duration;

use tokio::time::sleep;

use crate::drive::asker::Question;
use crate::drive::client::Client;
use crate::history::{Kind, Outcome};

/// After this time a client that hung up is out of the line for certain, where nothing fails.
const LEFT: Duration = Duration::from_millis(1_600);

impl Client {
    /// Waits in line, works for a moment, and hands over by a release or by nothing at all.
    pub(super) async fn wait_once(&mut self, key: u32) {
        let wait_ms = self.chance.u64(50..2_000);
        let (token, ttl_ms) = (self.maybe_token(), self.short_ttl_ms());
        let claim = self.claim(key, token, ttl_ms).waiting(wait_ms);
        let Some(lease) = self.acquire(&claim).await else { return };
        if self.chance.u32(..3) == 0 {
            self.rest(1_500).await;
        }
        if self.chance.u32(..40) > 0 {
            self.work(lease).await;
        }
    }

    /// Waits by asking again and again with one token, on any instance.
    pub(super) async fn wait_by_asking_again(&mut self, key: u32) {
        let token = Some(self.asker.choose());
        for _ in 0..self.chance.u32(2..8) {
            let (wait_ms, ttl_ms) = (self.chance.u64(10..200), self.short_ttl_ms());
            let claim = self.claim(key, token.clone(), ttl_ms).waiting(wait_ms);
            if let Some(lease) = self.acquire(&claim).await {
                return self.work(lease).await;
            }
            if self.chance.u32(..4) == 0 {
                self.asker.turn();
            }
        }
    }

    /// Hands a key that nobody else wants to its second voice: nothing but the release wakes that one.
    pub(super) async fn hand_over_to_itself(&mut self) {
        let ttl_ms = self.chance.u64(1_000..2_000);
        let claim = self.own_claim(None, ttl_ms);
        let Some(lease) = self.acquire(&claim).await else { return };
        self.bring_twin();
        let (waiting, ending) = (claim.waiting(1_000), Question::about(Kind::Release, &lease));
        let after = Duration::from_millis(self.chance.u64(80..400));
        let (told, _) = tokio::join!(self.twin.ask(&waiting), self.asker.ask_after(after, &ending));
        if let Some(lease) = told.lease {
            self.twin.ask(&Question::about(Kind::Release, &lease)).await;
        }
    }

    /// Hangs up while it waits for a key that nobody else wants, and looks who waits once nobody does.
    pub(super) async fn leave_its_own_line(&mut self) {
        let claim = self.own_claim(None, 4_000);
        let Some(lease) = self.acquire(&claim).await else { return };
        self.bring_twin();
        let token = self.chance.bool().then(|| self.twin.choose());
        let waiting = Question { token, ..claim }.waiting(3_000);
        let patience = Duration::from_millis(self.chance.u64(50..200));
        self.twin.ask_for(&waiting, patience).await;
        sleep(LEFT).await;
        self.look(&lease).await;
        self.release(&lease).await;
    }

    /// Hangs up as a store that is far away grants its claim, a stream or a place in line, and waits
    /// with another token for what it may have been granted.
    pub(super) async fn hang_up_before_the_answer(&mut self) {
        let claim = self.own_claim(None, 3_000);
        let leaves = Question { token: self.maybe_token(), ..claim.clone() };
        self.bring_twin();
        match self.chance.u32(..3) {
            0 => self.hang_up_in_line(&claim, leaves.waiting(3_000)).await,
            kind => {
                let kind = if kind == 1 { Kind::Hold } else { Kind::Acquire };
                let patience = Duration::from_millis(self.chance.u64(21..39));
                self.twin.ask_for(&Question { kind, ..leaves }, patience).await;
            }
        }
        if let Some(lease) = self.acquire(&claim.waiting(4_000)).await {
            self.release(&lease).await;
        }
    }

    /// Has its second voice hang up in line, between the hint that the key is free and the answer to the
    /// question that follows it.
    async fn hang_up_in_line(&mut self, claim: &Question, waiting: Question) {
        let Some(lease) = self.acquire(claim).await else { return };
        let ending = Question::about(Kind::Release, &lease);
        let free = Duration::from_millis(self.chance.u64(100..200));
        let patience = free + Duration::from_millis(self.chance.u64(50..78));
        let release = self.asker.ask_after(free, &ending);
        tokio::join!(self.twin.ask_for(&waiting, patience), release);
    }

    /// Hangs up while it waits; with a token of its own it may come back for what it was given.
    pub(super) async fn vanish_from_the_line(&mut self, key: u32) {
        let wait_ms = self.chance.u64(20..2_000);
        let (token, ttl_ms) = (self.maybe_token(), self.short_ttl_ms());
        let claim = self.claim(key, token, ttl_ms).waiting(wait_ms);
        let patience = Duration::from_millis(self.chance.u64(0..wait_ms.min(200)));
        self.vanish(claim, patience).await;
    }

    /// Hangs up right after it has asked.
    pub(super) async fn vanish_at_once(&mut self) {
        let claim = self.any_claim();
        let patience = Duration::from_micros(self.chance.u64(0..1_500));
        self.vanish(claim, patience).await;
    }

    async fn vanish(&mut self, claim: Question, patience: Duration) {
        if self.chance.u32(..4) == 0 {
            self.ask_late(&claim).await;
        } else {
            let told = self.asker.ask_for(&claim, patience).await;
            match told.lease {
                Some(lease) => return self.work(lease).await,
                None if told.outcome == Outcome::Unknown => (),
                None => return,
            }
        }
        if claim.token.is_none() || self.chance.u32(..3) == 0 {
            return;
        }
        self.rest(100_000).await;
        let wait_ms = if self.chance.bool() { 0 } else { claim.asked.wait_ms };
        if let Some(lease) = self.acquire(&claim.waiting(wait_ms)).await {
            self.work(lease).await;
        }
    }

    /// Asks for one key with one token on two instances at once.
    pub(super) async fn ask_twice_at_once(&mut self, key: u32) {
        let (token, ttl_ms) = (Some(self.asker.choose()), self.short_ttl_ms());
        let claim = self.claim(key, token, ttl_ms).waiting(self.chance.u64(20..1_000));
        self.turn_twin();
        let (told, again) = tokio::join!(self.asker.ask(&claim), self.twin.ask(&claim));
        if told.outcome == Outcome::No && again.outcome == Outcome::No {
            self.doubt(&claim, &told).await;
        }
        if let Some(lease) = told.lease.or(again.lease) {
            self.work(lease).await;
        }
    }

    /// Waits in line, and gives the place up by another request on another instance.
    pub(super) async fn cancel(&mut self, key: u32) {
        let (token, ttl_ms) = (Some(self.asker.choose()), self.short_ttl_ms());
        let claim = self.claim(key, token, ttl_ms).waiting(1_000);
        let ending = Question::of(Kind::Release, key, claim.token.clone());
        let after = Duration::from_micros(self.chance.u64(..20_000));
        self.bring_twin();
        let (told, released) =
            tokio::join!(self.asker.ask(&claim), self.twin.ask_after(after, &ending));
        if told.outcome == Outcome::No {
            self.doubt(&claim, &told).await;
        }
        if let Some(lease) = told.lease {
            // It was granted before it was given up, or in spite of it.
            self.look(&lease).await;
            if released.outcome != Outcome::Yes {
                self.release(&lease).await;
            }
        }
    }
}
