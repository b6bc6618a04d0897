//! One world that may be: who holds the key, who stands in line, and what follows from a question.

use super::{Answer, Question, Settings};
use crate::history::{Nanos, Token};

/// An answer as the rules have it, before the numbers are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expected {
    Granted { new: bool },
    Held,
    Cancelled,
    Lost,
    Ended,
    Seen { held: bool, mine: Option<bool>, waiters: u64 },
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct World {
    holder: Option<Holder>,
    /// In the order of arrival.
    line: Vec<Place>,
    /// Requests of claims that were released while they waited.
    cancelled: Vec<Token>,
    /// The highest number that anybody was told of.
    last: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Holder {
    token: Token,
    /// Unknown until somebody was told.
    fence: Option<u64>,
    ttl: Nanos,
    /// It ends between these.
    ends: (Nanos, Nanos),
    /// How many waiting requests have not been told yet.
    owed: u32,
    told: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    token: Token,
    chosen: bool,
    ttl: Nanos,
    requests: u32,
    /// Where nobody waits: forgotten between these.
    forgotten: (Nanos, Nanos),
}

impl World {
    /// Returns what may have become of it at some moment between these.
    pub(super) fn until(&self, settings: &Settings, (low, high): (Nanos, Nanos)) -> Vec<Self> {
        let mut worlds = Vec::new();
        let mut now = self.clone();
        loop {
            match &now.holder {
                Some(holder) if holder.ends.0 <= high => {
                    let ends = holder.ends;
                    if low <= ends.1 {
                        worlds.push(now.clone());
                    }
                    now.holder = None;
                    now.hand_over(settings, (ends.0, ends.1.min(high)));
                }
                _ => {
                    worlds.push(now);
                    break;
                }
            }
        }
        worlds.into_iter().flat_map(|world| world.forget((low, high))).collect()
    }

    /// Returns it with and without the places that may be forgotten.
    fn forget(self, (low, high): (Nanos, Nanos)) -> Vec<Self> {
        let mut worlds = vec![Self { line: Vec::new(), ..self.clone() }];
        for place in self.line {
            let may_stay = place.requests > 0 || low <= place.forgotten.1;
            let may_go = place.requests == 0 && high >= place.forgotten.0;
            let mut next = Vec::new();
            for world in worlds {
                if may_go {
                    next.push(world.clone());
                }
                if may_stay {
                    let mut world = world;
                    world.line.push(place.clone());
                    next.push(world);
                }
            }
            worlds = next;
        }
        worlds
    }

    /// Returns what a question may be told, and what is true afterwards.
    pub(super) fn ask(
        &self,
        settings: &Settings,
        question: Question,
        at: (Nanos, Nanos),
    ) -> Vec<(Expected, Self)> {
        let mut next = self.clone();
        let expected = match question {
            Question::Acquire { .. } => return self.acquire(settings, question, at),
            Question::Refresh { token, fence, ttl } => match &mut next.holder {
                Some(holder) if holder.is(token, fence) => {
                    let ttl = ttl.unwrap_or(holder.ttl);
                    match fence {
                        Some(_) => holder.last(settings, ttl, at),
                        None => holder.extend(settings, ttl, at),
                    }
                    Expected::Granted { new: false }
                }
                _ => Expected::Lost,
            },
            Question::Release { token, fence } => {
                let holds = next.holder.as_ref().is_some_and(|holder| holder.is(token, fence));
                let waits = next.line.iter().any(|place| place.token == token) && fence.is_none();
                if waits {
                    next.cancel(token);
                }
                if holds {
                    next.holder = None;
                    next.hand_over(settings, at);
                }
                if holds || waits { Expected::Ended } else { Expected::Lost }
            }
            Question::ForceRelease => {
                let held = next.holder.take().is_some();
                next.hand_over(settings, at);
                if held { Expected::Ended } else { Expected::Lost }
            }
            Question::Look { token } => Expected::Seen {
                held: next.holder.is_some(),
                mine: token
                    .map(|token| next.holder.as_ref().is_some_and(|holder| holder.token == token)),
                waiters: next.line.iter().filter(|place| place.requests > 0).count() as u64,
            },
        };
        vec![(expected, next)]
    }

    fn acquire(
        &self,
        settings: &Settings,
        question: Question,
        at: (Nanos, Nanos),
    ) -> Vec<(Expected, Self)> {
        let Question::Acquire { token, chosen, ttl, wait } = question else { return Vec::new() };
        let mut next = self.clone();
        match &mut next.holder {
            Some(holder) if holder.token == token => {
                holder.extend(settings, ttl, at);
                // The first of a claim's requests that is told has a new lease, the others have it again.
                let either = !holder.told && holder.owed > 0;
                let again = (Expected::Granted { new: false }, next.clone());
                let new = either.then_some((Expected::Granted { new: true }, next));
                return std::iter::once(again).chain(new).collect();
            }
            None => {
                next.line.retain(|place| place.token != token);
                next.holder = Some(Holder::new(settings, (token, ttl), 0, at));
                return vec![(Expected::Granted { new: true }, next)];
            }
            Some(_) => (),
        }
        let mut answers = Vec::new();
        // It was held until the wait was over, so it has to last until then.
        let over = at.0.saturating_add(wait);
        let lasts = next.holder.as_ref().is_some_and(|holder| over <= holder.ends.1);
        if wait == 0 {
            answers.push((Expected::Held, next));
        } else if lasts && over <= at.1.saturating_add(1_000_000) {
            next.join(token, chosen, ttl);
            next.stand_down(settings, token, (over, at.1.max(over)));
            answers.push((Expected::Held, next));
        }
        answers
    }

    pub(super) fn end_wait(
        &self,
        settings: &Settings,
        token: Token,
        at: (Nanos, Nanos),
    ) -> Vec<(Expected, Self)> {
        let mut next = self.clone();
        if let Some(index) = next.cancelled.iter().position(|cancelled| *cancelled == token) {
            next.cancelled.remove(index);
            return vec![(Expected::Cancelled, next)];
        }
        if let Some(holder) = next.holder.as_mut().filter(|holder| holder.token == token)
            && holder.owed > 0
        {
            holder.owed -= 1;
            let new = !holder.told;
            return vec![(Expected::Granted { new }, next)];
        }
        let waits = |place: &Place| place.token == token && place.requests > 0;
        if !next.line.iter().any(waits) {
            return Vec::new();
        }
        next.stand_down(settings, token, at);
        vec![(Expected::Held, next)]
    }

    /// Returns whether another token holds the key.
    pub(super) fn excludes(&self, token: Token) -> bool {
        self.holder.as_ref().is_some_and(|holder| holder.token != token)
    }

    /// A request waits: in the place that its token has, or behind all others.
    pub(super) fn join(&mut self, token: Token, chosen: bool, ttl: Nanos) {
        match self.line.iter_mut().find(|place| place.token == token) {
            Some(place) => {
                place.requests += 1;
                place.ttl = ttl;
            }
            None => {
                self.line.push(Place { token, chosen, ttl, requests: 1, forgotten: (0, 0) });
            }
        }
    }

    /// A request waits no longer. Its place stays for a while if the client chose the token.
    fn stand_down(&mut self, settings: &Settings, token: Token, at: (Nanos, Nanos)) {
        let Some(index) = self.line.iter().position(|place| place.token == token) else { return };
        let place = &mut self.line[index];
        place.requests -= 1;
        place.forgotten = (at.0 + settings.place_kept, at.1 + settings.place_kept + settings.late);
        if place.requests == 0 && !place.chosen {
            self.line.remove(index);
        }
    }

    fn cancel(&mut self, token: Token) {
        let mut cancelled = Vec::new();
        self.line.retain(|place| {
            if place.token == token {
                cancelled.extend((0..place.requests).map(|_| token));
            }
            place.token != token
        });
        self.cancelled.extend(cancelled);
    }

    /// A free key goes to the first claim that somebody waits for.
    fn hand_over(&mut self, settings: &Settings, at: (Nanos, Nanos)) {
        let next = self.line.iter().position(|place| place.requests > 0);
        if let (None, Some(next)) = (&self.holder, next) {
            let place = self.line.remove(next);
            let at = (at.0, at.1 + settings.late);
            let claim = (place.token, place.ttl);
            self.holder = Some(Holder::new(settings, claim, place.requests, at));
        }
    }

    /// Returns what is true if the answer is the one that is expected, and nothing if it is not.
    pub(super) fn agrees(mut self, expected: Expected, answer: Answer) -> Option<Self> {
        match (expected, answer) {
            (Expected::Granted { new }, Answer::Granted { fence, new: told }) => {
                (new == told).then_some(())?;
                self.tell(fence)?;
                Some(self)
            }
            (
                Expected::Seen { held, mine, waiters },
                Answer::Seen { fence, mine: told, waiters: seen },
            ) => {
                let same = held == fence.is_some() && (told.is_none() || mine == told);
                (same && waiters == seen).then_some(())?;
                let told = self.holder.as_ref().is_some_and(|holder| holder.told);
                if let Some(fence) = fence {
                    self.tell(fence)?;
                }
                if let Some(holder) = &mut self.holder {
                    holder.told = told; // Only its own clients are told that it is new.
                }
                Some(self)
            }
            (Expected::Held, Answer::Held)
            | (Expected::Cancelled, Answer::Cancelled)
            | (Expected::Lost, Answer::Lost)
            | (Expected::Ended, Answer::Ended) => Some(self),
            _ => None,
        }
    }

    /// The number of the lease was told: the same as before, or a higher one than all before it.
    fn tell(&mut self, fence: u64) -> Option<()> {
        let holder = self.holder.as_mut()?;
        let right = match holder.fence {
            Some(known) => known == fence,
            None => fence > self.last && fence < 1 << 53,
        };
        right.then_some(())?;
        holder.fence = Some(fence);
        holder.told = true;
        self.last = self.last.max(fence);
        Some(())
    }
}

impl Holder {
    fn new(
        settings: &Settings,
        (token, ttl): (Token, Nanos),
        owed: u32,
        at: (Nanos, Nanos),
    ) -> Self {
        let mut holder = Self { token, fence: None, ttl, ends: (0, 0), owed, told: false };
        holder.last(settings, ttl, at);
        holder
    }

    /// From now on the lease has this TTL.
    fn last(&mut self, settings: &Settings, ttl: Nanos, at: (Nanos, Nanos)) {
        let lacks = u128::from(ttl) * u128::from(settings.drift_ppm) / 1_000_000;
        let least = ttl - u64::try_from(lacks).unwrap_or(ttl).min(ttl);
        self.ttl = ttl;
        self.ends = (at.0.saturating_add(least), (at.1.saturating_add(ttl)) + settings.late);
    }

    /// From now on the lease has this TTL, unless it lasts longer anyway.
    fn extend(&mut self, settings: &Settings, ttl: Nanos, at: (Nanos, Nanos)) {
        let (before, had) = (self.ends, self.ttl);
        self.last(settings, ttl, at);
        if !settings.shortens {
            // Where either may be the later end, the longer TTL is the one that set it.
            self.ttl = if before.1 > self.ends.0 { had.max(ttl) } else { ttl };
            self.ends = (self.ends.0.max(before.0), self.ends.1.max(before.1));
        }
    }

    fn is(&self, token: Token, fence: Option<u64>) -> bool {
        // A number that nobody was told of cannot be meant, but by chance.
        let meant = fence.is_none_or(|fence| self.fence.is_none_or(|known| known == fence));
        self.token == token && meant
    }
}
