//! The network between instances and nodes: every message takes time, some get lost, some arrive
//! long after their caller gave up.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use fastrand::Rng;
use tokio::sync::oneshot;
use tokio::time::sleep_until;

use crate::lock::error::{Effect, StoreError, Verb};
use crate::lock::key::LockKey;
use crate::lock::store::Page;
use crate::store::redis::deadline::When;
use crate::store::redis::node::{ScriptCall, failure};
use crate::store::redis::script::Reply;
use crate::store::redlock::peer::Peer;
use crate::store::redlock::simulation::redis;
use crate::store::redlock::simulation::redis::{Command, LOCKS};
use crate::store::redlock::simulation::rule::Rule;
use crate::store::redlock::simulation::world::{State, World};

/// How much longer the messages of an instance take that is far from a node, in milliseconds.
const FAR: u64 = 30;

type Answer = Result<Reply, StoreError>;

/// The connection of one instance to one node.
pub(super) struct Line {
    pub(super) world: Arc<World>,
    pub(super) instance: usize,
    pub(super) node: usize,
    pub(super) name: String,
}

/// The messages on their way. Times are milliseconds since the beginning of the run.
pub(super) struct Network {
    pub(super) rng: Rng,
    /// Lost messages of a thousand, one way.
    pub(super) loss: u32,
    /// Slow messages of a thousand, and their longest delay.
    pub(super) slow: u32,
    pub(super) slow_most: u64,
    events: BinaryHeap<Event>,
    sent: u64,
    waiting: HashMap<u64, (oneshot::Sender<Answer>, u64)>,
    /// What an instance adds to the time to tell that of a node, from its answers.
    offsets: HashMap<(usize, usize), i64>,
    /// The time at which the carrier continues.
    next: u64,
}

struct Event {
    at: Reverse<u64>,
    /// The order of events at one moment.
    order: Reverse<u64>,
    what: What,
}

enum What {
    Arrival(Message),
    Answer { line: (usize, usize), call: u64, answer: Answer },
    Hint { instance: usize, lock: String },
}

/// A command on its way to a node.
pub(super) struct Message {
    instance: usize,
    node: usize,
    call: u64,
    /// The time at which its caller gives up.
    deadline: u64,
    command: Command,
}

impl PartialEq for Event {
    fn eq(&self, other: &Self) -> bool {
        self.order == other.order
    }
}

impl Eq for Event {}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Event {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

impl Network {
    pub(super) fn new(rng: Rng) -> Self {
        Self {
            rng,
            loss: 0,
            slow: 0,
            slow_most: 0,
            events: BinaryHeap::new(),
            sent: 0,
            waiting: HashMap::new(),
            offsets: HashMap::new(),
            next: 0,
        }
    }

    fn push(&mut self, at: u64, what: What) {
        self.sent += 1;
        self.events.push(Event { at: Reverse(at), order: Reverse(self.sent), what });
    }

    /// The delay of a message: mostly a few milliseconds.
    fn latency(&mut self) -> u64 {
        if self.rng.u32(..1_000) < self.slow {
            return self.rng.u64(1..=self.slow_most);
        }
        1 + u64::from(self.rng.u32(..).leading_zeros())
    }

    /// Learns a node's clock as production does: `StoreClock`.
    fn learn(&mut self, line: (usize, usize), (sent, received): (u64, u64), clock: u64) {
        let offset = |at: u64| clock as i64 - at as i64;
        let (least, most) = (offset(received), offset(sent) + 1);
        let known = self.offsets.entry(line).or_insert(least);
        *known = if *known > most { least } else { least.max(*known) };
    }

    /// A node's clock at a moment, in milliseconds, as an instance knows it.
    fn clock(&self, line: (usize, usize), at: u64) -> u64 {
        self.offsets.get(&line).map_or(0, |offset| at.saturating_add_signed(*offset))
    }

    fn is_lost(&mut self) -> bool {
        self.rng.u32(..1_000) < self.loss
    }
}

impl World {
    /// Sends a command; the answer comes by the deadline at the latest.
    fn send(
        &self,
        line: (usize, usize),
        mut command: Command,
        patience: Duration,
        when: When,
    ) -> oneshot::Receiver<Answer> {
        let (sender, receiver) = oneshot::channel();
        let mut state = self.state();
        let ((instance, node), now) = (line, self.now());
        // A paused process sends when it continues, and tells the deadline that it had before.
        let sent = now.max(state.instances[instance].stands_until);
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let deadline = match when.deadline() {
            Some(deadline) if !Rule::DeadlineFirst.is_left_out() => millis(deadline.moment()),
            _ => sent + millis(patience),
        };
        if let When::Until(_) = when {
            let not_after = state.network.clock(line, deadline).to_string();
            command.words.insert(command.keys, not_after);
        }
        let cut = state.nodes[node].is_cut_from(instance);
        let far = if state.nodes[node].far.contains(&instance) { FAR } else { 0 };
        let network = &mut state.network;
        network.sent += 1;
        let call = network.sent;
        if cut && network.rng.u32(..4) == 0 {
            // The connection is known to be down, so nothing is sent.
            let _ = sender.send(Err(failure(command.script.verb(), Effect::None, "not connected")));
            return receiver;
        }
        network.waiting.insert(call, (sender, now));
        let arrival = sent + network.latency() + far;
        let lost = cut || network.is_lost();
        if lost || arrival >= deadline {
            let answer = Err(failure(command.script.verb(), Effect::Unknown, "no answer in time"));
            network.push(deadline, What::Answer { line, call, answer });
        }
        if !lost {
            let message = Message { instance, node, call, deadline, command };
            network.push(arrival, What::Arrival(message));
        }
        let next = network.events.peek().map(|event| event.at.0);
        if next.is_some_and(|next| next < network.next) {
            self.sent.notify_one();
        }
        receiver
    }

    /// Carries messages until it is dropped.
    pub(super) async fn carry(&self) {
        loop {
            let next = self.deliver();
            tokio::select! {
                biased;
                () = self.sent.notified() => (),
                () = sleep_until(self.began + Duration::from_millis(next)) => (),
            }
        }
    }

    /// Delivers due messages. Returns the time of the next one.
    fn deliver(&self) -> u64 {
        let now = self.now();
        loop {
            let mut state = self.state();
            let network = &mut state.network;
            if network.events.peek().is_none_or(|event| event.at.0 > now) {
                let next = network.events.peek().map_or(now + 10_000, |event| event.at.0);
                network.next = next;
                return next;
            }
            let event = network.events.pop().expect("it was there");
            match event.what {
                What::Arrival(message) => state.arrive(now, message),
                What::Answer { line, call, answer } => {
                    let stands_until = state.instances[line.0].stands_until;
                    if stands_until > now {
                        state.network.push(stands_until, What::Answer { line, call, answer });
                    } else if let Some((caller, sent)) = state.network.waiting.remove(&call) {
                        if let Ok(reply) = &answer {
                            state.network.learn(line, (sent, now), reply.now);
                        }
                        // The caller may be gone.
                        let _ = caller.send(answer);
                    }
                }
                What::Hint { instance, lock } => {
                    let key = lock.strip_prefix(LOCKS).and_then(|key| LockKey::parse(key).ok());
                    state.instances[instance].wakeups.ring(&key.expect("a lock's name"));
                }
            }
        }
    }
}

impl State {
    pub(super) fn arrive(&mut self, now: u64, message: Message) {
        let Message { instance, node, call, deadline, command } = &message;
        let (instance, node, call, line) = (*instance, *node, *call, (*instance, *node));
        if self.nodes[node].pauses {
            if *deadline > now {
                let answer =
                    Err(failure(command.script.verb(), Effect::Unknown, "no answer in time"));
                self.network.push(*deadline, What::Answer { line, call, answer });
            }
            self.nodes[node].queue.push(message);
            return;
        }
        let ran = redis::run(node, self.nodes[node].clock(now), command);
        let word = ran.reply.as_ref().map_or("", Reply::word);
        self.counts.executed(command, word);
        if word == "voting" && self.nodes[node].forgot {
            self.nodes[node].forgot = false;
            self.counts.returned += 1;
        }
        for lock in ran.freed {
            for instance in 0..self.instances.len() {
                if !self.network.is_lost() && !self.nodes[node].is_cut_from(instance) {
                    let at = now + self.network.latency();
                    self.network.push(at, What::Hint { instance, lock: lock.clone() });
                }
            }
        }
        if now >= *deadline {
            // The caller has been told.
            return;
        }
        let verb = command.script.verb();
        let answered_at = now + self.network.latency();
        let lost = self.network.is_lost() || self.nodes[node].is_cut_from(instance);
        let (at, answer) = match ran.reply {
            _ if lost || answered_at > *deadline => {
                (*deadline, Err(failure(verb, Effect::Unknown, "no answer in time")))
            }
            Some(reply) if reply.word() == "late" => {
                (answered_at, Err(failure(verb, Effect::None, "too late")))
            }
            Some(reply) => (answered_at, Ok(reply)),
            None => (answered_at, Err(failure(verb, Effect::Unknown, "malformed answer"))),
        };
        self.network.push(at, What::Answer { line, call, answer });
    }
}

#[async_trait]
impl Peer for Line {
    fn name(&self) -> &str {
        &self.name
    }

    fn now(&self) -> u64 {
        self.world.state().network.clock((self.instance, self.node), self.world.now())
    }

    async fn call(&self, call: &ScriptCall<'_>, patience: Duration) -> Answer {
        let words = call.keys.iter().chain(call.args).map(|&word| word.to_owned()).collect();
        let command = Command { script: call.script, keys: call.keys.len(), words };
        let answer = self.world.send((self.instance, self.node), command, patience, call.when);
        // After the end of a run there are no answers.
        answer.await.unwrap_or_else(|_| Err(failure(Verb::Upkeep, Effect::Unknown, "it is over")))
    }

    async fn scan(&self, _: &str, _: &Page, _: usize) -> Result<BTreeSet<LockKey>, StoreError> {
        Err(failure(Verb::List, Effect::None, "no client of the simulation lists"))
    }
}
