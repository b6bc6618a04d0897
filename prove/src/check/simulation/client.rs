//! What simulated clients do next.

use super::{Claimed, Event, KEYS, MS, Sent, World};
use crate::check::little;
use crate::history::{Asked, Kind, NO_TOKEN, Operation, Outcome, Token};

impl World {
    pub(super) fn decide(&mut self, client: usize) {
        if let Some(Claimed { key, token, fence }) = self.clients[client] {
            if let Some(fence) = fence {
                return self.use_lease(client, (key, token, fence));
            }
            self.clients[client] = None;
            match self.rng.u8(..4) {
                0 => return self.ask(client, (Kind::Look, key, token), Asked::default()),
                1 => return self.acquire(client, key, token),
                _ => (),
            }
        }
        let key = self.rng.u32(..KEYS);
        let foreign = self.shared_token(key);
        match self.rng.u8(..40) {
            0 => self.ask(client, (Kind::ForceRelease, key, NO_TOKEN), Asked::default()),
            1 | 2 => self.ask(client, (Kind::Release, key, foreign), Asked::default()),
            3..6 => self.ask(client, (Kind::Look, key, foreign), Asked::default()),
            _ => {
                self.tokens += 1;
                let fresh = self.tokens;
                let other = if self.seed.is_multiple_of(3) { foreign } else { fresh };
                let token = [NO_TOKEN, fresh, other, foreign][self.rng.usize(..4)];
                self.acquire(client, key, token);
            }
        }
    }

    fn shared_token(&mut self, key: u32) -> Token {
        1 + u64::from(key) * 3 + self.rng.u64(..3)
    }

    fn acquire(&mut self, client: usize, key: u32, token: Token) {
        let longest = if self.patient { 5_000 } else { 900 };
        let wait_ms = if self.rng.u8(..5) < 2 { 0 } else { self.rng.u64(20..longest) };
        let ttl_ms = Some(self.ttl_ms());
        let asked = Asked { ttl_ms, wait_ms, ..Asked::default() };
        self.ask(client, (Kind::Acquire, key, token), asked);
    }

    fn use_lease(&mut self, client: usize, (key, token, fence): (u32, Token, u64)) {
        let named = self.rng.bool().then_some(fence);
        let asked = Asked { fencing_token: named, ..Asked::default() };
        let ttl_ms = Some(self.ttl_ms());
        match self.rng.u8(..20) {
            0..5 => self.ask(client, (Kind::Refresh, key, token), Asked { ttl_ms, ..asked }),
            5..7 => self.ask(client, (Kind::Look, key, token), Asked::default()),
            7..9 => self.acquire(client, key, token),
            9..11 => self.think(client, 400),
            11 | 12 => {
                self.clients[client] = None;
                self.think(client, 30);
            }
            _ => {
                self.clients[client] = None;
                self.ask(client, (Kind::Release, key, token), asked);
            }
        }
    }

    fn ttl_ms(&mut self) -> u64 {
        let long = self.patient && self.rng.bool();
        if long { self.rng.u64(2_000..4_000) } else { self.rng.u64(100..300) }
    }

    pub(super) fn think(&mut self, client: usize, most_ms: u64) {
        let at = self.now + self.rng.u64(..most_ms * MS);
        self.at(at, Event::Next(client));
    }

    fn ask(&mut self, client: usize, (kind, key, token): (Kind, u32, Token), asked: Asked) {
        let chosen = token != NO_TOKEN;
        self.tokens += 1;
        let wait = asked.wait_ms * MS;
        let operation = Operation {
            client: client as u32,
            instance: (client % 2) as u16,
            key,
            sent: self.now,
            answered: None,
            outcome: Outcome::Unknown,
            status: 0,
            chosen,
            asked,
            ..little::ask(kind, token, 0, 0)
        };
        let request = self.requests.len();
        let token = if chosen { token } else { self.tokens };
        self.requests.push(Sent { operation, token, reply: None });
        self.soon(Event::Arrive(request));
        let patience = match self.rng.u8(..24) {
            0 => self.rng.u64(..=wait + 3 * MS),
            1 => self.rng.u64(..3 * MS),
            _ => wait + 900 * MS,
        };
        self.at(self.now + patience, Event::HangUp(request));
    }
}
