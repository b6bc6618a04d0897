//! A simulated lock that is right, unless it is given a bug.

use fastrand::Rng;

use super::MS;
use crate::history::{Nanos, Said, Token};

/// The number of a request within its world.
pub(super) type Request = usize;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::check) enum Bug {
    ReleaseWithoutCompare,
    ReleaseIgnoresTheNumber,
    RefreshRecreates,
    NumbersRepeat,
    LastInFirstOut,
    LostWakeUp,
    GhostStaysInLine,
    RefusalThatGrants,
    RepeatIsAnotherLease,
    RepeatIsRefused,
    TwoAreServed,
    EndsLittleEarly,
    EndsLate,
    RefusalWithoutHolder,
    LookSaysMine,
    LostWithoutReason,
}

/// What a request is told.
#[derive(Clone, Debug)]
pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) code: &'static str,
    pub(super) said: Said,
}

#[derive(Clone, Debug)]
struct Holder {
    token: Token,
    fence: u64,
    expires: Nanos,
    /// True once its token has acquired or refreshed it again.
    renewed: bool,
}

/// What a claim asks for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wish {
    pub(super) request: Request,
    pub(super) token: Token,
    /// Whether the service made the token.
    pub(super) made: bool,
    pub(super) ttl: Nanos,
    pub(super) waits: bool,
    pub(super) since: Nanos,
}

/// A place in line.
#[derive(Clone, Debug)]
struct Place {
    token: Token,
    waiting: Vec<Wish>,
    away_since: Nanos,
}

#[derive(Debug)]
pub(super) struct Lock {
    holder: Option<Holder>,
    line: Vec<Place>,
    last: u64,
    bug: Option<Bug>,
    pub(super) said: Vec<(Request, Reply)>,
    rng: Rng,
    /// The key is free and nobody was told.
    asleep: bool,
}

const KEPT: Nanos = 5_000 * MS;

impl Lock {
    pub(super) fn new(bug: Option<Bug>, rng: Rng) -> Self {
        let (holder, line, said) = (None, Vec::new(), Vec::new());
        Self { holder, line, last: 0, bug, said, rng, asleep: false }
    }

    /// Returns when the lease that is there ends by its TTL.
    pub(super) fn ends(&self) -> Option<Nanos> {
        let expires = self.holder.as_ref()?.expires;
        Some(match self.bug {
            Some(Bug::EndsLittleEarly) => expires - 8 * MS,
            Some(Bug::EndsLate) => expires + 700 * MS,
            _ => expires,
        })
    }

    pub(super) fn tick(&mut self, now: Nanos) {
        if self.ends().is_some_and(|ends| ends <= now) {
            self.holder = None;
        }
        self.line.retain(|place| !place.waiting.is_empty() || place.away_since + KEPT > now);
        if !self.asleep {
            self.serve(now);
        }
    }

    pub(super) fn claim(&mut self, now: Nanos, wish: Wish) {
        self.asleep = false;
        self.tick(now);
        let refuses = self.sometimes(Bug::RepeatIsRefused);
        if let Some(holder) = self.holder.as_mut().filter(|holder| holder.token == wish.token) {
            if refuses {
                return self.refuse(wish.request, "lock_held");
            }
            if self.bug == Some(Bug::RepeatIsAnotherLease) {
                return self.grant(now, wish, 201);
            }
            holder.expires = holder.expires.max(now + wish.ttl);
            holder.renewed = true;
            return self.tell(now, wish, 200);
        }
        if self.holder.is_none() && self.line.iter().all(|place| place.waiting.is_empty()) {
            if self.sometimes(Bug::RefusalWithoutHolder) {
                return self.refuse(wish.request, "lock_held");
            }
            self.grant(now, wish, 201);
            if !wish.made && self.sometimes(Bug::RefusalThatGrants) {
                self.said.pop();
                self.refuse(wish.request, "lock_held");
            }
            return;
        }
        if !wish.waits {
            return self.refuse(wish.request, "lock_held");
        }
        match self.line.iter_mut().find(|place| place.token == wish.token) {
            Some(place) => place.waiting.push(wish),
            None => {
                let place = Place { token: wish.token, waiting: vec![wish], away_since: now };
                let last = self.bug == Some(Bug::LastInFirstOut);
                self.line.insert(if last { 0 } else { self.line.len() }, place);
            }
        }
        self.tick(now);
    }

    /// A request stops waiting: its wait is over, which it is told, or its client has gone.
    pub(super) fn leave(&mut self, now: Nanos, request: Request, told: bool) {
        if !told && self.bug == Some(Bug::GhostStaysInLine) {
            return;
        }
        let waits = |place: &Place| place.waiting.iter().any(|wish| wish.request == request);
        let Some(at) = self.line.iter().position(waits) else { return };
        let place = &mut self.line[at];
        let made = place.waiting.iter().any(|wish| wish.made);
        place.waiting.retain(|wish| wish.request != request);
        place.away_since = now;
        if place.waiting.is_empty() && made {
            self.line.remove(at);
        }
        if told {
            self.refuse(request, "lock_held");
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
        let mut done = self.holder.as_ref().is_some_and(|it| any || it.is(token, named));
        if done {
            self.holder = None;
            self.asleep = self.sometimes(Bug::LostWakeUp);
        }
        let place = self.line.iter().position(|place| named.is_none() && place.token == token);
        if let Some(at) = place {
            done = true;
            for wish in self.line.remove(at).waiting {
                self.refuse(wish.request, "wait_cancelled");
            }
        }
        self.done(now, request, done);
    }

    pub(super) fn force_release(&mut self, now: Nanos, request: Request) {
        self.tick(now);
        let held = self.holder.take().is_some();
        self.done(now, request, held);
    }

    pub(super) fn refresh(&mut self, now: Nanos, wish: Wish, named: Option<u64>) {
        self.tick(now);
        let loses = self.sometimes(Bug::LostWithoutReason);
        let own = self.holder.as_mut().filter(|holder| holder.is(wish.token, named) && !loses);
        if let Some(holder) = own {
            // Only a refresh that names the lease shortens it.
            let until = now + wish.ttl;
            holder.expires = if named.is_some() { until } else { holder.expires.max(until) };
            holder.renewed = true;
            return self.tell(now, wish, 200);
        }
        if self.bug == Some(Bug::RefreshRecreates) && self.holder.is_none() {
            return self.grant(now, wish, 200);
        }
        self.refuse(wish.request, "lock_lost");
    }

    pub(super) fn look(&mut self, now: Nanos, request: Request, token: Token) {
        self.tick(now);
        let (held, says_mine) = (self.holder.is_some(), self.sometimes(Bug::LookSaysMine));
        let fencing_token = self.holder.as_ref().map(|holder| holder.fence);
        let mine = self.holder.as_ref().map(|holder| says_mine || holder.token == token);
        let mine = mine.or(Some(false));
        let waiters = self.line.iter().filter(|place| !place.waiting.is_empty()).count();
        let (held, waiters) = (Some(held), Some(waiters as u64));
        let said = Said { held, fencing_token, mine, waiters, ..Said::default() };
        self.said.push((request, Reply { status: 200, code: "", said }));
    }

    /// A grant reached nobody: it is taken back, unless its token has renewed it since.
    pub(super) fn take_back(&mut self, now: Nanos, fence: u64) {
        let ghost = self.bug == Some(Bug::GhostStaysInLine);
        let is_unheard = |holder: &Holder| holder.fence == fence && !holder.renewed;
        if !ghost && self.holder.as_ref().is_some_and(is_unheard) {
            self.holder = None;
        }
        self.tick(now);
    }

    fn serve(&mut self, now: Nanos) {
        while self.holder.is_none() {
            let next = self.line.iter().position(|place| !place.waiting.is_empty());
            let Some(next) = next else { return };
            let waiting = self.line.remove(next).waiting;
            let ttl = waiting.last().map_or(0, |wish| wish.ttl);
            self.grant(now, Wish { ttl, ..waiting[0] }, 201);
            for wish in &waiting[1..] {
                self.tell(now, *wish, 200);
            }
            if self.sometimes(Bug::TwoAreServed) {
                self.holder = None;
            }
        }
    }

    fn grant(&mut self, now: Nanos, wish: Wish, status: u16) {
        let repeats = self.last > 0 && self.sometimes(Bug::NumbersRepeat);
        self.last = if repeats { self.last } else { (self.last + 1).max(now / 1_000) };
        let (token, fence, expires) = (wish.token, self.last, now + wish.ttl);
        self.line.retain(|place| place.token != token || !place.waiting.is_empty());
        self.holder = Some(Holder { token, fence, expires, renewed: false });
        self.tell(now, wish, status);
    }

    /// Tells a request of the lease that is there.
    fn tell(&mut self, now: Nanos, wish: Wish, status: u16) {
        let Some(holder) = &self.holder else { return };
        let said = Said {
            fencing_token: Some(holder.fence),
            ttl_ms: Some((holder.expires - now) / MS),
            waited_ms: Some((now - wish.since) / MS),
            ..Said::default()
        };
        self.said.push((wish.request, Reply { status, code: "", said }));
    }

    fn refuse(&mut self, request: Request, code: &'static str) {
        self.said.push((request, Reply { status: 409, code, said: Said::default() }));
    }

    /// Tells a request whether it ended anything, and serves those who wait.
    fn done(&mut self, now: Nanos, request: Request, done: bool) {
        match done {
            true => {
                self.said.push((request, Reply { status: 204, code: "", said: Said::default() }))
            }
            false => self.refuse(request, "lock_lost"),
        }
        self.tick(now);
    }

    fn sometimes(&mut self, bug: Bug) -> bool {
        self.bug == Some(bug) && self.rng.u8(..5) == 0
    }
}

impl Holder {
    /// Returns whether it is this token, by this number if one is named.
    fn is(&self, token: Token, named: Option<u64>) -> bool {
        self.token == token && named.is_none_or(|named| named == self.fence)
    }
}
