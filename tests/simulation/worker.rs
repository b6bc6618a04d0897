//! Clients: each takes a lock, keeps it for a while, and releases it or lets it expire.

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use tokio::time::{sleep, timeout};

use crate::lock::error::{Effect, StoreError};
use crate::lock::lease::{Claim, Lease, LockStatus, Origin};
use crate::lock::store::{Answer, Ask, Keep, Renewed, Store, Target, Win};
use crate::lock::time::Ttl;
use crate::lock::token::FencingToken;
use crate::store::redlock::RedlockStore;
use crate::store::redlock::simulation::history::{Stay, Wrong};
use crate::store::redlock::simulation::plan::{LONGEST_TTL_MS, TTLS_MS};
use crate::store::redlock::simulation::wish::{Outcome, Wish, name};
use crate::store::redlock::simulation::world::World;

/// The time that a client waits in line.
const PATIENCE_MS: u64 = 3_000;

/// The repeats of a request without an answer.
pub(super) const REPEATS: u32 = 3;

pub(super) struct Worker {
    pub(super) world: Arc<World>,
    pub(super) rng: Rng,
    number: u64,
    claims: u64,
}

impl Worker {
    pub(super) fn new(world: Arc<World>, number: u64, rng: Rng) -> Self {
        Self { world, rng, number, claims: 0 }
    }

    /// Locks for as long as the run lasts.
    pub(super) async fn work(mut self) {
        self.sleep(150).await;
        while self.world.now() < self.world.plan.length {
            self.one_lease().await;
            self.sleep(20).await;
        }
    }

    /// Takes a lock that no other client wants any more, within `most` milliseconds.
    pub(super) async fn takes_the_free(mut self, key: usize, most: u64) {
        let began = self.world.now();
        let mut outcome = Outcome::Held;
        while outcome != Outcome::Granted && self.world.now() < began + most {
            let mut wish = self.wish(Origin::Service);
            wish.key = key;
            wish.claim.key = name(key);
            let instance = key % self.world.plan.instances;
            outcome = self.try_once(instance, &mut wish).await;
            if outcome == Outcome::Granted {
                self.release(&mut wish, instance).await;
            }
            self.sleep(100).await;
        }
        if outcome != Outcome::Granted {
            let story = format!("key {key}: {outcome:?} for {most} ms");
            self.world.state().history.wrong(Wrong::NotGiven, story);
        }
    }

    async fn one_lease(&mut self) {
        let origin = if self.rng.bool() { Origin::Service } else { Origin::Client };
        let mut wish = self.wish(origin);
        let instance = self.instance();
        if self.world.plan.forces > 0 && self.rng.u32(..self.world.plan.forces) == 0 {
            return self.force(wish.key).await;
        }
        let late = self.late_request(&mut wish);
        tokio::join!(late, self.with(instance, wish));
    }

    async fn with(&mut self, instance: usize, mut wish: Wish) {
        let origin = wish.claim.origin;
        let outcome = match self.rng.u32(..20) {
            0..9 => self.try_once(instance, &mut wish).await,
            9..18 => self.wait(instance, &mut wish).await,
            _ => self.twice_at_once(&mut wish).await,
        };
        match (outcome, origin) {
            (Outcome::Granted, _) => self.hold(wish).await,
            (Outcome::Mine(number), _) => self.goes_on_by_name(wish, number).await,
            (Outcome::Held, _) => {
                if self.rng.u32(..8) == 0 && !wish.orphaned && !wish.is_shared {
                    self.expect_nothing(&wish).await;
                }
                self.sleep(300).await;
            }
            (Outcome::Refused, _) => {
                self.expect_nothing(&wish).await;
                self.sleep(2_000).await;
            }
            (Outcome::Unknown, Origin::Service) => {
                self.undo(instance, &wish).await;
                self.sleep(2_000).await;
            }
            (Outcome::Unknown, Origin::Client) => {
                self.repeat(wish).await;
                self.sleep(2_000).await;
            }
        }
    }

    pub(super) fn wish(&mut self, origin: Origin) -> Wish {
        let plan = &self.world.plan;
        let key = if plan.rolling { self.number as usize } else { self.rng.usize(..plan.keys) };
        self.claims += 1;
        let mut wish = Wish::of(key, self.number << 32 | self.claims, (origin, self.ttl()));
        wish.claim.kept = !self.world.plan.rolling && self.rng.u32(..5) == 0;
        wish
    }

    pub(super) fn ttl(&mut self) -> Ttl {
        Ttl::from_millis(TTLS_MS[self.rng.usize(..TTLS_MS.len())])
    }

    /// The lease of a wish, by its number or by its token.
    pub(super) fn target(&mut self, wish: &Wish) -> Target {
        if self.rng.bool() { wish.by_number() } else { wish.everything() }
    }

    pub(super) fn instance(&mut self) -> usize {
        self.rng.usize(..self.world.plan.instances)
    }

    /// Asks an instance; `None` if it ended meanwhile.
    pub(super) async fn ask<T>(
        &self,
        instance: usize,
        call: impl AsyncFnOnce(&RedlockStore) -> T,
    ) -> Option<T> {
        let asked = self.world.of(instance);
        let store = asked.store?;
        let answer = asked.ended.run_until_cancelled(call(&store)).await;
        if answer.is_none() {
            self.world.state().counts.ended += 1;
        }
        answer
    }

    pub(super) async fn try_once(&self, instance: usize, wish: &mut Wish) -> Outcome {
        let asked = self.world.now();
        let answer =
            self.ask(instance, async |store| store.ask(&wish.claim, Ask::Once(None)).await).await;
        match answer {
            Some(Ok(Answer::Won(win))) => self.won(wish, asked, &win),
            Some(Ok(Answer::Held(status))) => self.held(&status),
            Some(Ok(other)) => panic!("{other:?}"),
            Some(Err(error)) => self.failed(&error),
            None => wish.orphaned(),
        }
    }

    async fn wait(&self, instance: usize, wish: &mut Wish) -> Outcome {
        let give_up_at = self.world.now() + PATIENCE_MS;
        let waited = self.ask(instance, async |store| {
            let (key, token) = (&wish.claim.key, &wish.claim.token);
            let (bell, mut joined) = (store.listen(key), false);
            loop {
                let asked = self.world.now();
                match store.ask(&wish.claim, Ask::InLine(None)).await {
                    Ok(Answer::Waiting(waiting)) if self.world.now() < give_up_at => {
                        joined = true;
                        let _ = timeout(waiting.recheck_after, bell.rung()).await;
                    }
                    turn => {
                        // A claim that could not join, and had no effect, has no place in line.
                        let nothing = matches!(&turn, Err(error) if error.effect == Effect::None);
                        if joined || !nothing {
                            let _ = store.leave(key, &[(token.clone(), Keep::Nothing)]).await;
                        }
                        return (asked, turn);
                    }
                }
            }
        });
        match waited.await {
            Some((asked, Ok(Answer::Won(win)))) => self.won(wish, asked, &win),
            Some((_, Ok(Answer::Held(status)))) => self.held(&status),
            Some((_, Ok(Answer::Waiting(_)))) => {
                self.world.state().counts.held += 1;
                Outcome::Held
            }
            Some((_, Ok(other))) => panic!("{other:?}"),
            Some((_, Err(error))) => self.failed(&error),
            None => wish.orphaned(),
        }
    }

    /// Repeats a request while the first one is still under way, as a proxy may.
    async fn twice_at_once(&mut self, wish: &mut Wish) -> Outcome {
        let [one, two] = [self.instance(), self.instance()];
        wish.claim.origin = Origin::Client;
        (wish.is_shared, wish.claim.kept) = (true, false);
        let ttl = self.ttl();
        wish.asked = wish.asked.max(ttl);
        let claim = Claim { ttl, ..wish.claim.clone() };
        let mut same = Wish { claim, lease: None, granted: None, ..*wish };
        let (first, second) = tokio::join!(self.try_once(one, wish), self.try_once(two, &mut same));
        wish.takes(&same);
        wish.orphaned |= same.orphaned;
        match (first, second) {
            (Outcome::Granted, _) | (_, Outcome::Granted) => Outcome::Granted,
            (Outcome::Mine(number), _) | (_, Outcome::Mine(number)) => Outcome::Mine(number),
            (Outcome::Unknown, _) | (_, Outcome::Unknown) => Outcome::Unknown,
            // The votes of one request may be there while the other asks.
            _ => Outcome::Held,
        }
    }

    fn held(&self, status: &LockStatus) -> Outcome {
        let counts = &mut self.world.state().counts;
        let own = status.holder.as_ref().filter(|_| status.mine == Some(true));
        if let Some(number) = own.and_then(|own| own.fencing_token) {
            counts.mine += 1;
            return Outcome::Mine(number);
        }
        counts.held += 1;
        Outcome::Held
    }

    pub(super) fn failed(&self, error: &StoreError) -> Outcome {
        let counts = &mut self.world.state().counts;
        let (count, outcome) = match error.effect {
            Effect::None => (&mut counts.refused, Outcome::Refused),
            Effect::Earlier | Effect::Unknown => (&mut counts.unknown, Outcome::Unknown),
        };
        *count += 1;
        outcome
    }

    pub(super) fn won(&self, wish: &mut Wish, asked: u64, win: &Win) -> Outcome {
        wish.granted = (win.fresh && !wish.is_shared).then_some(win.by);
        if win.fresh {
            self.world.state().counts.grants += 1;
        } else {
            self.world.state().counts.again += 1;
        }
        self.stays(wish, asked, &win.lease);
        Outcome::Granted
    }

    pub(super) fn stays(&self, wish: &mut Wish, asked: u64, lease: &Lease) {
        let (from, fence) = (self.world.now(), lease.fencing_token.number());
        wish.asked = wish.asked.max(wish.claim.ttl);
        wish.lease = Some(lease.clone());
        let (ttl, left) = (wish.asked.as_millis(), lease.ttl.as_millis());
        let mut state = self.world.state();
        let until = from + left;
        if fence != wish.fence || wish.begun == 0 {
            wish.begun = from;
        }
        if self.world.plan.outlasts(wish.key, until.saturating_sub(wish.begun)) {
            let story = format!("begun at {}, from {from}, {lease:?}", wish.begun);
            state.history.wrong(Wrong::HeldTooLong, story);
        }
        state.counts.capped += u64::from(lease.capped);
        // After a step back of a node, its locks last longer.
        if left > ttl - ttl / 100 - 2 && self.world.plan.steps_every == 0 {
            let story = format!("asked at {asked}, from {from}, {lease:?}");
            state.history.wrong(Wrong::PromisesTooMuch, story);
        }
        if wish.until > from && wish.fence > 0 && fence != wish.fence {
            state.counts.renumbered += 1;
            let (story, forced) =
                (format!("{} after {wish:?}", lease.fencing_token), state.forced[wish.key]);
            if self.world.plan.leases_last() && forced + LONGEST_TTL_MS <= from {
                state.history.wrong(Wrong::Renumbered, story);
            }
        }
        wish.until = wish.until.max(until);
        wish.fence = fence;
        let (key, token) = (wish.key, wish.token);
        state.history.stays(Stay { key, token, asked, from, until, fence });
    }

    /// Uses a lease that it was granted.
    pub(super) async fn hold(&mut self, mut wish: Wish) {
        let ttl = wish.claim.ttl.as_millis();
        let how = if self.world.plan.rolling { 13 } else { self.rng.u32(..20) };
        match how {
            9 => return self.is_gone(&wish).await,
            _ if wish.claim.kept => return self.keep(wish).await,
            0..8 => self.sleep(50).await,
            8 | 10 => {
                self.sleep(ttl / 2).await;
                let number = FencingToken::from_number(wish.fence).expect("a number");
                return self.goes_on_by_name(wish, number).await;
            }
            11 | 12 => self.sleep(ttl * 9 / 10).await,
            13..15 => self.prolong(&mut wish).await,
            15..17 if wish.claim.origin == Origin::Client => self.ask_again(&mut wish).await,
            _ => {
                let left = wish.until.saturating_sub(self.world.now());
                sleep(Duration::from_millis(left)).await;
                self.sleep(400).await;
                self.world.state().counts.expired += 1;
                // A client that was paused does not know.
                if self.rng.bool() {
                    self.refresh(&mut wish).await;
                }
                return;
            }
        }
        let instance = self.instance();
        self.release(&mut wish, instance).await;
    }

    async fn prolong(&mut self, wish: &mut Wish) {
        for _ in 0..if self.world.plan.rolling { 40 } else { 3 } {
            self.sleep(wish.claim.ttl.as_millis() * 2 / 3).await;
            self.refresh(wish).await;
        }
    }

    async fn ask_again(&mut self, wish: &mut Wish) {
        self.sleep(wish.claim.ttl.as_millis() / 2).await;
        let instance = self.instance();
        wish.claim.ttl = self.ttl();
        let outcome = self.try_once(instance, wish).await;
        let now = self.world.now();
        if self.is_forced(wish.key) {
            return;
        }
        if outcome == Outcome::Refused && now < wish.until {
            let story = format!("key {} of {} at {now}", wish.key, wish.token);
            self.world.state().history.wrong(Wrong::SaysNothing, story);
        }
        if matches!(outcome, Outcome::Held | Outcome::Mine(_)) && now < wish.until {
            let mut state = self.world.state();
            state.counts.against_itself += 1;
            if self.world.plan.leases_last() {
                let story = format!("key {} of {} at {now}", wish.key, wish.token);
                state.history.wrong(Wrong::AgainstItself, story);
            }
        }
        self.sleep(wish.claim.ttl.as_millis() / 2).await;
    }

    pub(super) async fn refresh(&mut self, wish: &mut Wish) {
        let (instance, asked) = (self.instance(), self.world.now());
        let ttl = self.rng.bool().then_some(wish.claim.ttl);
        let of = self.target(wish);
        let answer = self.ask(instance, async |store| store.renew(&of, ttl).await).await;
        match answer {
            // The stream that keeps it has not let it go yet.
            Some(Ok(Renewed::Kept(_))) => self.world.state().counts.mine += 1,
            Some(Ok(Renewed::Lease(lease))) => {
                self.world.state().counts.refreshed += 1;
                self.stays(wish, asked, &lease);
            }
            Some(Ok(_)) => {
                self.world.state().counts.lost += 1;
                self.is_lost(wish, "refreshed");
            }
            Some(Err(_)) if self.world.plan.rolling => self.is_lost(wish, "not refreshed"),
            Some(Err(error)) => _ = self.failed(&error),
            None => (),
        }
    }

    async fn repeat(&mut self, mut wish: Wish) {
        for _ in 0..REPEATS {
            let instance = self.instance();
            match self.try_once(instance, &mut wish).await {
                Outcome::Granted => return self.hold(wish).await,
                Outcome::Mine(number) => return self.goes_on_by_name(wish, number).await,
                _ => (),
            }
            self.sleep(100).await;
        }
    }

    pub(super) async fn sleep(&mut self, most: u64) {
        sleep(Duration::from_millis(self.rng.u64(..=most))).await;
    }
}
