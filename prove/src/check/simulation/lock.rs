//! A simulated lock that is right, unless it is given a bug.

use fastrand::Rng;

use crate::history::{Nanos, Token};

/// The number of a request within its world.
pub(super) type Request = usize;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::check) enum Bug {
    ReleaseWithoutCompare,
    ReleaseIgnoresTheNumber,
    RefreshRecreates,
    RefreshSaysYes,
    RefreshRenumbers,
    NumbersRestart,
    NumbersRepeat,
    LastInFirstOut,
    AnyoneIsNext,
    LostWakeUp,
    GhostStaysInLine,
    GhostKeepsItsGrant,
    RefusalThatGrants,
    CancelledYetGranted,
    RepeatIsAnotherLease,
    RepeatIsRefused,
    TwoAreServed,
    EndsEarly,
    EndsLittleEarly,
    EndsLate,
    RefusalWithoutHolder,
    LookSaysMine,
    LookSaysFree,
    LostWithoutReason,
}

/// What a request is told.
#[derive(Clone, Debug)]
pub(super) enum Reply {
    Grant { fence: u64, ttl: Nanos, status: u16, at: Nanos },
    Done,
    No(&'static str),
    Seen { fence: Option<u64>, mine: bool, waiters: u64 },
}

#[derive(Clone, Debug)]
pub(super) struct Holder {
    pub(super) token: Token,
    pub(super) fence: u64,
    pub(super) expires: Nanos,
    /// True once its token has acquired or refreshed it again.
    renewed: bool,
}

#[derive(Clone, Debug)]
struct Claim {
    token: Token,
    made: bool,
    waiting: Vec<(Request, Nanos)>,
    away_since: Nanos,
}

/// What a claim asks for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wish {
    pub(super) request: Request,
    pub(super) token: Token,
    pub(super) made: bool,
    pub(super) ttl: Nanos,
    pub(super) waits: bool,
}

#[derive(Debug)]
pub(super) struct Lock {
    pub(super) holder: Option<Holder>,
    line: Vec<Claim>,
    last: u64,
    bug: Option<Bug>,
    pub(super) said: Vec<(Request, Reply)>,
    rng: Rng,
    /// The key is free and nobody was told.
    asleep: bool,
}

const KEPT: Nanos = 5_000_000_000;

impl Lock {
    pub(super) fn new(bug: Option<Bug>, rng: Rng) -> Self {
        let (holder, line, said) = (None, Vec::new(), Vec::new());
        Self { holder, line, last: 0, bug, said, rng, asleep: false }
    }

    pub(super) fn tick(&mut self, now: Nanos) {
        if self.holder.as_ref().is_some_and(|holder| holder.expires <= now) {
            self.holder = None;
        }
        self.line.retain(|claim| !claim.waiting.is_empty() || claim.away_since + KEPT > now);
        if !self.asleep {
            self.serve(now);
        }
    }

    pub(super) fn claim(&mut self, now: Nanos, wish: Wish) {
        self.asleep = false;
        self.tick(now);
        if let Some(holder) = self.holder.as_mut().filter(|holder| holder.token == wish.token) {
            if self.bug == Some(Bug::RepeatIsRefused) && self.rng.u8(..4) == 0 {
                return self.say(wish.request, Reply::No("lock_held"));
            }
            if self.bug == Some(Bug::RepeatIsAnotherLease) {
                return self.grant(now, wish, 201);
            }
            holder.expires = holder.expires.max(now + wish.ttl);
            holder.renewed = true;
            let (fence, ttl) = (holder.fence, holder.expires - now);
            return self.say(wish.request, Reply::Grant { fence, ttl, status: 200, at: now });
        }
        let present = self.line.iter().any(|claim| !claim.waiting.is_empty());
        if self.holder.is_none() && !present {
            if self.sometimes(Bug::RefusalWithoutHolder) {
                return self.say(wish.request, Reply::No("lock_held"));
            }
            if self.sometimes(Bug::RefusalThatGrants) && !wish.made {
                self.grant(now, wish, 201);
                self.said.pop();
                return self.say(wish.request, Reply::No("lock_held"));
            }
            return self.grant(now, wish, 201);
        }
        if !wish.waits {
            return self.say(wish.request, Reply::No("lock_held"));
        }
        let waiting = (wish.request, wish.ttl);
        match self.line.iter_mut().find(|claim| claim.token == wish.token) {
            Some(claim) => claim.waiting.push(waiting),
            None => {
                let (token, made) = (wish.token, wish.made);
                let claim = Claim { token, made, waiting: vec![waiting], away_since: now };
                let last = self.bug == Some(Bug::LastInFirstOut);
                self.line.insert(if last { 0 } else { self.line.len() }, claim);
            }
        }
        self.tick(now);
    }

    /// A request stops waiting: its wait is over, or its client has gone.
    pub(super) fn leave(&mut self, now: Nanos, request: Request, told: bool) {
        if !told && self.bug == Some(Bug::GhostStaysInLine) {
            return;
        }
        let Some(place) = self
            .line
            .iter()
            .position(|claim| claim.waiting.iter().any(|waiting| waiting.0 == request))
        else {
            return;
        };
        let claim = &mut self.line[place];
        claim.waiting.retain(|waiting| waiting.0 != request);
        claim.away_since = now;
        if claim.waiting.is_empty() && claim.made {
            self.line.remove(place);
        }
        if told {
            self.say(request, Reply::No("lock_held"));
        }
    }

    pub(super) fn release(
        &mut self,
        now: Nanos,
        (request, token): (Request, Token),
        named: Option<u64>,
    ) {
        self.tick(now);
        let named = named.filter(|_| self.bug != Some(Bug::ReleaseIgnoresTheNumber));
        let any = self.bug == Some(Bug::ReleaseWithoutCompare);
        let mine = |holder: &Holder| {
            any || holder.token == token && named.is_none_or(|named| named == holder.fence)
        };
        let mut done = self.holder.as_ref().is_some_and(mine);
        if done {
            self.holder = None;
            self.asleep = self.sometimes(Bug::LostWakeUp);
        }
        if named.is_none() {
            let keeps = self.bug == Some(Bug::CancelledYetGranted);
            let mut cancelled = Vec::new();
            self.line.retain_mut(|claim| {
                let gives_up = claim.token == token;
                if gives_up {
                    done = true;
                    cancelled.extend(claim.waiting.iter().map(|waiting| waiting.0));
                }
                !gives_up || keeps
            });
            for request in cancelled {
                self.say(request, Reply::No("wait_cancelled"));
            }
        }
        self.say(request, if done { Reply::Done } else { Reply::No("lock_lost") });
        self.tick(now);
    }

    pub(super) fn force_release(&mut self, now: Nanos, request: Request) {
        self.tick(now);
        let held = self.holder.take().is_some();
        self.say(request, if held { Reply::Done } else { Reply::No("lock_lost") });
        self.tick(now);
    }

    pub(super) fn refresh(
        &mut self,
        now: Nanos,
        (request, token): (Request, Token),
        (named, ttl): (Option<u64>, Nanos),
        known: u64,
    ) {
        self.tick(now);
        let renumbers = self.sometimes(Bug::RefreshRenumbers);
        let loses = self.sometimes(Bug::LostWithoutReason);
        let last = self.last + 1;
        if let Some(holder) = self.holder.as_mut().filter(|holder| {
            holder.token == token && named.is_none_or(|named| named == holder.fence) && !loses
        }) {
            // Only a refresh that names the lease shortens it.
            let until = now + ttl;
            holder.expires = if named.is_some() { until } else { holder.expires.max(until) };
            holder.renewed = true;
            let (fence, ttl) = (holder.fence, holder.expires - now);
            if renumbers {
                (holder.fence, self.last) = (last, last);
            }
            let fence = if renumbers { last } else { fence };
            return self.say(request, Reply::Grant { fence, ttl, status: 200, at: now });
        }
        if self.bug == Some(Bug::RefreshSaysYes) {
            return self.say(request, Reply::Grant { fence: known, ttl, status: 200, at: now });
        }
        if self.bug == Some(Bug::RefreshRecreates) && self.holder.is_none() {
            let wish = Wish { request, token, made: false, ttl, waits: false };
            return self.grant(now, wish, 200);
        }
        self.say(request, Reply::No("lock_lost"));
    }

    pub(super) fn look(&mut self, now: Nanos, request: Request, token: Token) {
        self.tick(now);
        let fence = self.holder.as_ref().map(|holder| holder.fence);
        let fence = fence.filter(|_| !self.sometimes(Bug::LookSaysFree));
        let mine = self.holder.as_ref().is_some_and(|holder| holder.token == token);
        let mine = mine || self.holder.is_some() && self.sometimes(Bug::LookSaysMine);
        let waiters = self.line.iter().filter(|claim| !claim.waiting.is_empty()).count() as u64;
        self.say(request, Reply::Seen { fence, mine, waiters });
    }

    /// A grant reached nobody: it is taken back, unless its token has renewed it since.
    pub(super) fn take_back(&mut self, now: Nanos, fence: u64) {
        let ghosts = [Bug::GhostKeepsItsGrant, Bug::GhostStaysInLine].map(Some);
        let is_unheard = |holder: &Holder| holder.fence == fence && !holder.renewed;
        if !ghosts.contains(&self.bug) && self.holder.as_ref().is_some_and(is_unheard) {
            self.holder = None;
        }
        self.tick(now);
    }

    /// The store loses all leases.
    pub(super) fn forget(&mut self, now: Nanos) {
        self.holder = None;
        if self.bug == Some(Bug::NumbersRestart) {
            self.last = 0;
        }
        self.tick(now);
    }

    fn serve(&mut self, now: Nanos) {
        while self.holder.is_none() {
            let present = |claim: &Claim| !claim.waiting.is_empty();
            let Some(mut next) = self.line.iter().position(present) else { return };
            if self.bug == Some(Bug::AnyoneIsNext) {
                let all: Vec<_> =
                    (0..self.line.len()).filter(|&place| present(&self.line[place])).collect();
                next = all[self.rng.usize(..all.len())];
            }
            let claim = self.line.remove(next);
            let ttl = claim.waiting.last().map_or(0, |waiting| waiting.1);
            for (nth, &(request, _)) in claim.waiting.iter().enumerate() {
                let (token, made) = (claim.token, claim.made);
                let wish = Wish { request, token, made, ttl, waits: true };
                if nth == 0 {
                    self.grant(now, wish, 201);
                } else {
                    let fence = self.holder.as_ref().map_or(0, |holder| holder.fence);
                    self.say(request, Reply::Grant { fence, ttl, status: 200, at: now });
                }
            }
            if self.sometimes(Bug::TwoAreServed) {
                self.holder = None;
            }
        }
    }

    fn grant(&mut self, now: Nanos, wish: Wish, status: u16) {
        let fence = match self.bug {
            Some(Bug::NumbersRestart) => self.last + 1,
            Some(Bug::NumbersRepeat) if self.last > 0 && self.rng.u8(..8) == 0 => self.last,
            _ => (self.last + 1).max(now / 1_000),
        };
        self.last = fence;
        let lasts = match self.bug {
            Some(Bug::EndsEarly) => wish.ttl * 7 / 10,
            Some(Bug::EndsLittleEarly) => wish.ttl - 8_000_000,
            Some(Bug::EndsLate) => wish.ttl + 700_000_000,
            _ => wish.ttl,
        };
        let expires = now + lasts;
        self.line.retain(|claim| claim.token != wish.token || !claim.waiting.is_empty());
        self.holder = Some(Holder { token: wish.token, fence, expires, renewed: false });
        self.say(wish.request, Reply::Grant { fence, ttl: wish.ttl, status, at: now });
    }

    fn say(&mut self, request: Request, reply: Reply) {
        self.said.push((request, reply));
    }

    fn sometimes(&mut self, bug: Bug) -> bool {
        self.bug == Some(bug) && self.rng.u8(..5) == 0
    }
}
