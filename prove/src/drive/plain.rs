//! Leases that are taken, refreshed, given back, forgotten or outlived by one client.

use crate::drive::asker::{Lease, Question};
use crate::drive::client::Client;
use crate::history::{Asked, Kind};

/// How long after its end a lease may still be meddled with, in milliseconds.
const LATE_MS: u64 = 300;

impl Client {
    /// Takes a lease, works under it, and gives it back.
    pub(super) async fn cycle(&mut self) {
        let claim = self.any_claim();
        if let Some(lease) = self.acquire(&claim).await {
            self.work(lease).await;
        }
    }

    /// Refreshes or replaces the lease now and then, and gives it back.
    pub(super) async fn work(&mut self, mut lease: Lease) {
        while self.chance.u32(..4) == 0 {
            if self.chance.u32(..6) == 0 {
                let ttl_ms = self.ttl_ms();
                let claim = self.claim(lease.key, Some(lease.token.clone()), ttl_ms);
                match self.replace(&claim, &lease).await {
                    Some(other) => lease = other,
                    None => return,
                }
            } else if !self.refresh(&mut lease).await {
                return;
            }
        }
        self.release(&lease).await;
    }

    /// Uses the same token for one lease after another, and lets requests for the earlier ones come
    /// late.
    pub(super) async fn one_token_many_leases(&mut self) {
        let token = Some(self.lasting.clone());
        let key = self.any_key();
        let mut earlier = None;
        for _ in 0..self.chance.u32(2..5) {
            let claim = Question { key, token: token.clone(), ..self.any_claim() };
            let Some(lease) = self.acquire(&claim).await else { return };
            if self.chance.u32(..3) == 0 {
                self.late_words(earlier.as_ref()).await;
            }
            match self.chance.u32(..8) {
                0 => self.outlive(&lease, 20).await,
                1 => (),
                _ => self.release(&lease).await,
            }
            earlier = Some(lease);
        }
    }

    /// A refresh or a release that names a lease which its client has given up already.
    async fn late_words(&mut self, earlier: Option<&Lease>) {
        let Some(lease) = earlier else { return };
        let kind = if self.chance.bool() { Kind::Refresh } else { Kind::Release };
        self.asker.ask(&Question::named(kind, lease)).await;
    }

    /// Takes a lease and lets it end by itself, which the next who asks finds out.
    pub(super) async fn abandon(&mut self) {
        let claim = self.any_claim().lasting(self.chance.u64(100..250));
        self.acquire(&claim).await;
    }

    /// Takes a lease, pauses for longer than it lasts, and asks for more time.
    pub(super) async fn pause_past_the_end(&mut self) {
        let claim = self.any_claim().lasting(self.chance.u64(100..250));
        let Some(mut lease) = self.acquire(&claim).await else { return };
        self.outlive(&lease, LATE_MS).await;
        if self.refresh(&mut lease).await {
            self.release(&lease).await;
        }
    }

    /// Refreshes or releases a key that it does not have.
    pub(super) async fn meddle(&mut self) {
        let token = self.asker.choose();
        let key = self.any_key();
        let stranger = Lease { key, token, fencing_token: self.chance.u64(1..1 << 40), until: 0 };
        if self.chance.bool() {
            self.refresh(&mut stranger.clone()).await;
        } else {
            self.release(&stranger).await;
        }
    }

    /// Asks for something without the right API key.
    pub(super) async fn trespass(&mut self, key: u32) {
        use Kind::{Acquire, ForceRelease, Hold, Look, Refresh, Release};
        let kinds = [Acquire, ForceRelease, Hold, Look, Refresh, Release];
        let kind = kinds[self.chance.usize(..kinds.len())];
        let asked = Asked { unauthorized: true, ..Asked::default() };
        let token = Some(self.lasting.clone());
        self.asker.ask(&Question { kind, key, token, asked }).await;
    }

    /// Ends whoever holds a key. A store that cannot share is asked by the number that a look tells.
    pub(super) async fn force(&mut self) {
        let key = self.any_key();
        let mut force = Question::of(Kind::ForceRelease, key, None);
        if self.shared.amount.sharers == 0 {
            let seen = self.asker.ask(&Question::of(Kind::Look, key, None)).await;
            let Some(number) = seen.said.fencing_token else { return };
            force.asked.fencing_token = Some(number);
        }
        self.asker.ask(&force).await;
    }
}
