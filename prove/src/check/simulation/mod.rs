//! A simulated world: clients, connections that lose answers, faults and a lock, which make a history as a
//! run against a real service does, in no time.

mod client;
mod lock;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use fastrand::Rng;

pub(super) use lock::Bug;
use lock::{Lock, Reply, Request, Wish};

use crate::check::context::MS;
use crate::check::little::{fault, run};
use crate::history::{Kind, Line, Nanos, Operation, Outcome, Token};

const CLIENTS: usize = 6;
const KEYS: u32 = 2;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Next(usize),
    Arrive(Request),
    HangUp(Request),
    /// Its wait is over, which it is told, or its client has gone.
    Leave(Request, bool),
    Deliver(Request),
    Tick(u32),
}

/// A request on its way.
struct Sent {
    operation: Operation,
    token: Token,
    reply: Option<Reply>,
}

/// What a client claimed last.
#[derive(Clone, Copy)]
struct Claimed {
    key: u32,
    token: Token,
    /// The number of its lease, unless it was refused, or told nothing.
    fence: Option<u64>,
}

struct World {
    rng: Rng,
    now: Nanos,
    seed: u64,
    lasts: Nanos,
    /// Longer waits, longer leases, and pauses between questions.
    patient: bool,
    events: BinaryHeap<Reverse<(Nanos, Event)>>,
    locks: Vec<Lock>,
    clients: Vec<Option<Claimed>>,
    requests: Vec<Sent>,
    tokens: Token,
    pauses: Vec<(Nanos, Nanos)>,
    lines: Vec<Line>,
}

/// Returns the history of a world; one in two has faults.
pub(super) fn history(seed: u64, bug: Option<Bug>) -> Vec<Line> {
    let mut rng = Rng::with_seed(seed);
    let locks = (0..KEYS).map(|_| Lock::new(bug, rng.fork())).collect();
    let patient = seed % 4 > 1;
    let mut world = World {
        now: 0,
        seed,
        lasts: if patient { 20_000 * MS } else { 6_000 * MS },
        patient,
        events: BinaryHeap::new(),
        locks,
        clients: vec![None; CLIENTS],
        requests: Vec::new(),
        tokens: 100,
        pauses: Vec::new(),
        lines: vec![run("redis")],
        rng,
    };
    if !seed.is_multiple_of(2) {
        world.plan_faults();
    }
    for client in 0..CLIENTS {
        let at = world.rng.u64(..20 * MS);
        world.at(at, Event::Next(client));
    }
    world.run();
    world.lines
}

impl World {
    fn at(&mut self, at: Nanos, event: Event) {
        self.events.push(Reverse((at, event)));
    }

    fn soon(&mut self, event: Event) {
        let at = self.now + self.rng.u64(20_000..2 * MS);
        self.at(at, event);
    }

    fn plan_faults(&mut self) {
        let lasts = self.lasts / MS;
        let mut at = lasts / 6;
        while at + 600 < lasts {
            let until = at + self.rng.u64(50..400);
            self.pauses.push((at * MS, until * MS));
            self.lines.push(Line::Fault(fault("pause", "store", (at, until))));
            at = until + self.rng.u64(100..3_000);
        }
    }

    fn run(&mut self) {
        while let Some(Reverse((at, event))) = self.events.pop() {
            self.now = at;
            let served = !matches!(event, Event::Next(_) | Event::HangUp(_) | Event::Deliver(_));
            let paused = self.pauses.iter().find(|pause| pause.0 <= at && at < pause.1);
            if let Some(&(_, until)) = paused.filter(|_| served) {
                self.at(until, event);
                continue;
            }
            self.step(event);
            for key in 0..KEYS {
                self.tell(key);
            }
        }
    }

    fn step(&mut self, event: Event) {
        let now = self.now;
        match event {
            Event::Next(client) if now < self.lasts => self.decide(client),
            Event::Next(_) => (),
            Event::Arrive(request) => self.arrive(request),
            Event::HangUp(request) => self.hang_up(request),
            Event::Leave(request, told) => {
                let key = self.requests[request].operation.key;
                self.locks[key as usize].leave(now, request, told);
            }
            Event::Deliver(request) => self.deliver(request),
            Event::Tick(key) => self.locks[key as usize].tick(now),
        }
    }

    /// Sends what a lock has said, and wakes it when its lease is over.
    fn tell(&mut self, key: u32) {
        let said = std::mem::take(&mut self.locks[key as usize].said);
        for (request, reply) in said {
            let ends = self.locks[key as usize].ends().filter(|_| reply.said.ttl_ms.is_some());
            if let Some(at) = ends {
                self.at(at.max(self.now), Event::Tick(key));
            }
            self.requests[request].reply = Some(reply);
            self.soon(Event::Deliver(request));
        }
    }

    fn arrive(&mut self, request: Request) {
        let now = self.now;
        let Sent { ref operation, token, .. } = self.requests[request];
        let (asked, key) = (&operation.asked, operation.key as usize);
        let (named, wait) = (asked.fencing_token, asked.wait_ms * MS);
        // Whoever has gone does not wait.
        let waits = wait > 0 && operation.gone.is_none();
        let (made, ttl) = (!operation.chosen, asked.ttl_ms.unwrap_or_default() * MS);
        let wish = Wish { request, token, made, ttl, waits, since: now };
        let lock = &mut self.locks[key];
        match operation.kind {
            Kind::Refresh => lock.refresh(now, wish, named),
            Kind::Release => lock.release(now, (request, token), named),
            Kind::ForceRelease => lock.force_release(now, request),
            Kind::Look => lock.look(now, request, token),
            _ => lock.claim(now, wish),
        }
        if waits {
            self.at(now + wait, Event::Leave(request, true));
        }
    }

    fn hang_up(&mut self, request: Request) {
        let operation = &mut self.requests[request].operation;
        if operation.answered.is_some() {
            return;
        }
        operation.gone = Some(self.now);
        let operation = operation.clone();
        let client = operation.client as usize;
        if operation.kind == Kind::Acquire && operation.chosen {
            let (key, token) = (operation.key, operation.token);
            self.clients[client].get_or_insert(Claimed { key, token, fence: None });
        }
        self.lines.push(Line::Operation(operation));
        self.soon(Event::Leave(request, false));
        self.think(client, 20);
    }

    fn deliver(&mut self, request: Request) {
        let now = self.now;
        let Sent { operation, token, reply } = &mut self.requests[request];
        let Some(Reply { status, code, said }) = reply.clone() else { return };
        if operation.answered.is_some() {
            return; // It was told already, by a bug that serves a claim twice.
        }
        let (key, granted) = (operation.key, said.fencing_token.filter(|_| said.ttl_ms.is_some()));
        if operation.gone.is_some() {
            if let Some(fence) = granted.filter(|fence| !self.is_told(key, *fence)) {
                self.locks[key as usize].take_back(now, fence);
            }
            return;
        }
        operation.answered = Some(now);
        operation.outcome = if status == 409 { Outcome::No } else { Outcome::Yes };
        (operation.status, operation.code, operation.said) = (status, code.to_owned(), said);
        let client = &mut self.clients[operation.client as usize];
        let claimed = Claimed { key, token: *token, fence: granted };
        if granted.is_some() {
            operation.token = *token;
            *client = Some(claimed);
        } else if code == "lock_lost" {
            *client = None;
        } else if status == 409 && operation.chosen {
            client.get_or_insert(claimed);
        }
        let operation = operation.clone();
        self.think(operation.client as usize, if self.patient { 120 } else { 25 });
        self.lines.push(Line::Operation(operation));
    }

    /// Returns true if another request was told of a lease, or will be.
    fn is_told(&self, key: u32, fence: u64) -> bool {
        self.requests.iter().rev().any(|Sent { operation, reply, .. }| {
            let said = reply.as_ref().map(|reply| &reply.said);
            let told =
                said.is_some_and(|said| said.ttl_ms.is_some() && said.fencing_token == Some(fence));
            told && operation.key == key && operation.gone.is_none()
        })
    }
}
