//! Requests that their client gives up, to go on with the same token, and that arrive after what it asks
//! then. They are for a key that nobody else wants, so that what is wrong with it is their doing.

use std::io;
use std::ops::Range;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use crate::drive::asker::{Asker, Missing, PATIENCE, Question, Told, written};
use crate::drive::client::Client;
use crate::history::{Kind, Line, Outcome};
use crate::http::Connection;

/// How many milliseconds a client waits for an answer: longer than an instance takes to hear of a request,
/// and shorter than a network holds back the answer to it.
const PATIENCE_MS: Range<u64> = 300..700;

/// By then a network has let through what it holds back.
const THROUGH: Duration = Duration::from_millis(800);

impl Client {
    /// Gives requests up, and goes on with their token before they arrive.
    pub(super) async fn come_late(&mut self) {
        let ttl_ms = self.chance.u64(1_500..2_500);
        let claim = self.own_claim(Some(self.asker.choose()), ttl_ms);
        if self.chance.u32(..3) == 0 {
            self.asker.turn();
        }
        match self.chance.u32(..8) {
            0..3 => self.begin_late(&claim).await,
            3..5 => self.change_late(&claim).await,
            5 | 6 => self.resume_and_vanish(&claim).await,
            _ => self.give_up_twice(&claim).await,
        }
    }

    /// Asks for a lease or a stream once more before the first request arrives.
    async fn begin_late(&mut self, claim: &Question) {
        let kind = if self.chance.u32(..3) == 0 { Kind::Acquire } else { Kind::Hold };
        let mut late = Question { kind, ..claim.clone() };
        if kind == Kind::Hold && self.chance.bool() {
            late.asked.linger_ms = self.chance.u64(50..500);
        }
        if self.chance.u32(..3) == 0 {
            late = late.waiting(self.chance.u64(50..1_000));
        }
        self.ask_late(&late).await;
        if self.chance.bool() {
            return self.hold_for(claim.clone().waiting(500)).await;
        }
        if let Some(lease) = self.acquire(&claim.clone().waiting(500)).await {
            self.try_meanwhile(claim).await;
            self.work(lease).await;
        }
    }

    /// Refreshes, replaces or releases a lease once more before the first request for that arrives.
    async fn change_late(&mut self, claim: &Question) {
        let Some(mut lease) = self.acquire(claim).await else { return };
        let less = self.chance.u64(100..300);
        let late = match self.chance.u32(..5) {
            0 => Question::about(Kind::Refresh, &lease),
            1 => Question::named(Kind::Refresh, &lease),
            2 => claim.clone(),
            3 => Question { kind: Kind::Hold, ..claim.clone() },
            _ => Question::named(Kind::Release, &lease),
        };
        let ends = late.kind == Kind::Release;
        let names = self.chance.bool() && matches!(late.kind, Kind::Acquire | Kind::Hold);
        let late = if names { late.naming(lease.fencing_token) } else { late };
        self.ask_late(&late.lasting(less)).await;
        if names || ends || self.chance.bool() {
            let Some(other) = self.replace(claim, &lease).await else { return };
            lease = other;
        } else if !self.refresh(&mut lease).await {
            return;
        }
        self.try_meanwhile(claim).await;
        self.work(lease).await;
    }

    /// Has a stream, resumes it, and hangs up before that is answered, or as it is.
    async fn resume_and_vanish(&mut self, claim: &Question) {
        let mut brief = claim.clone().lasting(self.chance.u64(200..400));
        brief.asked.linger_ms = self.chance.u64(1..200);
        let Some(lease) = self.hold_briefly(&brief).await else { return };
        let resumed = claim.clone().lasting(3_500).naming(lease.fencing_token);
        let patience = Duration::from_micros(self.chance.u64(..4_000));
        self.open_for(resumed, patience).await;
        self.try_with_another(claim, 3_000).await;
    }

    /// Gives a claim up two or three times, and looks later whether its token has anything.
    async fn give_up_twice(&mut self, claim: &Question) {
        let claim = claim.clone().lasting(6_000);
        for _ in 0..self.chance.u32(2..4) {
            let patience = Duration::from_micros(self.chance.u64(..100_000));
            if self.asker.ask_for(&claim, patience).await.lease.is_some() {
                break;
            }
        }
        let release = Question::of(Kind::Release, claim.key, claim.token.clone());
        if self.chance.u32(..3) == 0 {
            self.asker.turn();
            self.asker.ask(&release).await;
        }
        sleep(Duration::from_millis(self.chance.u64(1_000..4_000))).await;
        self.asker.ask(&Question { kind: Kind::Look, ..release.clone() }).await;
        self.asker.ask(&release).await;
    }

    /// Lets its second voice ask for the key with another token, once what is late has arrived, mostly.
    async fn try_meanwhile(&mut self, claim: &Question) {
        self.rest(1_000_000).await;
        self.bring_twin();
        let other = Question::claim(claim.key, Some(self.twin.choose()), 100);
        if self.twin.ask(&other).await.lease.is_some() {
            self.twin.ask(&Question::of(Kind::Release, claim.key, other.token)).await;
        }
    }

    /// Asks for a lease, gives that up, and releases over another instance, where there is one: the key is
    /// free from then on.
    pub(super) async fn release_elsewhere(&mut self) {
        self.turn_twin();
        if self.twin.instance == self.asker.instance {
            return;
        }
        let claim = self.own_claim(Some(self.asker.choose()), 2_000);
        let patience = Duration::from_millis(self.chance.u64(PATIENCE_MS));
        let told = self.twin.ask_for(&claim, patience).await;
        if self.chance.bool() {
            self.asker.ask(&claim).await;
        }
        let release = Question::of(Kind::Release, claim.key, claim.token.clone());
        let released = self.asker.ask(&release).await;
        if told.outcome == Outcome::Unknown && released.outcome != Outcome::Unknown {
            sleep(THROUGH).await;
            self.asker.ask(&Question { kind: Kind::Look, ..release }).await;
            self.try_with_another(&claim, 0).await;
        }
    }

    /// Asks for the key with a token that has nothing to do with what went before.
    async fn try_with_another(&mut self, claim: &Question, wait_ms: u64) {
        let other = Question::claim(claim.key, Some(self.asker.choose()), 100).waiting(wait_ms);
        if let Some(lease) = self.acquire(&other).await {
            self.release(&lease).await;
        }
    }
}

impl Asker {
    /// Asks after a pause, while another one asks something else.
    pub(super) async fn ask_after(&mut self, pause: Duration, question: &Question) -> Told {
        sleep(pause).await;
        self.ask(question).await
    }

    /// Gives a question up that stays on its way for so long, and whose hang-up is so far behind it.
    pub(super) async fn ask_late(&mut self, question: &Question, held: Duration, behind: Duration) {
        let (text, sent) = (written(question), self.recorder.now());
        sleep(held / 8).await;
        let mut operation = self.operation(question, sent, Err(Missing::Gone)).0;
        let (recorder, resets) = (self.recorder.clone(), self.resets);
        let address = self.addresses[usize::from(self.instance)];
        self.late.spawn(async move {
            sleep(held - held / 8).await;
            if let Ok(Ok(mut connection)) = timeout(PATIENCE, Connection::open(address)).await {
                // What is answered is received, and nobody is told.
                let received = async {
                    connection.send(text.as_bytes()).await?;
                    while connection.line().await.is_ok() {}
                    std::future::pending::<io::Result<()>>().await
                };
                let _ = timeout(behind, received).await;
                if resets {
                    connection.reset();
                }
            }
            operation.late = Some(recorder.now());
            recorder.write(Line::Operation(operation));
        });
    }
}
