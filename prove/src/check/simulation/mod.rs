//! A simulated world: clients, connections that lose answers, faults and a lock, which make a history as a
//! run against a real service does, in no time.

mod client;
mod lock;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use fastrand::Rng;

use client::fill;
pub(super) use lock::Bug;
use lock::{Lock, Reply, Request, Wish};

use crate::history::{Fault, Kind, Line, Nanos, Operation, Run, Token};

const MS: Nanos = 1_000_000;
const CLIENTS: usize = 6;
const KEYS: u32 = 2;

/// How a world is made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) seed: u64,
    pub(super) lasts: Nanos,
    pub(super) bug: Option<Bug>,
    pub(super) faults: bool,
    /// Longer waits, longer leases, and pauses between questions.
    pub(super) patient: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Next(usize),
    Arrive(Request),
    WaitOver(Request),
    HangUp(Request),
    Leave(Request),
    Deliver(Request),
    Tick(u32),
    Forget,
}

/// A request on its way.
struct Sent {
    operation: Operation,
    token: Token,
    ttl: Nanos,
    arrived: Nanos,
    reply: Option<Reply>,
    gone: bool,
    known: u64,
}

#[derive(Clone)]
struct Has {
    key: u32,
    token: Token,
    fence: u64,
}

#[derive(Default, Clone)]
struct Client {
    has: Option<Has>,
    /// What it was refused, or told nothing about.
    asked: Option<(u32, Token)>,
}

struct World {
    rng: Rng,
    now: Nanos,
    plan: Plan,
    events: BinaryHeap<Reverse<(Nanos, u64, Event)>>,
    order: u64,
    locks: Vec<Lock>,
    /// When each lock is to be woken.
    ticks: Vec<Option<Nanos>>,
    clients: Vec<Client>,
    requests: Vec<Sent>,
    tokens: Token,
    pauses: Vec<(Nanos, Nanos)>,
    lines: Vec<Line>,
}

/// Returns the history of a world.
pub(super) fn history(plan: Plan) -> Vec<Line> {
    let mut rng = Rng::with_seed(plan.seed);
    let locks = (0..KEYS).map(|_| Lock::new(plan.bug, rng.fork())).collect();
    let mut world = World {
        now: 0,
        plan,
        events: BinaryHeap::new(),
        order: 0,
        locks,
        ticks: vec![None; KEYS as usize],
        clients: vec![Client::default(); CLIENTS],
        requests: Vec::new(),
        tokens: 100,
        pauses: Vec::new(),
        lines: Vec::new(),
        rng,
    };
    let (store, deadline) = ("redis".to_owned(), 100 * MS);
    let run = Run { store, seed: plan.seed, instances: 2, deadline, drift_ppm: 0 };
    world.lines.push(Line::Run(run));
    world.plan_faults();
    for client in 0..CLIENTS {
        let at = world.rng.u64(..20 * MS);
        world.at(at, Event::Next(client));
    }
    world.run();
    world.lines
}

impl World {
    fn at(&mut self, at: Nanos, event: Event) {
        self.order += 1;
        self.events.push(Reverse((at, self.order, event)));
    }

    fn soon(&mut self, event: Event) {
        let at = self.now + self.rng.u64(20_000..2 * MS);
        self.at(at, event);
    }

    fn plan_faults(&mut self) {
        if !self.plan.faults {
            return;
        }
        let mut at = self.plan.lasts / 6;
        while at + 600 * MS < self.plan.lasts {
            let (from, mut until) = (at, at + self.rng.u64(50..400) * MS);
            let forgets = self.rng.bool();
            let kind = if forgets { "flush" } else { "pause" };
            if forgets {
                until = from + MS;
                self.at(from, Event::Forget);
            } else {
                self.pauses.push((from, until));
            }
            let (kind, target) = (kind.to_owned(), "store".to_owned());
            self.lines.push(Line::Fault(Fault { kind, target, from, until, forgets }));
            at = until + self.rng.u64(100..3_000) * MS;
        }
    }

    fn run(&mut self) {
        while let Some(Reverse((at, _, event))) = self.events.pop() {
            self.now = at;
            let served = !matches!(event, Event::Next(_) | Event::HangUp(_) | Event::Deliver(_));
            let paused = self.pauses.iter().find(|pause| pause.0 <= at && at < pause.1);
            if let Some(&(_, until)) = paused.filter(|_| served && event != Event::Forget) {
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
            Event::Next(client) if now < self.plan.lasts => self.decide(client),
            Event::Next(_) => (),
            Event::Arrive(request) => self.arrive(request),
            Event::WaitOver(request) => {
                if self.requests[request].reply.is_none() {
                    let key = self.requests[request].operation.key;
                    self.locks[key as usize].leave(now, request, true);
                }
            }
            Event::HangUp(request) => self.hang_up(request),
            Event::Leave(request) => {
                let key = self.requests[request].operation.key;
                self.locks[key as usize].leave(now, request, false);
            }
            Event::Deliver(request) => self.deliver(request),
            Event::Tick(key) => self.locks[key as usize].tick(now),
            Event::Forget => self.locks.iter_mut().for_each(|lock| lock.forget(now)),
        }
    }

    /// Sends what a lock has said, and wakes it when its lease is over.
    fn tell(&mut self, key: u32) {
        let said = std::mem::take(&mut self.locks[key as usize].said);
        for (request, reply) in said {
            self.requests[request].reply = Some(reply);
            self.soon(Event::Deliver(request));
        }
        let expires = self.locks[key as usize].holder.as_ref().map(|holder| holder.expires);
        if let Some(at) = expires.filter(|_| expires != self.ticks[key as usize]) {
            self.at(at.max(self.now), Event::Tick(key));
        }
        self.ticks[key as usize] = expires;
    }

    fn arrive(&mut self, request: Request) {
        let sent = &mut self.requests[request];
        sent.arrived = self.now;
        let (now, token, gone) = (self.now, sent.token, sent.gone);
        let Operation { kind, key, .. } = sent.operation;
        let asked = sent.operation.asked.clone();
        let (ttl, known, made) = (sent.ttl, sent.known, !sent.operation.chosen);
        let lock = &mut self.locks[key as usize];
        match kind {
            Kind::Refresh => {
                lock.refresh(now, (request, token), (asked.fencing_token, ttl), known);
            }
            Kind::Release => lock.release(now, (request, token), asked.fencing_token),
            Kind::ForceRelease => lock.force_release(now, request),
            Kind::Look => lock.look(now, request, token),
            _ => {
                // Whoever has gone does not wait.
                let waits = asked.wait_ms > 0 && !gone;
                lock.claim(now, Wish { request, token, made, ttl, waits });
                if waits {
                    self.at(now + asked.wait_ms * MS, Event::WaitOver(request));
                }
            }
        }
    }

    fn hang_up(&mut self, request: Request) {
        let sent = &mut self.requests[request];
        if sent.gone || sent.operation.answered.is_some() {
            return;
        }
        sent.gone = true;
        sent.operation.gone = Some(self.now);
        let operation = sent.operation.clone();
        let client = operation.client as usize;
        if operation.kind == Kind::Acquire && operation.chosen {
            self.clients[client].asked = Some((operation.key, operation.token));
        }
        self.lines.push(Line::Operation(operation));
        self.soon(Event::Leave(request));
        self.think(client, 20);
    }

    fn deliver(&mut self, request: Request) {
        let now = self.now;
        let sent = &mut self.requests[request];
        let Some(reply) = sent.reply.clone() else { return };
        let key = sent.operation.key as usize;
        if sent.operation.answered.is_some() {
            return; // It was told already, by a bug that serves a claim twice.
        }
        if sent.gone {
            if let Reply::Grant { fence, .. } = reply
                && !self.is_told(key, fence)
            {
                self.locks[key].take_back(now, fence);
            }
            return;
        }
        let (token, arrived) = (sent.token, sent.arrived);
        let operation = &mut sent.operation;
        operation.answered = Some(now);
        fill(operation, &reply, (token, arrived));
        let operation = operation.clone();
        let client = operation.client as usize;
        match reply {
            Reply::Grant { fence, .. } => {
                self.clients[client].has = Some(Has { key: key as u32, token, fence });
            }
            Reply::No("lock_lost") => self.clients[client].has = None,
            Reply::No(_) if operation.chosen => {
                self.clients[client].asked = Some((key as u32, token));
            }
            _ => (),
        }
        self.lines.push(Line::Operation(operation));
        self.think(client, if self.plan.patient { 120 } else { 25 });
    }

    /// Returns true if another request was told of a lease, or will be.
    fn is_told(&self, key: usize, fence: u64) -> bool {
        let tells = |sent: &&Sent| {
            let of = matches!(sent.reply, Some(Reply::Grant { fence: told, .. }) if told == fence);
            of && sent.operation.key as usize == key && !sent.gone
        };
        self.requests.iter().rev().find(tells).is_some()
    }
}
