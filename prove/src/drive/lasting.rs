//! Exclusive leases that outlast the run, without lines: what the judge from outside is made for.
//!
//! Some answers are not waited for, some requests name leases of others or of before, and some tokens have
//! one lease after another.

use std::time::Duration;

use crate::drive::asker::{Lease, Question, Told};
use crate::drive::client::Client;
use crate::history::{Kind, Outcome};

const TTL_MS: u64 = 30_000;

/// How often a question is asked until its answer is certain.
const TRIES: u32 = 20;

/// One of so many questions is not waited for.
const LOST: u32 = 1_000;

impl Client {
    /// One of the things that are done with leases that outlast the run.
    pub(super) async fn outlast(&mut self) {
        match self.chance.u32(..100) {
            0 => self.lasting = self.asker.choose(),
            1..75 => {
                let earlier = self.earlier.clone();
                self.earlier = self.lasting_lease(earlier.as_ref()).await.or(earlier);
            }
            75..90 => {
                let key = self.any_key();
                self.look_at(key).await;
            }
            _ => self.name_anothers().await,
        }
    }

    /// Takes a lease, works under it and gives it back; returns it once it is over for certain.
    async fn lasting_lease(&mut self, earlier: Option<&Lease>) -> Option<Lease> {
        // A token of before asks for the key of before, now and then.
        let again = earlier.filter(|_| self.chance.u32(..3) == 0);
        let (key, token) = match again {
            Some(lease) => (lease.key, lease.token.clone()),
            None if self.chance.bool() => (self.any_key(), self.lasting.clone()),
            None => (self.any_key(), self.asker.choose()),
        };
        let asking = Question::claim(key, Some(token), TTL_MS);
        let told = self.ask_surely(&asking).await;
        let Some(lease) = told.lease else {
            if self.chance.u32(..4) == 0 {
                self.doubt(&asking, &told).await;
            }
            return None;
        };
        for _ in 0..self.chance.u32(..3) {
            match self.chance.u32(..6) {
                0 => drop(self.ask_surely(&asking).await),
                1..3 => drop(self.ask_surely(&named(Kind::Refresh, &lease)).await),
                3 => {
                    self.look(&lease).await;
                }
                4 => self.rest(3_000).await,
                _ => {
                    let Some(earlier) = earlier else { continue };
                    let kind = self.ends_or_refreshes();
                    self.ask_surely(&named(kind, earlier)).await;
                }
            }
        }
        let ended = self.ask_surely(&named(Kind::Release, &lease)).await;
        (ended.outcome != Outcome::Unknown).then_some(lease)
    }

    /// Asks for the end of a lease or for more of it with another token, by the number that a look told.
    async fn name_anothers(&mut self) {
        let key = self.any_key();
        let look = Question::of(Kind::Look, key, None);
        let seen = self.asker.ask(&look).await.said.fencing_token;
        let token = self.asker.choose();
        let lease = Lease { key, token, fencing_token: seen.unwrap_or(1), until: 0 };
        let kind = self.ends_or_refreshes();
        self.ask_surely(&named(kind, &lease)).await;
    }

    fn ends_or_refreshes(&mut self) -> Kind {
        if self.chance.bool() { Kind::Release } else { Kind::Refresh }
    }

    /// Asks until the answer is certain, and hangs up before the answer now and then.
    async fn ask_surely(&mut self, question: &Question) -> Told {
        let mut told = self.ask_or_leave(question).await;
        for _ in 1..TRIES {
            if told.outcome != Outcome::Unknown {
                break;
            }
            told = self.asker.ask(question).await;
        }
        told
    }

    async fn ask_or_leave(&mut self, question: &Question) -> Told {
        if self.chance.u32(..LOST) > 0 {
            return self.asker.ask(question).await;
        }
        let patience = Duration::from_micros(self.chance.u64(..1_500));
        self.asker.ask_for(question, patience).await
    }
}

/// Returns a question that names a lease by its number.
fn named(kind: Kind, lease: &Lease) -> Question {
    let question = Question::named(kind, lease);
    if kind == Kind::Refresh { question.lasting(TTL_MS) } else { question }
}
