//! What simulated clients do next.

use super::{
    Asked, Claimed, Close, Event, KEYS, Kind, MS, Operation, Outcome, Request, Sent, World,
};
use crate::check::little;
use crate::history::{NO_TOKEN, Token};

impl World {
    pub(super) fn decide(&mut self, client: usize) {
        if let Some(claimed) = self.clients[client] {
            let Claimed { key, token, fence, stream } = claimed;
            if let (Some(fence), Some(stream)) = (fence, stream) {
                return self.use_stream(client, (key, token, fence), stream);
            }
            if let Some(fence) = fence {
                return self.use_lease(client, (key, token, fence));
            }
            self.clients[client] = None;
            if self.alone && self.rng.bool() {
                self.clients[client] = Some(claimed);
                return self.think(client, 4_000);
            }
            match self.rng.u8(..if self.alone { 5 } else { 8 }) {
                _ if self.is_stalled() => return self.acquire(client, (key, token), None),
                0..3 => return self.ask(client, (Kind::Look, key, token), Asked::default()),
                3 => return self.ask(client, (Kind::Release, key, token), Asked::default()),
                4 => (),
                _ => return self.acquire(client, (key, token), None),
            }
        }
        if self.alone && !self.is_stalled() {
            return self.think(client, 100);
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
                self.acquire(client, (key, token), None);
            }
        }
    }

    fn shared_token(&mut self, key: u32) -> Token {
        1 + u64::from(key) * 3 + self.rng.u64(..3)
    }

    /// Asks for a lease or a stream, in place of one if it names it.
    fn acquire(&mut self, client: usize, (key, token): (u32, Token), named: Option<u64>) {
        let longest = if self.patient { 5_000 } else { 900 };
        let waits = named.is_none() && self.rng.u8(..5) > 1;
        let waits = waits && !self.is_stalled();
        let wait_ms = if waits { self.rng.u64(20..longest) } else { 0 };
        let streams = self.rng.u8(..if named.is_some() { 4 } else { 6 }) < 2;
        let kind = if streams { Kind::Hold } else { Kind::Acquire };
        let lingers = kind == Kind::Hold && self.rng.u8(..3) == 0;
        let linger_ms = if lingers { self.rng.u64(20..300) } else { 0 };
        let ttl_ms = Some(self.ttl_ms());
        let fencing_token = named;
        let asked = Asked { ttl_ms, wait_ms, fencing_token, linger_ms, ..Asked::default() };
        self.ask(client, (kind, key, token), asked);
    }

    fn use_lease(&mut self, client: usize, (key, token, fence): (u32, Token, u64)) {
        let named = self.rng.bool().then_some(fence);
        let asked = Asked { fencing_token: named, ..Asked::default() };
        let ttl_ms = Some(self.ttl_ms());
        match self.rng.u8(..24) {
            0..5 => self.ask(client, (Kind::Refresh, key, token), Asked { ttl_ms, ..asked }),
            5..7 => self.ask(client, (Kind::Look, key, token), Asked::default()),
            7..9 => self.acquire(client, (key, token), None),
            9..13 => self.acquire(client, (key, token), Some(fence)),
            13 => self.think(client, 400),
            14 | 15 => {
                self.clients[client] = None;
                self.think(client, 30);
            }
            _ => {
                self.clients[client] = None;
                self.ask(client, (Kind::Release, key, token), asked);
            }
        }
    }

    fn use_stream(
        &mut self,
        client: usize,
        (key, token, fence): (u32, Token, u64),
        stream: Request,
    ) {
        let Some(since) = self.requests[stream].heard else {
            self.clients[client] = None;
            return self.think(client, 30);
        };
        let ttl_ms = Some(self.ttl_ms());
        let asked = Asked { ttl_ms, ..Asked::default() };
        match self.rng.u8(..24) {
            0..5 => self.think(client, 400),
            5..8 => self.ask(client, (Kind::Refresh, key, token), asked),
            8..10 => self.acquire(client, (key, token), None),
            10..13 => self.acquire(client, (key, token), Some(fence)),
            13 => self.ask(client, (Kind::Look, key, token), Asked::default()),
            14 | 15 => {
                self.clients[client] = None;
                self.ask(client, (Kind::Release, key, token), Asked::default());
            }
            16..19 => {
                // The network is silent from now on: the client relies on the last event.
                self.requests[stream].replies.clear();
                let lasts = self.requests[stream].operation.asked_ttl().unwrap_or_default();
                self.at(since + lasts, Event::GiveUp(stream));
                self.at(self.now + 30 * MS, Event::Close(stream, Close::TimeOut));
                self.clients[client] = None;
                self.think(client, 30);
            }
            _ => {
                self.end_stream(stream, None);
                let behind = self.rng.u64(..80) * MS;
                self.at(self.now + behind, Event::Close(stream, Close::HangUp));
                let comes_back = self.rng.bool();
                let back = Claimed { key, token, fence: None, stream: None };
                self.clients[client] = comes_back.then_some(back);
                self.think(client, 60);
            }
        }
    }

    fn is_stalled(&self) -> bool {
        self.pauses.iter().any(|pause| pause.0 <= self.now && self.now < pause.1)
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
        let named = matches!(kind, Kind::Hold | Kind::Acquire) && asked.fencing_token.is_some();
        let most = match self.is_stalled() {
            true if self.alone => 3,
            stalled if stalled || named => 5,
            _ => 24,
        };
        let patience = match self.rng.u8(..most) {
            0 => self.rng.u64(..=wait + 3 * MS),
            1 => self.rng.u64(..3 * MS),
            2 => self.rng.u64(..20 * MS),
            _ => wait + 900 * MS,
        };
        // Its request arrives late, and its hang-up behind that, or long after.
        let late = (patience < 20 * MS && !self.alone && self.rng.bool()).then(|| {
            let arrives =
                self.now + patience + self.rng.u64(5..if self.patient { 2_000 } else { 300 }) * MS;
            let behind = if self.rng.u8(..4) == 0 { 1_000..3_000 } else { 0..300 };
            (arrives, arrives + self.rng.u64(behind) * MS)
        });
        let operation = Operation {
            client: client as u32,
            instance: (client % 2) as u16,
            key,
            sent: self.now,
            answered: None,
            late: late.map(|late| late.1),
            outcome: Outcome::Unknown,
            status: 0,
            chosen,
            asked,
            ..little::ask(kind, token, 0, 0)
        };
        let request = self.requests.len();
        let token = if chosen { token } else { self.tokens };
        let (replies, closed, heard) = (Default::default(), false, None);
        self.requests.push(Sent { operation, token, replies, closed, heard });
        match late {
            Some((arrives, _)) => self.at(arrives, Event::Arrive(request)),
            None => self.soon(Event::Arrive(request)),
        }
        self.at(self.now + patience, Event::HangUp(request));
    }
}
