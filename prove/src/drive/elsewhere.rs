//! Requests that their client gives up, to go on with the same token over another instance. They are for
//! a key that nobody else wants, so that what is wrong with it is their doing.

use std::ops::Range;
use std::time::Duration;

use tokio::time::sleep;

use crate::drive::asker::{Lease, Question};
use crate::drive::client::Client;
use crate::history::{Kind, Outcome};

/// How many milliseconds a client waits for an answer: longer than an instance takes to hear of a request,
/// and shorter than a network holds back the answer to it.
const PATIENCE_MS: Range<u64> = 300..700;

/// By then a network has let through what it holds back.
const THROUGH: Duration = Duration::from_millis(800);

impl Client {
    /// Gives a request up and goes on elsewhere, where there is another instance.
    pub(super) async fn go_on_elsewhere(&mut self) {
        self.turn_twin();
        if self.twin.instance == self.asker.instance {
            return;
        }
        let claim = self.own_claim(Some(self.asker.choose()), 2_000);
        if self.chance.bool() {
            self.renew_elsewhere(&claim).await;
        } else {
            self.release_elsewhere(&claim).await;
        }
    }

    /// Asks for less time, gives that up, and asks for more over another instance: nobody else gets
    /// the key within that.
    async fn renew_elsewhere(&mut self, claim: &Question) {
        let Some(lease) = self.acquire(claim).await else { return };
        let older = self.renewal(claim, &lease).lasting(self.chance.u64(100..300));
        let patience = Duration::from_millis(self.chance.u64(PATIENCE_MS));
        let told = self.twin.ask_for(&older, patience).await;
        if told.outcome == Outcome::Unknown {
            let newer = self.renewal(claim, &lease).lasting(2_000);
            if self.asker.ask(&newer).await.outcome == Outcome::Yes {
                sleep(THROUGH).await;
                self.try_with_another(claim).await;
            }
        }
        self.release(&lease).await;
    }

    /// Returns another acquire with the lease's token, or a refresh.
    fn renewal(&mut self, claim: &Question, lease: &Lease) -> Question {
        if self.chance.bool() { claim.clone() } else { Question::about(Kind::Refresh, lease) }
    }

    /// Asks for a lease, gives that up, and releases over another instance: the key is free from then on.
    async fn release_elsewhere(&mut self, claim: &Question) {
        let patience = Duration::from_millis(self.chance.u64(PATIENCE_MS));
        let told = self.twin.ask_for(claim, patience).await;
        if self.chance.bool() {
            self.asker.ask(claim).await;
        }
        let release = Question::of(Kind::Release, claim.key, claim.token.clone());
        let released = self.asker.ask(&release).await;
        if told.outcome == Outcome::Unknown && released.outcome != Outcome::Unknown {
            sleep(THROUGH).await;
            self.asker.ask(&Question { kind: Kind::Look, ..release }).await;
            self.try_with_another(claim).await;
        }
    }

    /// Asks for the key with a token that has nothing to do with what went before.
    async fn try_with_another(&mut self, claim: &Question) {
        let other = Question::claim(claim.key, Some(self.asker.choose()), 100);
        if let Some(lease) = self.acquire(&other).await {
            self.release(&lease).await;
        }
    }
}
