//! One client that asks one thing after another, each answer held against the specification at once.
//!
//! Without faults and without others nearly nothing is left open, so what a checker of histories has to
//! allow for is refused here.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::drive::asker::{Asker, Held, Question, Told};
use crate::history::{Asked, Kind, Nanos, Outcome};
use crate::record::Recorder;
use crate::servers::Routes;
use crate::spec;
use crate::spec::{Settings, State};

/// How many keys are asked for.
const KEYS: u32 = 6;

const MILLISECOND: Nanos = 1_000_000;

/// A sequence of questions, and what the specification makes of the answers.
#[derive(Debug)]
pub struct Sequence {
    asker: Asker,
    chance: fastrand::Rng,
    deadline: Nanos,
    /// Answers that nobody gave are left open for so long.
    settings: Settings,
    states: Vec<State>,
    /// Tokens with the last number that each was told of a key.
    tokens: Vec<Held>,
    numbers: HashMap<(u32, u64), u64>,
    asked: u64,
}

impl Sequence {
    /// Prepares a sequence that follows from a seed.
    pub fn new(routes: &Routes, recorder: &Arc<Recorder>, seed: u64, settings: Settings) -> Self {
        let asker = Asker::new(0, routes, recorder.clone());
        let tokens = (0..4).map(|_| asker.choose()).collect();
        Self {
            asker,
            chance: fastrand::Rng::with_seed(seed),
            deadline: 1_000 * MILLISECOND,
            settings,
            states: (0..KEYS).map(|_| State::new(settings)).collect(),
            tokens,
            numbers: HashMap::new(),
            asked: 0,
        }
    }

    /// Asks for so long, and returns how many questions were answered as specified.
    ///
    /// # Errors
    /// An answer is not what the specification allows.
    pub async fn run(&mut self, lasts: Duration) -> Result<u64, String> {
        let end = Instant::now() + lasts;
        while Instant::now() < end {
            match self.chance.u32(..100) {
                0..2 => sleep(Duration::from_millis(self.chance.u64(1..250))).await,
                2..8 => self.asker.turn(),
                8..10 => {
                    let old = self.chance.usize(..self.tokens.len());
                    self.tokens[old] = self.asker.choose();
                }
                _ => self.step().await?,
            }
        }
        Ok(self.asked)
    }

    async fn step(&mut self) -> Result<(), String> {
        let key = self.chance.u32(..KEYS);
        let token = self.tokens[self.chance.usize(..self.tokens.len())].clone();
        let known = self.numbers.get(&(key, token.number)).copied();
        let named = known.filter(|_| self.chance.bool());
        let ttl_ms = self.chance.u64(100..600);
        let (kind, asked) = match self.chance.u32(..100) {
            0..35 => (Kind::Acquire, Asked { ttl_ms: Some(ttl_ms), ..Asked::default() }),
            35..55 => {
                let ttl_ms = self.chance.bool().then_some(ttl_ms);
                (Kind::Refresh, Asked { ttl_ms, fencing_token: named, ..Asked::default() })
            }
            55..75 => (Kind::Release, Asked { fencing_token: named, ..Asked::default() }),
            75..78 => (Kind::ForceRelease, Asked::default()),
            _ => (Kind::Look, Asked::default()),
        };
        let token = Some(token).filter(|_| kind != Kind::ForceRelease);
        let question = Question { kind, key, token, asked };
        let told = self.asker.ask(&question).await;
        self.hold_against(&question, &told)
    }

    fn hold_against(&mut self, question: &Question, told: &Told) -> Result<(), String> {
        let answer = answered(question, told);
        let high = match answer {
            spec::Answer::Unknown => told.sent + self.deadline,
            _ => self.asker.recorder.now(),
        };
        if let spec::Answer::Granted { fence, .. } = answer {
            let token = question.token.as_ref().map_or(0, |token| token.number);
            self.numbers.insert((question.key, token), fence);
        }
        // A look that nobody answered has changed nothing.
        if answer == spec::Answer::Unknown && question.kind == Kind::Look {
            return Ok(());
        }
        let state = &mut self.states[question.key as usize];
        let asked = specified(question);
        let wrong = state.may(asked, answer, told.sent, high);
        self.asked += 1;
        wrong.map_err(|wrong| {
            let late = self.settings.late / MILLISECOND;
            format!(
                "question {} of key {} at {:.6} s (status {}, a lease may end {late} ms late): {wrong}",
                self.asked,
                question.key,
                told.sent as f64 / 1e9,
                told.status,
            )
        })
    }
}

fn specified(question: &Question) -> spec::Question {
    let token = question.token.as_ref().map_or(0, |token| token.number);
    let fence = question.asked.fencing_token;
    let ttl = question.asked.ttl_ms.map(|ttl| ttl * MILLISECOND);
    match question.kind {
        Kind::Refresh => spec::Question::Refresh { token, fence, ttl },
        Kind::Release => spec::Question::Release { token, fence },
        Kind::ForceRelease => spec::Question::ForceRelease,
        Kind::Look => spec::Question::Look { token: Some(token) },
        Kind::Acquire | Kind::Hold | Kind::Alive | Kind::HoldEnd => {
            let ttl = ttl.unwrap_or_default();
            spec::Question::Acquire { token, chosen: true, ttl, wait: 0 }
        }
    }
}

fn answered(question: &Question, told: &Told) -> spec::Answer {
    let said = &told.said;
    match (question.kind, told.outcome, told.status) {
        (_, Outcome::Unknown, _) | (Kind::Look, Outcome::No, _) => spec::Answer::Unknown,
        (_, Outcome::No, 503) => spec::Answer::Unknown,
        (Kind::Acquire | Kind::Refresh, Outcome::Yes, status) => {
            let fence = said.fencing_token.unwrap_or_default();
            spec::Answer::Granted { fence, new: status == 201 }
        }
        (Kind::Look, Outcome::Yes, _) => spec::Answer::Seen {
            fence: said.fencing_token,
            mine: said.mine,
            waiters: said.waiters.unwrap_or_default(),
        },
        (_, Outcome::Yes, _) => spec::Answer::Ended,
        (Kind::Acquire, Outcome::No, _) => spec::Answer::Held,
        (_, Outcome::No, _) => spec::Answer::Lost,
    }
}
