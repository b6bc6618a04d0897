//! A simulated lock that is right, unless it is given a bug.

use fastrand::Rng;

use super::MS;
use super::request::{Bug, Close, Reply, Request, Wish};
use crate::history::{NO_TOKEN, Nanos, Said, Token};

#[derive(Clone, Debug)]
struct Holder {
    token: Token,
    fence: u64,
    expires: Nanos,
    /// Whether its client knows of it.
    heard: bool,
    /// The stream that keeps it.
    keeper: Option<Wish>,
    /// When the lease would have ended that it replaced.
    replaced: Option<Nanos>,
    /// How often it was refreshed.
    refreshes: u32,
}

/// A place in line, with its newest request.
#[derive(Clone, Debug)]
struct Place {
    token: Token,
    waiting: Option<Wish>,
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
    /// How many fields the line's instances have in the store.
    pub(super) crew: u64,
}

const KEPT: Nanos = 5_000 * MS;

impl Lock {
    pub(super) fn new(bug: Option<Bug>, rng: Rng) -> Self {
        let (holder, line, said) = (None, Vec::new(), Vec::new());
        Self { holder, line, last: 0, bug, said, rng, asleep: false, crew: 0 }
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
            self.end("lost/expired");
        }
        self.line.retain(|place| place.waiting.is_some() || place.away_since + KEPT > now);
        if !self.asleep {
            self.serve(now);
        }
    }

    pub(super) fn claim(&mut self, now: Nanos, wish: Wish) {
        self.asleep = false;
        self.tick(now);
        if self.holder.as_ref().is_some_and(|holder| holder.token == wish.token) {
            return self.claim_own(now, wish);
        }
        if wish.named.is_some() {
            return self.refuse_own((wish.request, wish.token), "lock_lost");
        }
        if self.holder.is_none() && self.line.iter().all(|place| place.waiting.is_none()) {
            if self.sometimes(Bug::RefusalWithoutHolder) {
                return self.refuse(wish.request, "lock_held");
            }
            self.grant(now, wish);
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
            Some(place) => {
                if let Some(older) = place.waiting.replace(wish) {
                    self.refuse(older.request, "superseded");
                }
            }
            None => {
                let place = Place { token: wish.token, waiting: Some(wish), away_since: now };
                let last = self.bug == Some(Bug::LastInFirstOut);
                self.line.insert(if last { 0 } else { self.line.len() }, place);
            }
        }
        self.tick(now);
    }

    /// A claim of the token that has the lease.
    fn claim_own(&mut self, now: Nanos, wish: Wish) {
        let Some(holder) = self.holder.clone() else { return };
        if wish.named == Some(holder.fence) {
            self.end("lost/replaced");
            self.grant(now, wish);
            if let Some(new) = &mut self.holder {
                new.replaced = Some(holder.expires);
                if self.bug == Some(Bug::ReplacementKeepsItsNumber) {
                    new.fence = holder.fence;
                    self.said.pop();
                    self.tell(now, wish, 201);
                }
            }
            return;
        }
        if wish.named.is_some() {
            return self.refuse_own((wish.request, wish.token), "lock_lost");
        }
        let takes = wish.linger.is_some()
            && match holder.keeper {
                None => self.bug == Some(Bug::StreamTakesLease),
                Some(_) => self.bug == Some(Bug::StreamTakesStream),
            };
        if !takes && (wish.linger.is_some() || holder.keeper.is_some()) {
            return self.refuse_own((wish.request, wish.token), "lock_held");
        }
        if self.sometimes(Bug::RepeatIsRefused) {
            return self.refuse(wish.request, "lock_held");
        }
        if self.bug == Some(Bug::RepeatIsAnotherLease) {
            return self.grant(now, wish);
        }
        if let Some(own) = &mut self.holder {
            own.expires = own.expires.max(now + wish.ttl);
            own.heard |= self.bug == Some(Bug::UnheardRepeatCounts);
            if let Some(keeper) = std::mem::replace(&mut own.keeper, takes.then_some(wish)) {
                self.event(keeper.request, "lost/replaced");
            }
        }
        self.tell(now, wish, 200);
    }

    /// A request stops waiting: its wait is over, which it is told, or its client has gone.
    pub(super) fn leave(&mut self, now: Nanos, request: Request, told: bool) {
        if !told && self.bug == Some(Bug::GhostStaysInLine) {
            return;
        }
        let waits = |place: &Place| place.waiting.is_some_and(|wish| wish.request == request);
        let Some(at) = self.line.iter().position(waits) else { return };
        let place = &mut self.line[at];
        place.away_since = now;
        if place.waiting.take().is_some_and(|wish| wish.made) {
            self.line.remove(at);
        }
        if told {
            self.refuse(request, "lock_held");
        }
    }

    /// The connection of a request has ended.
    pub(super) fn close(&mut self, now: Nanos, request: Request, how: Close) {
        self.leave(now, request, false);
        let kept = self.holder.as_mut().and_then(|own| Some((own.keeper?, own)));
        let Some((keeper, own)) = kept.filter(|kept| kept.0.request == request) else { return };
        own.keeper = None;
        let leaves = how == Close::TimeOut && self.bug != Some(Bug::TimeoutEndsTheLease);
        match keeper.linger {
            Some(linger) if !leaves && linger > 0 => own.expires = now + linger,
            _ if !leaves => self.holder = None,
            _ => (),
        }
        self.tick(now);
    }

    /// The keeper of a stream refreshes its lease; returns whether it has one.
    pub(super) fn keep(&mut self, now: Nanos, request: Request) -> bool {
        let kept = self.holder.as_mut().and_then(|own| Some((own.keeper?, own)));
        let Some((keeper, own)) = kept.filter(|kept| kept.0.request == request) else {
            return false;
        };
        own.expires = own.expires.max(now + keeper.ttl);
        self.tell(now, keeper, 200);
        if let Some((_, reply)) = self.said.last_mut() {
            reply.code = "alive";
        }
        true
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
            self.end("lost/released");
            self.asleep = self.sometimes(Bug::LostWakeUp);
        }
        let place = self.line.iter().position(|place| named.is_none() && place.token == token);
        if let Some(at) = place.filter(|_| !done) {
            done = true;
            if let Some(wish) = self.line.remove(at).waiting {
                self.refuse(wish.request, "wait_cancelled");
                let grows = self.bug == Some(Bug::CrewGrows) && !self.line.is_empty();
                self.crew += u64::from(grows);
            }
        }
        self.done(now, (request, token), done);
    }

    pub(super) fn force_release(&mut self, now: Nanos, request: Request) {
        self.tick(now);
        let held = self.holder.is_some();
        self.end("lost/forced");
        self.done(now, (request, NO_TOKEN), held);
    }

    pub(super) fn refresh(&mut self, now: Nanos, wish: Wish) {
        self.tick(now);
        let loses = self.sometimes(Bug::LostWithoutReason);
        let (breaks, shortens) =
            (self.bug == Some(Bug::RefreshesEndTheStream), self.bug == Some(Bug::RefreshShortens));
        let own = self.holder.as_mut().filter(|own| own.is(wish.token, wish.named) && !loses);
        let Some(own) = own else {
            if self.bug == Some(Bug::RefreshRecreates) && self.holder.is_none() {
                return self.grant(now, wish);
            }
            return self.refuse_own((wish.request, wish.token), "lock_lost");
        };
        if own.keeper.is_some() && !breaks {
            return self.refuse_own((wish.request, wish.token), "lock_held");
        }
        let until = now + wish.ttl;
        let shortens = shortens && wish.named.is_some();
        own.expires = if shortens { until } else { own.expires.max(until) };
        own.heard = true;
        own.refreshes += 1;
        if own.refreshes == 3
            && let Some(keeper) = own.keeper.take_if(|_| breaks)
        {
            self.event(keeper.request, "lost/replaced");
        }
        self.tell(now, wish, 200);
    }

    pub(super) fn look(&mut self, now: Nanos, request: Request, token: Token) {
        self.tick(now);
        let (held, says_mine) = (self.holder.is_some(), self.sometimes(Bug::LookSaysMine));
        let fencing_token = self.holder.as_ref().map(|holder| holder.fence);
        let mine = self.holder.as_ref().map(|holder| says_mine || holder.token == token);
        let mine = mine.or(Some(false));
        let waiters = self.line.iter().filter(|place| place.waiting.is_some()).count();
        let (held, waiters) = (Some(held), Some(waiters as u64));
        let said = Said { held, fencing_token, mine, waiters, ..Said::default() };
        self.said.push((request, Reply { status: 200, code: "", said }));
    }

    /// The client of a lease knows of it.
    pub(super) fn heard(&mut self, fence: u64) {
        if let Some(own) = self.holder.as_mut().filter(|own| own.fence == fence) {
            own.heard = true;
        }
    }

    /// A grant reached nobody: it is taken back, unless its client has heard of it since.
    pub(super) fn take_back(&mut self, now: Nanos, fence: u64) {
        let bug = self.bug;
        let ignores = bug == Some(Bug::TakeBackIgnoresHeard);
        let is_unheard = |own: &&mut Holder| own.fence == fence && (!own.heard || ignores);
        if bug != Some(Bug::GhostStaysInLine)
            && let Some(own) = self.holder.as_mut().filter(is_unheard)
        {
            own.keeper = None;
            match own.replaced {
                Some(_) if bug == Some(Bug::ReplacementStays) => (),
                Some(before) => own.expires = before,
                None => self.holder = None,
            }
        }
        self.tick(now);
    }

    fn serve(&mut self, now: Nanos) {
        while self.holder.is_none() {
            let next = self.line.iter().position(|place| place.waiting.is_some());
            let Some(next) = next else { return };
            if let Some(wish) = self.line.remove(next).waiting {
                self.grant(now, wish);
            }
            if self.sometimes(Bug::TwoAreServed) {
                self.holder = None;
            }
        }
    }

    fn grant(&mut self, now: Nanos, wish: Wish) {
        let repeats = self.last > 0 && self.sometimes(Bug::NumbersRepeat);
        self.last = if repeats { self.last } else { (self.last + 1).max(now / 1_000) };
        let (token, fence, expires) = (wish.token, self.last, now + wish.ttl);
        self.line.retain(|place| place.token != token || place.waiting.is_some());
        let keeper = wish.linger.map(|_| wish);
        let (heard, replaced, refreshes) = (false, None, 0);
        self.holder = Some(Holder { token, fence, expires, heard, keeper, replaced, refreshes });
        self.tell(now, wish, if keeper.is_some() { 200 } else { 201 });
    }

    /// Ends the lease that is there, and tells its stream.
    fn end(&mut self, event: &'static str) {
        if let Some(keeper) = self.holder.take().and_then(|own| own.keeper) {
            self.event(keeper.request, event);
        }
    }

    fn event(&mut self, request: Request, code: &'static str) {
        self.said.push((request, Reply { status: 200, code, said: Said::default() }));
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

    /// Refuses a request, and tells the lease that is there.
    fn refuse_own(&mut self, (request, token): (Request, Token), code: &'static str) {
        let own = self.holder.as_ref().filter(|own| own.token == token);
        let fencing_token = own.map(|own| own.fence);
        let mine = (code == "lock_held").then_some(true);
        let said = Said { fencing_token, mine, ..Said::default() };
        self.said.push((request, Reply { status: 409, code, said }));
    }

    /// Tells a request whether it ended anything, and serves those who wait.
    fn done(&mut self, now: Nanos, request: (Request, Token), done: bool) {
        match done {
            true => {
                self.said.push((request.0, Reply { status: 204, code: "", said: Said::default() }))
            }
            false => self.refuse_own(request, "lock_lost"),
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
