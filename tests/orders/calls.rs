//! The calls to the table, each with what its answer must not be.

use std::sync::Arc;

use crate::lock::lease::{Claim, Origin};
use crate::lock::store::{Answer, Ask, Condition, Ended, Keep, Renewed, Target};
use crate::lock::table::orders::service::{key, token};
use crate::lock::table::orders::state::{Fault, LONG, STEP, Tick, Wish, World};
use crate::lock::table::{Entry, Table};
use crate::lock::time::{Timestamp, Ttl};
use crate::lock::token::FencingToken;

/// After that long every lease, hand-off and reserved place is over.
const LATER: Tick = LONG + 4;

/// A claim of a client: the client and the number of its claim.
pub(super) type Whose = (usize, u8);

pub(super) fn at(now: Tick) -> Timestamp {
    Timestamp::from_micros(now * STEP)
}

pub(super) fn ttl(steps: Tick) -> Ttl {
    Ttl::from_millis(steps * STEP / 1_000)
}

/// Whole steps of a time that is left.
pub(super) fn steps(left: Ttl) -> Tick {
    left.as_millis() * 1_000 / STEP
}

pub(super) fn target((party, claim): Whose, number: Option<u64>) -> Target {
    Target::of(key(), token(party, claim), number.and_then(FencingToken::from_number))
}

fn claim((party, claim): Whose, wish: Wish, named: Option<u64>) -> Claim {
    Claim {
        key: key().clone(),
        token: token(party, claim).clone(),
        origin: Origin::Client,
        ttl: ttl(wish.ttl()),
        owner: None,
        slots: None,
        units: None,
        kept: wish.is_stream(),
        named: named.and_then(FencingToken::from_number),
        permit: None,
    }
}

impl World {
    pub(super) fn table(&mut self) -> &mut Table {
        Arc::make_mut(&mut self.table)
    }

    /// The lease of a claim, if it has not ended.
    pub(super) fn lease(&self, (party, claim): Whose) -> Option<&Entry> {
        let own = self.table.entry_of(key(), token(party, claim))?;
        (own.ends_at > at(self.now)).then_some(own)
    }

    pub(super) fn ask(
        &mut self,
        whose: Whose,
        (wish, named): (Wish, Option<u64>),
        ask: Ask,
    ) -> Answer {
        let (now, before) = (at(self.now), self.lease(whose).cloned());
        let ahead = self.is_ahead_of(whose);
        let claim = claim(whose, wish, named);
        let answer = self.table().ask(&claim, ask, now, 0).expect("numbers are left");
        self.forget_changes();
        match &answer {
            Answer::Won(win) if win.fresh => {
                let number = win.lease.fencing_token.number();
                if number <= self.highest {
                    self.wrong(Fault::NumberFell);
                }
                if named.is_none() && ahead {
                    self.wrong(Fault::PassedOver);
                }
                self.highest = self.highest.max(number);
            }
            Answer::Won(_) if before.is_none() => self.wrong(Fault::Revived),
            Answer::Held(status) if before.is_some() && status.mine != Some(true) => {
                self.wrong(Fault::FalseNo);
            }
            Answer::Lost(_) => self.is_truly_lost(before.as_ref(), named),
            _ => (),
        }
        answer
    }

    /// Whether a claim has to wait for another one in line.
    fn is_ahead_of(&self, (party, claim): Whose) -> bool {
        let Some(line) = self.table.lines.get(key()) else { return false };
        let (own, now) = (token(party, claim), at(self.now));
        let place = line.place(own).unwrap_or(u64::MAX);
        match line.handed().filter(|(_, until)| *until > now) {
            Some((handed, _)) => handed != own,
            None => line.head().is_some_and(|(head, token)| token != own && head < place),
        }
    }

    /// A client is told that a lease is lost.
    fn is_truly_lost(&mut self, before: Option<&Entry>, named: Option<u64>) {
        let is_it = |own: &Entry| named.is_none_or(|named| named == own.fencing_token.number());
        if before.is_some_and(is_it) {
            self.wrong(Fault::FalseNo);
        }
    }

    /// A refresh by a client.
    pub(super) fn refresh(&mut self, whose: Whose, asked: Tick, named: Option<u64>) -> Renewed {
        let before = self.lease(whose).cloned();
        let now = at(self.now);
        let renewed = self.table().renew(&target(whose, named), Some(ttl(asked)), now);
        self.forget_changes();
        match &renewed {
            Renewed::Lease(_) if before.is_none() => self.wrong(Fault::Revived),
            Renewed::Lost(_) => self.is_truly_lost(before.as_ref(), named),
            _ => (),
        }
        renewed
    }

    /// A call of the keeper of a stream.
    pub(super) fn keep(&mut self, of: &Target, asked: Option<Tick>) -> Renewed {
        let now = at(self.now);
        let renewed = self.table().renew(of, asked.map(ttl), now);
        self.forget_changes();
        renewed
    }

    pub(super) fn end(&mut self, of: &Target) -> Ended {
        let now = at(self.now);
        let ended = self.table().end(of, now);
        self.forget_changes();
        ended
    }

    /// A release by a client.
    pub(super) fn release(&mut self, whose: Whose, named: Option<u64>) -> Ended {
        let before = self.lease(whose).cloned();
        let ended = self.end(&target(whose, named).only(Condition::Any));
        if matches!(ended, Ended::Nothing(_)) {
            self.is_truly_lost(before.as_ref(), named);
        }
        ended
    }

    pub(super) fn leave(&mut self, (party, claim): Whose, keep: Keep) {
        let now = at(self.now);
        self.table().leave(key(), &[(token(party, claim).clone(), keep)], now);
        self.forget_changes();
    }

    /// A forced release; returns the numbers of the leases that it ended.
    pub(super) fn force(&mut self, named: Option<u64>) -> Vec<u64> {
        let now = at(self.now);
        let named = named.and_then(FencingToken::from_number);
        let ended = self.table().force_release(key(), named, now);
        self.forget_changes();
        ended.into_iter().filter_map(|holder| Some(holder.fencing_token?.number())).collect()
    }

    /// Hints and the log of changes are no part of the rules: a question comes at any moment here.
    fn forget_changes(&mut self) {
        let table = self.table();
        table.hints.clear();
        table.changes.clear();
    }

    /// What must be true of the table once nothing is under way: its leases have holders, and in
    /// the end the key is free for anybody.
    pub(super) fn rests(&mut self) {
        let now = at(self.now);
        for entry in self.table.entries(key()).iter().filter(|entry| entry.ends_at > now) {
            let number = entry.fencing_token.number();
            let back = self.put_back.iter().find(|(of, _)| *of == number);
            let is_put_back = back.is_some_and(|(_, until)| entry.ends_at <= at(*until));
            if !self.has_told(number) && !is_put_back {
                return self.wrong(Fault::LeftOver);
            }
        }
        let mut table = Table::clone(&self.table);
        let later = at(self.now + LATER);
        let stranger = claim((STRANGER, 0), Wish::Acquire(LONG), None);
        let answer = table.ask(&stranger, Ask::Once(None), later, 0);
        table.sweep(later);
        if !matches!(answer, Some(Answer::Won(_))) || !table.lines.is_empty() {
            self.wrong(Fault::Blocked);
        }
    }
}

/// A client that is not among the parties.
const STRANGER: usize = 3;
