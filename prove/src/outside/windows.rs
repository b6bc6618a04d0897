//! The history of a key, cut where nothing was asked and an answer had just said who holds it.
//!
//! The next window begins with that state, and with every question before it that may still act.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use super::Settings;
use super::spec::{Asks, Holder, Key, Says};
use crate::history::{Kind, NO_TOKEN, Nanos, Operation, Outcome, Token};

const MILLISECOND: Nanos = 1_000_000;

/// An operation as the specification knows it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step<'a> {
    pub(super) asks: Asks,
    pub(super) says: Says,
    pub(super) sent: Nanos,
    /// When the answer was there; never for one that may act at any time.
    pub(super) answered: Nanos,
    pub(super) of: &'a Operation,
}

impl<'a> Step<'a> {
    /// Returns what an operation means, or nothing if it says nothing: it certainly had no effect, or none
    /// that the specification knows.
    pub(super) fn of(of: &'a Operation, number: u64) -> Option<Self> {
        // A token that nobody was told is a token of its own.
        let token = if of.token == NO_TOKEN { Token::MAX - number } else { of.token };
        let asks = match of.kind {
            Kind::Acquire => Asks::Acquire(token),
            Kind::Refresh => Asks::Refresh(token, of.asked.fencing_token),
            Kind::Release => Asks::Release(token, of.asked.fencing_token),
            Kind::Look => Asks::Look(token),
            Kind::Hold | Kind::Alive | Kind::HoldEnd | Kind::ForceRelease => return None,
        };
        let said = &of.said;
        let says = match (of.outcome, of.kind) {
            (Outcome::Unknown, Kind::Acquire | Kind::Release) => Says::Nothing,
            (Outcome::Yes, Kind::Acquire | Kind::Refresh) => Says::Lease(said.fencing_token?),
            (Outcome::Yes, Kind::Release) => Says::Released,
            (Outcome::Yes, Kind::Look) if said.held? => Says::Seen(said.fencing_token, said.mine),
            (Outcome::Yes, Kind::Look) => Says::Free,
            (Outcome::No, Kind::Acquire) if of.code == "lock_held" => Says::Held,
            (Outcome::No, Kind::Refresh | Kind::Release) if of.code == "lock_lost" => Says::Lost,
            _ => return None,
        };
        let lost = says == Says::Nothing;
        let answered = if lost { Nanos::MAX } else { of.answered? };
        Some(Self { asks, says, sent: of.sent, answered, of })
    }

    /// Whether it may act at any time.
    pub(super) fn is_open(&self) -> bool {
        self.says == Says::Nothing
    }

    fn number(&self) -> Option<u64> {
        match self.says {
            Says::Lease(number) | Says::Seen(Some(number), _) => Some(number),
            _ => None,
        }
    }
}

#[derive(Debug)]
pub(super) struct Window<'a> {
    holder: Option<Holder>,
    greatest: u64,
    /// Questions of before that may still act.
    pub(super) open: Vec<Step<'a>>,
    pub(super) steps: Vec<Step<'a>>,
}

impl Window<'_> {
    /// Returns the key at its beginning.
    pub(super) fn key(&self, steps: Rc<std::cell::Cell<u64>>) -> Key {
        Key::new(self.holder, self.greatest, steps)
    }
}

/// Cuts the history of a key, whose steps are in the order in which they were sent, until a lease may be
/// over or lost.
pub(super) fn cut<'a>(steps: &[Step<'a>], settings: Settings) -> Vec<Window<'a>> {
    let mut owners = HashMap::new();
    for step in steps {
        if let (Asks::Acquire(token), Says::Lease(number)) = (step.asks, step.says) {
            owners.insert(number, token);
        }
    }
    let mut windows = Vec::new();
    let mut leases = Leases::default();
    let mut window = Window { holder: None, greatest: 0, open: Vec::new(), steps: Vec::new() };
    let mut latest = 0; // When the last answer so far was there.
    for (at, step) in steps.iter().enumerate() {
        let end = if step.is_open() { step.sent } else { step.answered };
        leases.add(step);
        if leases.may_be_over(end) || end >= settings.forgets {
            return windows;
        }
        window.steps.push(*step);
        if step.is_open() {
            continue;
        }
        let alone = latest < step.sent && steps.get(at + 1).is_none_or(|next| next.sent > end);
        latest = latest.max(step.answered);
        let Some(holder) = holder_after(step, &owners).filter(|_| alone) else { continue };
        let number = holder.and_then(|holder| holder.number);
        let all = window.open.iter().chain(&window.steps);
        let open: Vec<_> =
            all.filter(|one| acts_after(one, step, number, settings)).copied().collect();
        leases.keep(holder, &open);
        let said = window.steps.iter().filter_map(Step::number).max().unwrap_or(0);
        let greatest = window.greatest.max(said);
        let next = Window { holder, greatest, open, steps: Vec::new() };
        windows.push(std::mem::replace(&mut window, next));
    }
    if !window.steps.is_empty() {
        windows.push(window);
    }
    windows
}

/// Returns the holder after an operation that was alone, if its answer says it.
fn holder_after(step: &Step<'_>, owners: &HashMap<u64, Token>) -> Option<Option<Holder>> {
    let known = |token, number| Holder { token, number: Some(number), told: true };
    match (step.asks, step.says) {
        (Asks::Acquire(token) | Asks::Refresh(token, _), Says::Lease(number)) => {
            Some(Some(known(token, number)))
        }
        (_, Says::Released | Says::Free) => Some(None),
        (_, Says::Seen(Some(number), _)) => {
            owners.get(&number).map(|token| Some(known(*token, number)))
        }
        _ => None,
    }
}

/// Whether a question that was left open may act after this step, when the lease of this number is there.
fn acts_after(open: &Step<'_>, step: &Step<'_>, number: Option<u64>, settings: Settings) -> bool {
    let recent = open.sent + settings.acts_within > step.sent;
    match open.asks {
        // A lease that is over has its number for itself.
        Asks::Release(_, Some(named)) => open.is_open() && recent && number == Some(named),
        _ => open.is_open() && recent,
    }
}

/// Until when leases last for certain, by their tokens.
#[derive(Debug, Default)]
struct Leases(BTreeMap<Token, Nanos>);

impl Leases {
    fn add(&mut self, step: &Step<'_>) {
        let (said, asked) = (step.of.said.ttl_ms, step.of.asked.ttl_ms);
        let ttl = said.unwrap_or_else(|| asked.unwrap_or(0) / 100 * 98);
        let until = step.sent + ttl * MILLISECOND;
        match (step.asks, step.says) {
            (Asks::Acquire(token), Says::Lease(_)) => {
                let before = self.0.entry(token).or_insert(until);
                *before = until.max(*before);
            }
            (Asks::Refresh(token, _), Says::Lease(_)) => drop(self.0.insert(token, until)),
            (Asks::Acquire(token), Says::Nothing) => drop(self.0.entry(token).or_insert(until)),
            _ => (),
        }
    }

    fn may_be_over(&self, at: Nanos) -> bool {
        self.0.values().any(|until| *until <= at)
    }

    /// Forgets the leases that are over, when this one is there and these may still be granted.
    fn keep(&mut self, holder: Option<Holder>, open: &[Step<'_>]) {
        self.0.retain(|token, _| {
            holder.is_some_and(|holder| holder.token == *token)
                || open.iter().any(|step| step.asks == Asks::Acquire(*token))
        });
    }
}
