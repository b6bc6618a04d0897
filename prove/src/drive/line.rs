//! Requests that wait in line: served, repeated, asked twice at once, given up, or left behind.

use std::time::Duration;

use tokio::time::sleep;

use crate::drive::asker::Question;
use crate::drive::client::{Client, Lease, Wish, granted};
use crate::history::{Kind, Outcome};

/// After this time a client that hung up is out of the line for certain, where nothing fails.
const LEFT: Duration = Duration::from_millis(1_600);

impl Client {
    /// Waits in line, works for a moment, and hands over by a release or by nothing at all.
    pub(super) async fn wait_once(&mut self, key: u32) {
        let wait_ms = self.chance.u64(50..2_000);
        let ttl_ms = self.short_ttl_ms();
        let (token, slots) = (self.maybe_token(), self.slots);
        let wish = Wish { key, token, ttl_ms, wait_ms, slots };
        let Some(lease) = self.acquire(&wish).await else { return };
        self.write(&lease);
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
            let wait_ms = self.chance.u64(10..200);
            let (token, ttl_ms) = (token.clone(), self.short_ttl_ms());
            let wish = Wish { key, token, ttl_ms, wait_ms, slots: self.slots };
            if let Some(lease) = self.acquire(&wish).await {
                return self.work(lease).await;
            }
            if self.chance.u32(..4) == 0 {
                self.asker.turn();
            }
        }
    }

    /// Hands a key that nobody else wants to its second voice: nothing but the release wakes that one.
    pub(super) async fn hand_over_to_itself(&mut self) {
        let key = self.shared.amount.own_key(self.asker.client);
        let ttl_ms = self.chance.u64(1_000..2_000);
        let wish = Wish { key, token: None, ttl_ms, wait_ms: 0, slots: None };
        let Some(lease) = self.acquire(&wish).await else { return };
        self.bring_twin();
        let wish = Wish { wait_ms: 1_000, ..wish };
        let (waiting, ending) = (wish.question(Kind::Acquire), ended(&lease));
        let after = Duration::from_millis(self.chance.u64(80..400));
        let (told, _) = tokio::join!(self.twin.ask(&waiting), self.asker.ask_after(after, &ending));
        if let Some(lease) = granted(&wish, &told) {
            self.twin.ask(&ended(&lease)).await;
        }
    }

    /// Hangs up while it waits for a key that nobody else wants, and looks who waits once nobody does.
    pub(super) async fn leave_its_own_line(&mut self) {
        let key = self.shared.amount.own_key(self.asker.client);
        let wish = Wish { key, token: None, ttl_ms: 4_000, wait_ms: 0, slots: None };
        let Some(lease) = self.acquire(&wish).await else { return };
        self.bring_twin();
        let token = self.chance.bool().then(|| self.twin.choose());
        let waiting = Wish { token, wait_ms: 3_000, ..wish }.question(Kind::Acquire);
        let patience = Duration::from_millis(self.chance.u64(50..200));
        self.twin.ask_for(&waiting, patience).await;
        sleep(LEFT).await;
        self.look(&lease).await;
        self.release(&lease).await;
    }

    /// Hangs up as a store that is far away grants its claim, a stream or a place in line, and waits
    /// with another token for what it may have been granted.
    pub(super) async fn hang_up_before_the_answer(&mut self) {
        let key = self.shared.amount.own_key(self.asker.client);
        let wish = Wish { key, token: None, ttl_ms: 3_000, wait_ms: 0, slots: None };
        let leaves = Wish { token: self.maybe_token(), ..wish.clone() };
        self.bring_twin();
        match self.chance.u32(..3) {
            0 => self.hang_up_in_line(&wish, leaves).await,
            kind => {
                let kind = if kind == 1 { Kind::Hold } else { Kind::Acquire };
                let patience = Duration::from_millis(self.chance.u64(21..39));
                self.twin.ask_for(&leaves.question(kind), patience).await;
            }
        }
        if let Some(lease) = self.acquire(&Wish { wait_ms: 4_000, ..wish }).await {
            self.release(&lease).await;
        }
    }

    /// Has its second voice hang up in line, between the hint that the key is free and the answer to the
    /// question that follows it.
    async fn hang_up_in_line(&mut self, wish: &Wish, leaves: Wish) {
        let Some(lease) = self.acquire(wish).await else { return };
        let (waiting, ending) =
            (Wish { wait_ms: 3_000, ..leaves }.question(Kind::Acquire), ended(&lease));
        let free = Duration::from_millis(self.chance.u64(100..200));
        let patience = free + Duration::from_millis(self.chance.u64(50..78));
        let release = self.asker.ask_after(free, &ending);
        tokio::join!(self.twin.ask_for(&waiting, patience), release);
    }

    /// Hangs up while it waits; with a token of its own it may come back for what it was given.
    pub(super) async fn vanish_from_the_line(&mut self, key: u32) {
        let wait_ms = self.chance.u64(20..2_000);
        let (token, ttl_ms) = (self.maybe_token(), self.short_ttl_ms());
        let wish = Wish { key, token, ttl_ms, wait_ms, slots: self.slots };
        let patience = Duration::from_millis(self.chance.u64(0..wait_ms.min(200)));
        self.vanish(wish, patience).await;
    }

    /// Hangs up right after it has asked.
    pub(super) async fn vanish_at_once(&mut self) {
        let wish = self.any_wish();
        let patience = Duration::from_micros(self.chance.u64(0..1_500));
        self.vanish(wish, patience).await;
    }

    async fn vanish(&mut self, wish: Wish, patience: Duration) {
        let told = self.asker.ask_for(&wish.question(Kind::Acquire), patience).await;
        if let Some(lease) = granted(&wish, &told) {
            return self.work(lease).await;
        }
        if told.outcome != Outcome::Unknown || wish.token.is_none() || self.chance.u32(..3) == 0 {
            return;
        }
        self.rest(100_000).await;
        let wait_ms = if self.chance.bool() { 0 } else { wish.wait_ms };
        if let Some(lease) = self.acquire(&Wish { wait_ms, ..wish }).await {
            self.work(lease).await;
        }
    }

    /// Asks for one key with one token on two instances at once.
    pub(super) async fn ask_twice_at_once(&mut self, key: u32) {
        let token = Some(self.asker.choose());
        let wait_ms = self.chance.u64(20..1_000);
        let wish = Wish { key, token, ttl_ms: self.short_ttl_ms(), wait_ms, slots: self.slots };
        let question = wish.question(Kind::Acquire);
        self.twin.turn_to(self.asker.instance);
        self.twin.turn();
        let (told, again) = tokio::join!(self.asker.ask(&question), self.twin.ask(&question));
        let lease = granted(&wish, &told).or_else(|| granted(&wish, &again));
        match lease {
            Some(lease) => self.work(lease).await,
            None if told.outcome == Outcome::No && again.outcome == Outcome::No => {
                self.doubt(&question, &told).await;
            }
            None => (),
        }
    }

    /// Waits in line, and gives the place up by another request on another instance.
    pub(super) async fn cancel(&mut self, key: u32) {
        let token = Some(self.asker.choose());
        let (ttl_ms, slots) = (self.short_ttl_ms(), self.slots);
        let wish = Wish { key, token, ttl_ms, wait_ms: 1_000, slots };
        let waiting = wish.question(Kind::Acquire);
        let ending = Question::of(Kind::Release, key, wish.token.clone());
        let after = Duration::from_micros(self.chance.u64(..20_000));
        self.bring_twin();
        let (told, released) =
            tokio::join!(self.asker.ask(&waiting), self.twin.ask_after(after, &ending));
        if let Some(lease) = granted(&wish, &told) {
            // It was granted before it was given up, or in spite of it.
            self.look(&lease).await;
            if released.outcome != Outcome::Yes {
                self.release(&lease).await;
            }
        } else if told.outcome == Outcome::No {
            self.doubt(&waiting, &told).await;
        }
    }
}

/// Returns the question that gives a lease back.
fn ended(lease: &Lease) -> Question {
    Question::of(Kind::Release, lease.key, Some(lease.token.clone()))
}
