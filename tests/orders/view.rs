//! What a state is for what may come after it: two states with one view are one.
//!
//! Moments are counted from now, numbers of leases from the greatest one down without gaps, and the
//! clients have no order: so runs that differ in these alone meet.

use std::fmt;
use std::hash::{Hash, Hasher};

use crate::lock::store::Keep;
use crate::lock::table::orders::Rule;
use crate::lock::table::orders::service::{key, token};
use crate::lock::table::orders::state::{
    Belief, Client, LONG, Party, Reply, Request, STEP, Stage, Tick, Turn, Wish, World,
};
use crate::lock::time::Timestamp;
use crate::lock::token::LeaseToken;

/// The view of a state, written with the clients in one order.
struct Writer<'a> {
    world: &'a World,
    order: &'a [usize],
    numbers: Vec<u64>,
    text: Vec<u8>,
}

impl World {
    /// The least of the views over all orders of the clients.
    pub(super) fn view(&self) -> Vec<u8> {
        let numbers = self.numbers();
        let written = |order: &&[usize]| {
            let text = Vec::with_capacity(256);
            let mut writer = Writer { world: self, order, numbers: numbers.clone(), text };
            writer.all();
            writer.text
        };
        orders(self.parties.len()).iter().map(written).min().unwrap_or_default()
    }

    /// All numbers that somebody knows, in order.
    fn numbers(&self) -> Vec<u64> {
        let mut all = vec![self.highest, self.table.last_fencing_token()];
        all.extend(self.table.entries(key()).iter().map(|entry| entry.fencing_token.number()));
        for party in &self.parties {
            all.extend(party.knows.filter(|_| party.sent < self.each));
            all.extend(party.relies.map(|belief| belief.number));
            let granted = party.turns.iter().filter(|turn| turn.receipt.is_some());
            all.extend(granted.map(|turn| turn.number));
            for request in &party.requests {
                all.extend(request.named);
                all.extend(request.stage.number());
            }
        }
        all.sort_unstable();
        all.dedup();
        all
    }
}

/// All orders of so many clients.
fn orders(clients: usize) -> &'static [&'static [usize]] {
    match clients {
        1 => &[&[0]],
        2 => &[&[0, 1], &[1, 0]],
        _ => &[&[0, 1, 2], &[0, 2, 1], &[1, 0, 2], &[1, 2, 0], &[2, 0, 1], &[2, 1, 0]],
    }
}

impl Stage {
    fn number(self) -> Option<u64> {
        match self {
            Self::Holds { number, .. } | Self::Leaves { number, .. } => Some(number),
            Self::Told(Reply::Lease { number, .. } | Reply::Mine(number)) => Some(number),
            Self::Told(Reply::Lost(number)) => number,
            _ => None,
        }
    }
}

impl Writer<'_> {
    fn all(&mut self) {
        let world = self.world;
        let spare = world.spare;
        self.text.extend([spare.give_ups, spare.cuts, spare.stops, spare.forced]);
        self.text.push(world.fault.map_or(0, |fault| fault as u8 + 1));
        self.number(Some(world.highest));
        self.number(Some(world.table.last_fencing_token()));
        for at in 0..self.numbers.len() {
            self.text.push(u8::from(world.was_forced(self.numbers[at])));
        }
        self.leases();
        self.line();
        for at in self.order {
            self.party(&world.parties[*at]);
        }
    }

    fn leases(&mut self) {
        let world = self.world;
        for entry in world.table.entries(key()) {
            self.token(&entry.token);
            self.number(Some(entry.fencing_token.number()));
            self.moment(entry.ends_at);
            let told = world.has_told(entry.fencing_token.number());
            self.text.push(entry.state.number() as u8 + 4 * u8::from(told));
            let back = world.put_back.iter().find(|(of, _)| *of == entry.fencing_token.number());
            self.text.push(back.map_or(0, |(_, end)| 1 + self.left(*end)));
        }
        self.text.push(255);
    }

    fn line(&mut self) {
        if let Some(line) = self.world.table.lines.get(key()) {
            for seen in line.seen() {
                self.token(seen.token);
                let away = seen.away_until.map_or(0, |until| 1 + self.since_now(until));
                self.text.push(away);
            }
            if let Some((token, until)) = line.handed() {
                self.text.push(254);
                self.token(token);
                self.moment(*until);
            }
        }
        self.text.push(255);
    }

    fn party(&mut self, party: &Party) {
        let sends = party.sent < self.world.each;
        self.text.extend([
            party.sent,
            u8::from(party.has_asked && sends) + 2 * u8::from(party.has_named),
        ]);
        self.number(party.knows.filter(|_| sends));
        let now = self.world.now;
        let relies = party.relies.filter(|belief| belief.until > now);
        if let Some(Belief { number, until, by_stream }) = relies {
            self.number(Some(number));
            self.text.push(2 * self.left(until) + u8::from(by_stream));
        }
        self.text.push(253);
        for (claim, keep) in &party.leaving {
            self.text.push(2 * (party.claim - claim) + u8::from(*keep == Keep::Nothing));
        }
        self.text.push(253);
        for request in &party.requests {
            self.request(request, party);
        }
        for turn in &party.turns {
            self.turn(turn, party);
        }
        self.text.push(255);
    }

    fn request(&mut self, request: &Request, party: &Party) {
        let now = self.world.now;
        let Request { wish, claim, named, sent, way, stage, client, seen_end, .. } = request;
        let (kind, ttl) = kind(*wish);
        self.text.extend([kind, ttl, party.claim - claim, *client as u8]);
        self.number(*named);
        let of_turn = party.turns.iter().find(|turn| turn.claim == *claim).map(|turn| turn.number);
        let number = stage.number().or(of_turn);
        self.text.push(u8::from(number.is_some_and(|number| *seen_end >= number)));
        // An answer to a request that took longer than the longest TTL is worth nothing.
        let age = match stage {
            Stage::Sent => now - sent,
            Stage::Granted | Stage::InLine { .. } => *way,
            _ => 0,
        };
        self.text.push(if *client == Client::Listens { age.min(LONG) as u8 } else { 9 });
        match *stage {
            Stage::Sent => self.text.push(0),
            Stage::Granted => self.text.push(1),
            Stage::InLine { asked, joined } => {
                self.text.push(2 + u8::from(asked) + 2 * u8::from(joined));
            }
            Stage::Holds { number, line, read } => {
                self.text.push(6);
                self.number(Some(number));
                if *client == Client::Listens {
                    self.text.push(read.map_or(9, |read| (now - read).min(LONG) as u8));
                    match line {
                        Some(line) => self.reply(line),
                        None => self.text.push(9),
                    }
                }
            }
            Stage::Leaves { number, ends } => {
                self.text.push(7 + u8::from(ends));
                self.number(Some(number));
            }
            Stage::Told(reply) => {
                self.text.push(9);
                self.reply(reply);
            }
        }
    }

    fn reply(&mut self, reply: Reply) {
        let (kind, number) = match reply {
            Reply::Lease { number, left, until } => {
                // Only the later lines of a stream, which say no `until`, count from their `left`.
                let counts = until == 0 || Rule::FromTheSending.is_left_out();
                self.text.extend([self.left(until), if counts { left as u8 } else { 9 }]);
                (0, Some(number))
            }
            Reply::Held => (1, None),
            Reply::Mine(number) => (2, Some(number)),
            Reply::Lost(number) => (3, number),
            Reply::Released => (4, None),
            Reply::Superseded => (5, None),
            Reply::Cancelled => (6, None),
            Reply::Broken => (7, None),
        };
        self.text.push(kind);
        self.number(number);
    }

    fn turn(&mut self, turn: &Turn, party: &Party) {
        let Turn { claim, id, wish, at, asked, left, number, receipt } = turn;
        let whose = party.requests.iter().position(|request| request.id == *id);
        let (kind, ttl) = kind(*wish);
        self.text.extend([
            252,
            party.claim - claim,
            whose.map_or(9, |at| at as u8),
            kind,
            ttl,
            *at as u8,
        ]);
        self.text.push(u8::from(party.refused & 1 << id != 0));
        let Some(receipt) = receipt else { return };
        let is_read = whose.is_some_and(|at| party.requests[at].client == Client::Listens);
        let left = (asked + left).saturating_sub(self.world.now) as u8;
        let age = (self.world.now - asked).min(LONG) as u8;
        self.text.extend(if is_read {
            [age, left]
        } else {
            [9, if wish.is_stream() { left } else { 0 }]
        });
        self.number(Some(*number));
        let replaced = receipt.replaced.map(|replaced| Timestamp::from_micros(replaced.ends_at));
        let replaced = replaced.map_or(0, |at| 1 + self.since_now(at));
        let place = receipt.place.map_or(0, |place| 1 + self.places_below(place));
        self.text.extend([place, replaced]);
    }

    /// The claims with lower places, in line or granted.
    fn places_below(&self, place: u64) -> u8 {
        let line = self.world.table.lines.get(key());
        let seen = line.map(|line| line.seen()).unwrap_or_default();
        let turns = self.world.parties.iter().flat_map(|party| &party.turns);
        let granted = turns.filter_map(|turn| turn.receipt?.place);
        seen.iter().map(|one| one.place).chain(granted).filter(|other| *other < place).count() as u8
    }

    fn token(&mut self, of: &LeaseToken) {
        for (at, party) in self.order.iter().enumerate() {
            let claims = 0..=self.world.parties[*party].claim;
            let its = claims.into_iter().find(|claim| token(*party, *claim) == of);
            if let Some(claim) = its {
                return self.text.push(16 * at as u8 + self.world.parties[*party].claim - claim);
            }
        }
        self.text.push(251);
    }

    fn number(&mut self, number: Option<u64>) {
        let rank = number.map(|number| {
            let below = self.numbers.iter().take_while(|one| **one < number).count();
            self.numbers.len() - below
        });
        self.text.push(rank.unwrap_or(0) as u8);
    }

    fn left(&self, until: Tick) -> u8 {
        until.saturating_sub(self.world.now) as u8
    }

    fn moment(&mut self, at: Timestamp) {
        let left = self.since_now(at);
        self.text.push(left);
    }

    /// Steps from now until a moment, rounded up: the time for a hand-off is no whole one.
    fn since_now(&self, at: Timestamp) -> u8 {
        let now = Timestamp::from_micros(self.world.now * STEP);
        (at.left(now).as_micros() as u64).div_ceil(STEP) as u8
    }
}

/// The kind of a wish and its TTL.
fn kind(wish: Wish) -> (u8, u8) {
    let kind = match wish {
        Wish::Acquire(_) => 0,
        Wish::AcquireNamed(_) => 1,
        Wish::Wait(_) => 2,
        Wish::Hold => 3,
        Wish::HoldNamed => 4,
        Wish::HoldWait => 5,
        Wish::Refresh(_) => 6,
        Wish::RefreshNamed(_) => 7,
        Wish::Release => 8,
        Wish::ReleaseNamed => 9,
    };
    (kind, wish.ttl() as u8)
}

impl Hash for World {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.view().hash(state);
    }
}

impl PartialEq for World {
    fn eq(&self, other: &Self) -> bool {
        self.view() == other.view()
    }
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at {}:", self.now)?;
        for entry in self.table.entries(key()) {
            let ends_at = entry.ends_at.as_micros().div_ceil(STEP);
            write!(f, " lease {} {:?} until {ends_at};", entry.fencing_token, entry.state)?;
        }
        for (at, party) in self.parties.iter().enumerate() {
            if let Some(Belief { number, until, .. }) = party.relies {
                write!(f, " client {at} relies on {number} until {until};")?;
            }
        }
        self.fault.map_or(Ok(()), |fault| write!(f, " {fault:?}"))
    }
}
