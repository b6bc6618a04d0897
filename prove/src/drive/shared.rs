//! Leases that share a key: slots whose number changes as in a rolling deploy, readers and writers,
//! and tokens that change with how many others they share their key.

use crate::drive::asker::{Lease, MILLISECOND, Question};
use crate::drive::client::Client;
use crate::history::{Kind, Nanos, Outcome, SHARED};

/// How long a deploy lasts, and by how much later each client follows.
const DEPLOY: Nanos = 6_000 * MILLISECOND;
const BEHIND: Nanos = 60 * MILLISECOND;

impl Client {
    /// One of the things that are done with keys that leases share.
    pub(super) async fn together(&mut self) {
        let key = self.any_key();
        self.slots = self.slots_of(key);
        self.units = (self.chance.u32(..10) < 5).then(|| self.chance.u16(1..4));
        match self.chance.u32(..100) {
            0..30 => self.share(key).await,
            30..34 => self.several().await,
            34..52 => self.change_share(key).await,
            52..62 => self.wait_once(key).await,
            62..66 => self.wait_by_asking_again(key).await,
            66..71 => self.vanish_from_the_line(key).await,
            71..75 => self.ask_twice_at_once(key).await,
            75..78 => self.cancel(key).await,
            78..84 => self.hold(key).await,
            84..87 => self.one_token_many_leases().await,
            87..91 => self.abandon().await,
            91..93 => self.pause_past_the_end().await,
            93..95 => self.vanish_at_once().await,
            95 => self.meddle().await,
            96 => self.trespass(key).await,
            97 => self.force().await,
            98 => self.wait_beside_its_own().await,
            _ => self.look_at(key).await,
        }
    }

    /// The slots of a claim: two keys have slots, two have readers and writers, two have all kinds.
    pub(super) fn slots_of(&mut self, key: u32) -> Option<u16> {
        let first = self.shared.amount.shared_keys().start;
        let kind = (key - first) / 2;
        let chance = self.chance.u32(..100);
        match (kind, chance) {
            (0, 0..96) => Some(self.deployed()),
            (1, 0..80) => Some(SHARED),
            (2, 0..40) => Some(self.chance.u16(2..6)),
            (2, 40..75) => Some(SHARED),
            // An exclusive claim may say so, and need not.
            _ => self.chance.bool().then_some(1),
        }
    }

    /// The slots that this client's version names: 5, then 3, and 5 again.
    fn deployed(&self) -> u16 {
        let behind = Nanos::from(self.asker.client) * BEHIND;
        let deploys = (self.shared.recorder.now() + behind) / DEPLOY;
        if deploys.is_multiple_of(2) { 5 } else { 3 }
    }

    /// Takes a lease that shares, works beside others, and gives it back, mostly.
    async fn share(&mut self, key: u32) {
        let wait_ms = if self.chance.bool() { 0 } else { self.chance.u64(20..800) };
        let (token, ttl_ms) = (self.maybe_token(), self.short_ttl_ms());
        let claim = self.claim(key, token, ttl_ms).waiting(wait_ms);
        let Some(lease) = self.acquire(&claim).await else { return };
        self.rest(6_000).await;
        if self.chance.u32(..5) == 0 {
            self.look(&lease).await;
        }
        match self.chance.u32(..40) {
            0 => (),
            1 => self.force_one(&lease).await,
            _ => self.work(lease).await,
        }
    }

    /// Waits for a key that nobody else wants beside two leases of its own: a short one that it leaves,
    /// and one that would last, which it keeps or gives back. There is room once the short one is over.
    async fn wait_beside_its_own(&mut self) {
        let ttl_ms = self.chance.u64(100..250);
        let short = self.own_claim(None, ttl_ms).sharing(Some(2));
        let lasts = short.clone().lasting(self.chance.u64(2_000..3_000));
        let Some(lasting) = self.acquire(&lasts).await else { return };
        let mut waits = short.clone().waiting(1_500);
        if self.acquire(&short).await.is_some() {
            if self.chance.bool() {
                self.release(&lasting).await;
                waits = waits.sharing(Some(1));
            }
            if let Some(lease) = self.acquire(&waits).await {
                self.release(&lease).await;
            }
        }
        if waits.asked.slots != Some(1) {
            self.release(&lasting).await;
        }
    }

    /// Asks for a key that its token has with other slots: it becomes exclusive, a reader, or one of
    /// more or fewer than before.
    async fn change_share(&mut self, key: u32) {
        let token = Some(self.asker.choose());
        let wait_ms = if self.chance.bool() { 0 } else { self.chance.u64(20..600) };
        let ttl_ms = self.chance.u64(150..500);
        let claim = self.claim(key, token, ttl_ms).waiting(wait_ms);
        let Some(mut lease) = self.acquire(&claim).await else { return };
        for _ in 0..self.chance.u32(1..5) {
            self.rest(3_000).await;
            if self.chance.u32(..6) == 0 {
                self.asker.turn();
            }
            let slots = match self.chance.u32(..10) {
                0..3 => Some(1),
                3..5 => Some(SHARED),
                5..8 => Some(self.chance.u16(2..6)),
                8 => self.slots,
                _ => None,
            };
            match self.change(claim.clone().sharing(slots), &lease).await {
                Some(changed) => lease = changed,
                None => return,
            }
        }
        self.work(lease).await;
    }

    /// Asks for another share; returns the lease that the token then has, if that is known.
    async fn change(&mut self, question: Question, lease: &Lease) -> Option<Lease> {
        if self.chance.u32(..8) > 0 {
            return self.replace(&question, lease).await;
        }
        // Without the number the lease stays as it is.
        let told = self.asker.ask(&question).await;
        match told.outcome {
            Outcome::Yes => told.lease,
            Outcome::No if told.own() == Some(lease.fencing_token) => Some(lease.clone()),
            _ => {
                self.release(lease).await;
                None
            }
        }
    }

    /// Ends one lease of a key by its number, as an operator does with a slot that leaks.
    async fn force_one(&mut self, lease: &Lease) {
        let question = Question::named(Kind::ForceRelease, lease);
        self.asker.ask(&Question { token: None, ..question }).await;
    }
}
