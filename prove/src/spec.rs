//! The rules of one lock, written from the contract: which answers it allows.
//!
//! [`State`] follows the history of one key, one question after another. Where the contract leaves open
//! what has happened (a lease that is about to end, a question without an answer) it keeps every world
//! that may be, and refuses an answer that none of them allows. Time is an argument: a question took
//! effect at some moment between two bounds. Requests that wait are told to it by [`State::may_wait`],
//! and their answers by [`State::may_end`].

mod world;

use crate::history::{Nanos, Token};
use world::{Expected, World};

/// What the settings of the service say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// For how long a place in line is kept while nobody waits for it.
    pub place_kept: Nanos,
    /// How much later than its TTL a lease may end.
    pub late: Nanos,
    /// How much of a TTL a lease may lack, for clocks of different speed, in parts per million.
    pub drift_ppm: u32,
    /// Whether an acquire, and a refresh by the token alone, may leave a lease less than it had.
    pub shortens: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self { place_kept: 5_000_000_000, late: 250_000_000, drift_ppm: 0, shortens: false }
    }
}

/// What was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// An acquire, whose answer came after a wait of `wait`.
    Acquire {
        /// The token that claims the key.
        token: Token,
        /// Whether the client chose it: such a claim keeps its place.
        chosen: bool,
        /// The length of the lease.
        ttl: Nanos,
        /// How long it may wait; 0 does not.
        wait: Nanos,
    },
    /// A refresh.
    Refresh {
        /// The token of the lease.
        token: Token,
        /// The number of the lease that is meant.
        fence: Option<u64>,
        /// The new length; the last one if absent.
        ttl: Option<Nanos>,
    },
    /// A release.
    Release {
        /// The token of the lease, or of the place in line.
        token: Token,
        /// The number of the lease that is meant.
        fence: Option<u64>,
    },
    /// A forced release.
    ForceRelease,
    /// A look.
    Look {
        /// The token that came along.
        token: Option<Token>,
    },
}

/// What was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// 201 if the lease is new, else 200.
    Granted {
        /// The number of the lease.
        fence: u64,
        /// Whether nobody was told of the lease before.
        new: bool,
    },
    /// 409 `lock_held`.
    Held,
    /// 409 `wait_cancelled`.
    Cancelled,
    /// 409 `lock_lost`.
    Lost,
    /// 204 of a release, 200 of a forced one.
    Ended,
    /// A look.
    Seen {
        /// The number of the lease; nothing if the key is free.
        fence: Option<u64>,
        /// Whether the token that came along holds the key.
        mine: Option<bool>,
        /// How many claims wait.
        waiters: u64,
    },
    /// Nobody knows. Whatever it may do, it has done by the later bound.
    Unknown,
}

/// What may be true of a key after its history so far.
#[derive(Clone, Debug)]
pub struct State {
    settings: Settings,
    worlds: Vec<World>,
}

impl State {
    /// Returns the state of a key that was never used.
    pub fn new(settings: Settings) -> Self {
        Self { settings, worlds: vec![World::default()] }
    }

    /// Takes note of a question and its answer, between these moments.
    ///
    /// # Errors
    /// The contract does not allow the answer. The state is as before.
    pub fn may(
        &mut self,
        question: Question,
        answer: Answer,
        low: Nanos,
        high: Nanos,
    ) -> Result<(), String> {
        let told = |settings: &Settings, world: &World| world.ask(settings, question, (low, high));
        self.follow(answer, (low, high), told, || format!("{question:?}"))
    }

    /// Takes note of a request that waits: it was in line at some moment between these, and has no answer.
    ///
    /// # Errors
    /// It would have had an answer at once.
    pub fn may_wait(
        &mut self,
        (token, chosen): (Token, bool),
        ttl: Nanos,
        low: Nanos,
        high: Nanos,
    ) -> Result<(), String> {
        let join = |world: &World| {
            let mut world = world.clone();
            world.join(token, chosen, ttl);
            (Expected::Held, world)
        };
        let told = |_: &Settings, world: &World| {
            if world.excludes(token) { vec![join(world)] } else { Vec::new() }
        };
        self.follow(Answer::Held, (low, high), told, || format!("token {token} waits"))
    }

    /// Takes note of the answer to a request that waited.
    ///
    /// # Errors
    /// The contract does not allow the answer.
    pub fn may_end(
        &mut self,
        token: Token,
        answer: Answer,
        low: Nanos,
        high: Nanos,
    ) -> Result<(), String> {
        let told =
            |settings: &Settings, world: &World| world.end_wait(settings, token, (low, high));
        self.follow(answer, (low, high), told, || format!("token {token} has waited"))
    }

    fn follow(
        &mut self,
        answer: Answer,
        (low, high): (Nanos, Nanos),
        told: impl Fn(&Settings, &World) -> Vec<(Expected, World)>,
        question: impl Fn() -> String,
    ) -> Result<(), String> {
        let mut worlds: Vec<World> = Vec::new();
        let mut allowed: Vec<String> = Vec::new();
        let mut keep = |world: World| {
            if !worlds.contains(&world) {
                worlds.push(world);
            }
        };
        for world in &self.worlds {
            for now in world.until(&self.settings, (low, high)) {
                for (expected, next) in told(&self.settings, &now) {
                    if answer == Answer::Unknown {
                        keep(next);
                    } else if let Some(next) = next.agrees(expected, answer) {
                        keep(next);
                    } else {
                        allowed.push(format!("{expected:?}"));
                    }
                }
                if answer == Answer::Unknown {
                    keep(now);
                }
            }
        }
        if worlds.is_empty() {
            allowed.dedup();
            return Err(format!("{}: {answer:?}, allowed: {}", question(), allowed.join(" or ")));
        }
        self.worlds = worlds;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
