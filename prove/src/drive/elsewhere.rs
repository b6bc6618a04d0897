//! Requests that their client gives up, to go on with the same token over another instance. They are for
//! a key that nobody else wants, so that what is wrong with it is their doing.

use std::ops::Range;
use std::time::Duration;

use tokio::time::sleep;

use crate::drive::asker::{Held, Question};
use crate::drive::client::{Client, Lease, Wish, question};
use crate::history::{Asked, Kind, Outcome};

/// How many milliseconds a client waits for an answer: longer than an instance takes to hear of a request,
/// and shorter than a network holds back the answer to it.
const PATIENCE_MS: Range<u64> = 300..700;

/// By then a network has let through what it holds back.
const THROUGH: Duration = Duration::from_millis(800);

impl Client {
    /// Gives a request up and goes on elsewhere, where there is another instance.
    pub(super) async fn go_on_elsewhere(&mut self) {
        self.twin.turn_to(self.asker.instance);
        self.twin.turn();
        if self.twin.instance == self.asker.instance {
            return;
        }
        let (key, token) =
            (self.shared.amount.own_key(self.asker.client), Some(self.asker.choose()));
        let wish = Wish { key, token, ttl_ms: 2_000, wait_ms: 0, slots: None };
        if self.chance.bool() {
            self.renew_elsewhere(&wish).await;
        } else {
            self.release_elsewhere(&wish).await;
        }
    }

    /// Asks for less time, gives that up, and asks for more over another instance: nobody else gets
    /// the key within that.
    async fn renew_elsewhere(&mut self, wish: &Wish) {
        let Some(lease) = self.acquire(wish).await else { return };
        let short = Wish { ttl_ms: self.chance.u64(100..300), ..wish.clone() };
        let older = if self.chance.bool() {
            short.question(Kind::Acquire)
        } else {
            question(
                Kind::Refresh,
                &lease,
                Asked { ttl_ms: Some(short.ttl_ms), ..Asked::default() },
            )
        };
        let patience = Duration::from_millis(self.chance.u64(PATIENCE_MS));
        let told = self.twin.ask_for(&older, patience).await;
        if told.outcome == Outcome::Unknown && self.renewed(wish, &lease).await {
            sleep(THROUGH).await;
            self.try_with_another(wish).await;
        }
        self.release(&lease).await;
    }

    async fn renewed(&mut self, wish: &Wish, lease: &Lease) -> bool {
        let newer = if self.chance.bool() {
            wish.question(Kind::Acquire)
        } else {
            let asked = Asked { ttl_ms: Some(wish.ttl_ms), ..Asked::default() };
            question(Kind::Refresh, lease, asked)
        };
        self.asker.ask(&newer).await.outcome == Outcome::Yes
    }

    /// Asks for a lease, gives that up, and releases over another instance: the key is free from then on.
    async fn release_elsewhere(&mut self, wish: &Wish) {
        let patience = Duration::from_millis(self.chance.u64(PATIENCE_MS));
        let told = self.twin.ask_for(&wish.question(Kind::Acquire), patience).await;
        if self.chance.bool() {
            self.asker.ask(&wish.question(Kind::Acquire)).await;
        }
        let release = Question::of(Kind::Release, wish.key, wish.token.clone());
        let released = self.asker.ask(&release).await;
        if told.outcome == Outcome::Unknown && released.outcome != Outcome::Unknown {
            sleep(THROUGH).await;
            self.asker.ask(&Question { kind: Kind::Look, ..release }).await;
            self.try_with_another(wish).await;
        }
    }

    /// Asks for the key with a token that has nothing to do with what went before.
    async fn try_with_another(&mut self, wish: &Wish) {
        let token: Held = self.asker.choose();
        let other = Wish { token: Some(token), ttl_ms: 100, ..wish.clone() };
        if let Some(lease) = self.acquire(&other).await {
            self.release(&lease).await;
        }
    }
}
