//! What a key is to the judge from outside: a holder or none, and the greatest number so far.
//!
//! An answer is a step of this specification or it is not. A question without a certain answer is
//! invoked by the tester whenever it likes, or never. A lease that nobody was told of may have been
//! taken back, so the next answer decides whether it is there.

use std::cell::Cell;
use std::rc::Rc;

use stateright::semantics::SequentialSpec;

use crate::history::Token;

/// The lease of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Holder {
    pub(super) token: Token,
    /// Its number, once an answer has said it.
    pub(super) number: Option<u64>,
    /// Whether its client was told of it.
    pub(super) told: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Key {
    holder: Option<Holder>,
    /// The greatest number that an answer has said.
    greatest: u64,
    /// Whether a question that was left open was invoked and changed nothing: the same history without
    /// it is searched as well.
    idle: bool,
    /// How many more steps the search may take, on all its ways together.
    steps: Rc<Cell<u64>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asks {
    Acquire(Token), // For the lease, by this token.
    /// For more time of this token's lease, by its number if there is one.
    Refresh(Token, Option<u64>),
    /// For the end of this token's lease, by its number if there is one.
    Release(Token, Option<u64>),
    Look(Token), // Who holds the key.
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Says {
    Lease(u64), // The token has the lease of this number.
    Released,   // The lease that was meant has ended by this release.
    Lost,       // The lease that was meant is not there.
    Held,       // Another token has the key.
    Free,       // Nobody has the key.
    /// Somebody has the key, by this number, and it is the token that asked.
    Seen(Option<u64>, Option<bool>),
    Nothing, // Whatever it was, it was not received.
}

impl Key {
    /// A key with this holder, for a search of so many steps.
    pub(super) fn new(holder: Option<Holder>, greatest: u64, steps: Rc<Cell<u64>>) -> Self {
        Self { holder, greatest, idle: false, steps }
    }

    /// Gives the key to a token whose client knows it, if that is a grant or a repeat.
    fn take(&mut self, token: Token, number: u64) -> bool {
        if self.repeat(token, number) {
            return true;
        }
        let free = self.holder.is_none_or(|holder| !holder.told) && number > self.greatest;
        free && self.know(Holder { token, number: None, told: true }, number)
    }

    /// Tells a token of the lease that it has, if it may have this number.
    fn repeat(&mut self, token: Token, number: u64) -> bool {
        let own = self.meant(token, Some(number));
        own.is_some_and(|own| self.know(Holder { told: true, ..own }, number))
    }

    /// Whether a holder's number may be this one.
    fn may_be(&self, holder: Holder, number: u64) -> bool {
        holder.number.map_or(number > self.greatest, |own| own == number)
    }

    /// The key has a holder by this number.
    fn know(&mut self, holder: Holder, number: u64) -> bool {
        self.greatest = self.greatest.max(number);
        self.holder = Some(Holder { number: Some(number), ..holder });
        true
    }

    /// Returns the holder if it is this token, by this number if one is named.
    fn meant(&self, token: Token, named: Option<u64>) -> Option<Holder> {
        let own = self.holder.filter(|holder| holder.token == token)?;
        named.is_none_or(|number| self.may_be(own, number)).then_some(own)
    }

    /// Whether the holder, if there is one, may have been taken back; if so, it was.
    fn vanish(&mut self, holder: Option<Holder>) -> bool {
        let gone = holder.is_none_or(|holder| !holder.told);
        if gone && holder.is_some() {
            self.holder = None;
        }
        gone
    }

    fn release(&mut self, token: Token, named: Option<u64>) -> bool {
        let Some(own) = self.meant(token, named) else { return false };
        self.greatest = self.greatest.max(named.or(own.number).unwrap_or(0));
        self.holder = None;
        true
    }

    fn see(&mut self, token: Token, number: Option<u64>, mine: Option<bool>) -> bool {
        let Some(holder) = self.holder else { return false };
        let is_mine = mine.is_none_or(|mine| mine == (holder.token == token));
        let is_known = |number| self.may_be(holder, number) && self.know(holder, number);
        is_mine && number.is_none_or(is_known)
    }
}

impl SequentialSpec for Key {
    type Op = Asks;
    type Ret = Says;

    /// A question whose answer nobody has.
    fn invoke(&mut self, asks: &Asks) -> Says {
        let acts = match *asks {
            Asks::Acquire(token) => {
                let free = self.holder.is_none_or(|holder| !holder.told && holder.token != token);
                if free {
                    self.holder = Some(Holder { token, number: None, told: false });
                }
                free
            }
            Asks::Release(token, named) => self.release(token, named),
            Asks::Refresh(..) | Asks::Look(_) => false,
        };
        self.idle |= !acts;
        Says::Nothing
    }

    fn is_valid_step(&mut self, asks: &Asks, says: &Says) -> bool {
        let left = self.steps.get();
        self.steps.set(left.saturating_sub(1));
        if left == 0 || self.idle {
            return false;
        }
        match (*asks, *says) {
            (Asks::Acquire(token), Says::Lease(number)) => self.take(token, number),
            (Asks::Acquire(token), Says::Held) => {
                self.holder.is_some_and(|holder| holder.token != token)
            }
            (Asks::Refresh(token, named), Says::Lease(number)) => {
                named.is_none_or(|named| named == number) && self.repeat(token, number)
            }
            (Asks::Refresh(token, named) | Asks::Release(token, named), Says::Lost) => {
                let meant = self.meant(token, named);
                self.vanish(meant)
            }
            (Asks::Release(token, named), Says::Released) => self.release(token, named),
            (Asks::Look(_), Says::Free) => self.vanish(self.holder),
            (Asks::Look(token), Says::Seen(number, mine)) => self.see(token, number, mine),
            _ => false,
        }
    }
}
