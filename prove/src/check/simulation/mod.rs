//! A simulated world: clients, connections that lose answers or hold requests back, faults and a lock, which
//! make a history as a run against a real service does, in no time.

mod client;
mod lock;
mod request;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use fastrand::Rng;

use lock::Lock;
pub(super) use request::Bug;
use request::{Close, Reply, Request, Wish};

use crate::check::context::MS;
use crate::check::little::{fault, run};
use crate::history::{Asked, Kind, Left, Line, Nanos, Operation, Outcome, Said, Token};

const CLIENTS: usize = 6;
const KEYS: u32 = 2;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Next(usize),
    Arrive(Request),
    HangUp(Request),
    Leave(Request),        // Its wait is over, which it is told.
    Close(Request, Close), // The service sees the end of its connection.
    Deliver(Request),
    Keep(Request),   // The keeper of a stream refreshes its lease.
    GiveUp(Request), // The client of a stream gives it up.
    Tick(u32),
}

/// A request on its way.
struct Sent {
    operation: Operation,
    token: Token,
    replies: VecDeque<Reply>,
    /// Whether the service knows that its client has gone.
    closed: bool,
    /// Of a stream that its client has, when its last event was received.
    heard: Option<Nanos>,
}

/// What a client claimed last.
#[derive(Clone, Copy)]
struct Claimed {
    key: u32,
    token: Token,
    /// The number of its lease, unless it was refused, or told nothing.
    fence: Option<u64>,
    /// The stream that keeps it.
    stream: Option<Request>,
}

struct World {
    rng: Rng,
    now: Nanos,
    seed: u64,
    lasts: Nanos,
    /// Longer waits, longer leases, and pauses between questions.
    patient: bool,
    /// One client only, which asks while the lock stands still, and sees what it left behind.
    alone: bool,
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
        alone: seed % 8 == 3,
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
    for client in 0..if world.alone { 1 } else { CLIENTS } {
        let at = world.rng.u64(..20 * MS);
        world.at(at, Event::Next(client));
    }
    world.run();
    let what = "redis fields of an idle crew".to_owned();
    let count = world.locks.iter().map(|lock| lock.crew).max().unwrap_or(0);
    world.lines.push(Line::Left(Left { what, count, allowed: 0 }));
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
            self.lines.push(Line::Fault(fault("server_stop", "server-0", (at, until))));
            at = until + self.rng.u64(100..3_000);
        }
    }

    fn run(&mut self) {
        while let Some(Reverse((at, event))) = self.events.pop() {
            self.now = at;
            let of_clients = matches!(event, Event::Next(_) | Event::HangUp(_) | Event::GiveUp(_));
            let served = !of_clients && !matches!(event, Event::Deliver(_));
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
            Event::Leave(request) => self.lock(request).leave(now, request, true),
            Event::Close(request, how) => {
                self.requests[request].closed = true;
                self.lock(request).close(now, request, how);
                self.wake(self.requests[request].operation.key);
            }
            Event::Deliver(request) => self.deliver(request),
            Event::Keep(request) => self.keep(request),
            Event::GiveUp(request) => self.end_stream(request, None),
            Event::Tick(key) => self.locks[key as usize].tick(now),
        }
    }

    fn lock(&mut self, request: Request) -> &mut Lock {
        &mut self.locks[self.requests[request].operation.key as usize]
    }

    /// Sends what a lock has said.
    fn tell(&mut self, key: u32) {
        let said = std::mem::take(&mut self.locks[key as usize].said);
        if !said.is_empty() {
            self.wake(key);
        }
        for (request, reply) in said {
            let is_kept = reply.said.ttl_ms.is_some() && reply.code.is_empty();
            if is_kept && self.requests[request].operation.kind == Kind::Hold {
                self.keep_later(request);
            }
            self.requests[request].replies.push_back(reply);
            self.soon(Event::Deliver(request));
        }
    }

    fn wake(&mut self, key: u32) {
        if let Some(at) = self.locks[key as usize].ends() {
            self.at(at.max(self.now), Event::Tick(key));
        }
    }

    fn keep_later(&mut self, request: Request) {
        let ttl = self.requests[request].operation.asked_ttl().unwrap_or_default();
        self.at(self.now + ttl / 3, Event::Keep(request));
    }

    fn keep(&mut self, request: Request) {
        let now = self.now;
        if now > self.lasts {
            self.end_stream(request, None);
            self.soon(Event::Close(request, Close::HangUp));
        } else if self.lock(request).keep(now, request) {
            self.keep_later(request);
        }
    }

    fn arrive(&mut self, request: Request) {
        let now = self.now;
        let Sent { ref operation, token, closed, .. } = self.requests[request];
        let (asked, key) = (&operation.asked, operation.key as usize);
        let wait = asked.wait_ms * MS;
        // A client that has gone does not wait.
        let waits = wait > 0 && !closed;
        let linger = (operation.kind == Kind::Hold).then_some(asked.linger_ms * MS);
        let (made, ttl) = (!operation.chosen, asked.ttl_ms.unwrap_or_default() * MS);
        let named = asked.fencing_token;
        let wish = Wish { request, token, made, ttl, waits, since: now, named, linger };
        let lock = &mut self.locks[key];
        match operation.kind {
            Kind::Refresh => lock.refresh(now, wish),
            Kind::Release => lock.release(now, (request, token), named),
            Kind::ForceRelease => lock.force_release(now, request),
            Kind::Look => lock.look(now, request, token),
            _ => lock.claim(now, wish),
        }
        if waits {
            self.at(now + wait, Event::Leave(request));
        }
    }

    /// The client of a request gives it up; the service sees that at once, or when it should arrive late.
    fn hang_up(&mut self, request: Request) {
        let now = self.now;
        let Sent { operation, closed, .. } = &mut self.requests[request];
        if operation.answered.is_some() {
            return;
        }
        operation.gone = Some(now);
        *closed = operation.late.is_none();
        let operation = operation.clone();
        let client = operation.client as usize;
        if operation.is_claim() && operation.chosen {
            let (key, token, fence) = (operation.key, operation.token, operation.replaces());
            self.clients[client].get_or_insert(Claimed { key, token, fence, stream: None });
            if fence.is_some() && self.rng.bool() {
                self.clients[client] = None;
            }
        }
        match operation.late {
            Some(closes) => self.at(closes, Event::Close(request, Close::HangUp)),
            None => self.soon(Event::Close(request, Close::HangUp)),
        }
        self.lines.push(Line::Operation(operation));
        self.think(client, 20);
    }

    fn deliver(&mut self, request: Request) {
        let now = self.now;
        let Some(reply) = self.requests[request].replies.pop_front() else { return };
        if self.requests[request].operation.answered.is_some() {
            return self.event(request, reply);
        }
        let Reply { status, code, said } = reply;
        let Sent { operation, closed, .. } = &mut self.requests[request];
        let (key, granted) = (operation.key, said.fencing_token.filter(|_| said.ttl_ms.is_some()));
        if let Some(fence) = granted {
            if !*closed {
                self.locks[key as usize].heard(fence);
            } else if !self.is_told(key, fence) {
                return self.locks[key as usize].take_back(now, fence);
            }
        }
        let Sent { operation, token, heard, .. } = &mut self.requests[request];
        if operation.gone.is_some() {
            return;
        }
        operation.answered = Some(now);
        operation.outcome = if status == 409 { Outcome::No } else { Outcome::Yes };
        (operation.status, operation.code, operation.said) = (status, code.to_owned(), said);
        let client = &mut self.clients[operation.client as usize];
        let stream = Some(request).filter(|_| operation.kind == Kind::Hold);
        let claimed = Claimed { key, token: *token, fence: granted, stream };
        let told = operation.said.fencing_token;
        if granted.is_some() {
            operation.token = *token;
            *heard = stream.map(|_| now);
            *client = match *client {
                // A refresh or a repeat leaves its stream as it is.
                Some(before) if before.fence == granted && stream.is_none() => Some(before),
                _ => Some(claimed),
            };
        } else if code == "lock_lost" || operation.is_mine() {
            let own = told.filter(|_| operation.chosen || client.is_some());
            let stream = client.and_then(|client| client.stream.filter(|_| client.fence == told));
            *client = own.map(|fence| Claimed { fence: Some(fence), stream, ..claimed });
        } else if status == 409 && operation.chosen {
            client.get_or_insert(Claimed { stream: None, ..claimed });
        }
        let operation = operation.clone();
        self.think(operation.client as usize, if self.patient { 120 } else { 25 });
        self.lines.push(Line::Operation(operation));
    }

    /// A stream that has its grant is told more.
    fn event(&mut self, request: Request, reply: Reply) {
        let Sent { operation, heard, .. } = &mut self.requests[request];
        let Some(since) = *heard else { return };
        if reply.code != "alive" {
            return self.end_stream(request, Some(reply.code));
        }
        *heard = Some(self.now);
        let (asked, said) = (operation.asked.clone(), reply.said);
        let (kind, sent, answered) = (Kind::Alive, since, Some(self.now));
        let alive = Operation { kind, sent, answered, asked, said, ..operation.clone() };
        self.lines.push(Line::Operation(alive));
    }

    /// A stream ends by an event, or because its client gives it up.
    fn end_stream(&mut self, request: Request, event: Option<&str>) {
        let now = self.now;
        let Sent { operation, heard, .. } = &mut self.requests[request];
        let Some(since) = heard.take() else { return };
        let said = Said { fencing_token: operation.said.fencing_token, ..Said::default() };
        let (answered, gone) = (event.map(|_| now), event.is_none().then_some(now));
        let (kind, code) = (Kind::HoldEnd, event.unwrap_or_default().to_owned());
        let operation = operation.clone();
        let end = Operation { kind, sent: since, answered, gone, code, said, ..operation };
        self.lines.push(Line::Operation(end));
    }

    /// Returns true if another request was told of a lease, or will be.
    fn is_told(&self, key: u32, fence: u64) -> bool {
        self.requests.iter().rev().any(|Sent { operation, replies, .. }| {
            let told = replies.iter().any(|reply| {
                reply.said.ttl_ms.is_some() && reply.said.fencing_token == Some(fence)
            });
            told && operation.key == key && operation.gone.is_none()
        })
    }
}
